"""`kvbench trace`: look at a workload before it is run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvbench.cli import trace_cliff, trace_convert, trace_curve, trace_info, trace_synth, trace_transform
from kvbench.cli.trace_options import FormatOption, NestedOption, TraceArgument

if TYPE_CHECKING:
    from kvbench.traces.import_report import ImportReport
    from kvbench.traces.native import Validation
    from kvbench.traces.problems import TraceProblem

app = typer.Typer(
    help="Check, describe, convert and make workloads; say what a cache could do with them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command()(trace_synth.synth)
app.command(short_help="Make a trace of others: take parts, put several together.")(trace_transform.transform)
app.command(short_help="The exact hit rate of a prefix cache (LRU) of any size.")(trace_curve.curve)
app.command(short_help="The eviction cliff: hit rate by number of live sessions.")(trace_cliff.cliff)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def validate(
    trace: TraceArgument, format: FormatOption = None, nested_t: NestedOption = "auto", as_json: JsonOption = False
) -> None:
    """Check a trace and list every problem with its line. Exit code 0: it can be run; 2: it cannot."""
    from kvbench.errors import EXIT_USAGE
    from kvbench.traces.bundled import resolve_trace
    from kvbench.traces.importing import validate_workload

    found = validate_workload(resolve_trace(trace), format=format, nested_t=nested_t)
    if as_json:
        _print_json(_validation_json(found))
    else:
        _print_validation(found)
    if found.errors:
        raise typer.Exit(EXIT_USAGE)


app.command(short_help="Describe a trace: sessions, lengths, pauses, sharing.")(trace_info.info)
app.command(short_help="Write a trace in another format, or anonymised.")(trace_convert.convert)


def _print_json(value: dict[str, Any]) -> None:
    from kvbench.render.jsonout import json_text

    typer.echo(json_text(value))


def _validation_json(found: Validation) -> dict[str, Any]:
    import msgspec

    return {
        "trace": str(found.path),
        "valid": not found.errors,
        "sessions": found.sessions,
        "turns": found.turns,
        "errors": msgspec.to_builtins(found.errors),
        "warnings": msgspec.to_builtins(found.warnings),
        "problems_not_listed": found.dropped,
        "repairs": msgspec.to_builtins(found.repairs),
        "import": msgspec.to_builtins(found.imported),
    }


def _print_validation(found: Validation) -> None:
    for problem in found.errors:
        _print_problem(found, problem)
    for problem in found.warnings:
        _print_problem(found, problem)
    if found.dropped:
        typer.echo(f"... and {found.dropped} more")
    repairs = {
        "byte order mark skipped": found.repairs.byte_order_mark,
        "blank lines skipped": found.repairs.blank_lines,
        "lone surrogates replaced": found.repairs.lone_surrogates,
    }
    for what, count in repairs.items():
        if count:
            typer.echo(f"{found.path}: {what}: {count}")
    _print_import(found.imported)
    if found.errors:
        typer.echo(f"{found.path}: cannot be run: {_count(len(found.errors), 'error')} listed above")
    else:
        doubts = f", {_count(len(found.warnings), 'warning')}" if found.warnings else ""
        what = f"{_count(found.sessions, 'session')}, {_count(found.turns, 'turn')}"
        typer.echo(f"{found.path}: valid, {what}{doubts}")


def _print_problem(found: Validation, problem: TraceProblem) -> None:
    where = _where(found, problem)
    label = "" if problem.severity == "error" else "warning: "
    field = f"{problem.field}: " if problem.field else ""
    hint = f" ({problem.hint})" if problem.hint else ""
    typer.echo(f"{where}{label}{field}{problem.message}{hint}")


def _where(found: Validation, problem: TraceProblem) -> str:
    """Line 0 is the file as a whole."""
    path = problem.file or found.path
    return f"{path}:{problem.line}: " if problem.line else f"{path}: "


def _print_import(imported: ImportReport | None) -> None:
    for sentence in imported.sentences() if imported else ():
        typer.echo(f"{'import':<10} {sentence}")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
