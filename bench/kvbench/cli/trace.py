"""`kvbench trace`: look at a workload before it is run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvbench.cli import trace_convert, trace_curve, trace_synth, trace_transform
from kvbench.cli.trace_options import FormatOption, NestedOption, TraceArgument

if TYPE_CHECKING:
    from kvbench.traces.import_report import ImportReport
    from kvbench.traces.native import Validation
    from kvbench.traces.problems import TraceProblem
    from kvbench.traces.stats import TraceStats

app = typer.Typer(help="Check and describe workloads.", no_args_is_help=True, rich_markup_mode=None)
app.command()(trace_synth.synth)
app.command()(trace_transform.transform)
app.command()(trace_curve.curve)

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


@app.command()
def info(
    trace: TraceArgument, format: FormatOption = None, nested_t: NestedOption = "auto", as_json: JsonOption = False
) -> None:
    """Describe a trace: sessions, sub-agents, turns, tokens, pauses and shared prompts."""
    from kvbench.traces.bundled import resolve_trace
    from kvbench.traces.importing import open_workload
    from kvbench.traces.stats import trace_stats

    with open_workload(resolve_trace(trace), format=format, nested_t=nested_t) as opened:
        stats = trace_stats(opened)
        doubts = len(opened.warnings)
        imported = opened.imported
    if as_json:
        import msgspec

        _print_json({"trace": str(opened.path), **msgspec.to_builtins(stats), "import": msgspec.to_builtins(imported)})
    else:
        _print_stats(stats, doubts, trace)
        _print_import(imported)


app.command()(trace_convert.convert)


def _print_json(value: dict[str, Any]) -> None:
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


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


def _print_stats(stats: TraceStats, doubts: int, trace: str) -> None:
    about = "estimated at 4 characters a token, without the chat template"
    exact = stats.input_tokens is not None
    total = stats.input_tokens if exact else stats.input_tokens_estimated
    longest = stats.longest_context_tokens if exact else stats.longest_context_tokens_estimated
    pause = stats.pause_s
    trees = f"{_count(stats.roots, 'root')}, {_count(stats.sub_agents, 'sub-agent')}, depth {stats.depth}"
    joins = f"{stats.joins:,} {'waits' if stats.joins == 1 else 'wait'} for sub-agents"
    rows = [
        ("trace", f"{stats.name}, {stats.size_bytes:,} bytes, sha256 {stats.sha256[:12]}"),
        ("sessions", f"{stats.sessions:,}: {trees}"),
        ("turns", f"{stats.turns:,}, of which {joins}"),
        ("input", f"{total:,} tokens over all turns, longest context {longest:,}" + ("" if exact else f" ({about})")),
        ("output", _output(stats)),
        ("pauses", "none" if not pause.n else f"p50 {pause.p50:.1f} s   p95 {pause.p95:.1f} s   max {pause.max:.1f} s"),
        ("span", f"{_duration(stats.span_s)} of trace time to the start of the last turn"),
    ]
    for prompt in stats.shared_prompts:
        text = f"{prompt.name}: {_count(prompt.sessions, 'session')}, {_count(prompt.tools, 'tool')}, "
        rows.append(("shared", f"{text}about {prompt.tokens_estimated:,} tokens (estimated)"))
    if stats.models:
        rows.append(("models", ", ".join(stats.models)))
    if doubts:
        rows.append(("doubts", f"{_count(doubts, 'warning')}: kvbench trace validate {trace}"))
    for name, value in rows:
        typer.echo(f"{name:<10} {value}")


def _output(stats: TraceStats) -> str:
    if stats.output_tokens is None:
        return "lengths not given: left to the model"
    without = stats.turns_without_output_tokens
    return f"{stats.output_tokens:,} tokens" + (f", {_count(without, 'turn')} without a length" if without else "")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
