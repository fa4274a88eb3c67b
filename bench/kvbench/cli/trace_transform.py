"""`kvbench trace transform`: make a workload of parts of others, of several, or of copies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvbench.cli.trace_options import FormatOption, NestedOption

if TYPE_CHECKING:
    from kvbench.traces.transforming.plan import Transform
    from kvbench.traces.transforming.transform import TransformReport

OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where the trace goes. Default: standard output.")
]


def transform(
    traces: Annotated[list[str], typer.Argument(metavar="TRACE", help="Traces, or names of bundled workloads.")],
    output: OutputOption = None,
    session: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Take root sessions whose id fits (* and ?), with their sub-agents."),
    ] = None,
    from_s: Annotated[
        float | None, typer.Option("--from", metavar="S", help="Take trees that start at S or later.")
    ] = None,
    until_s: Annotated[
        float | None, typer.Option("--until", metavar="S", help="Take trees that start before S.")
    ] = None,
    copies: Annotated[int, typer.Option(min=1, max=100_000, help="How often each tree is in the result.")] = 1,
    spread: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="S",
            help="Each further copy starts up to S later. Default: the mean time between two starts.",
        ),
    ] = None,
    shared_by: Annotated[
        int, typer.Option(min=2, metavar="N", help="Copies share what at least N trees of the sources have.")
    ] = 2,
    max_pause: Annotated[float | None, typer.Option(min=0, metavar="S", help="Cap pauses at S.")] = None,
    same_ids: Annotated[
        bool, typer.Option("--same-ids", help="A hash id means the same block in all traces. Default: in its own only.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the copies' starts.")] = 0,
    format: FormatOption = None,
    nested_t: NestedOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as one JSON object.")] = False,
) -> None:
    """Make a trace of others: take parts of one, put several together, copy to scale the load, cap pauses.

    Copies share what several trees of the sources share; what a tree has for itself is new in each copy.
    """
    from contextlib import ExitStack

    from kvbench.errors import UsageError
    from kvbench.traces.bundled import resolve_trace
    from kvbench.traces.importing import open_workload
    from kvbench.traces.lines import MAX_TIME_S
    from kvbench.traces.output import trace_output
    from kvbench.traces.transforming.plan import Transform
    from kvbench.traces.transforming.transform import transform as make

    times = {"--from": from_s, "--until": until_s, "--spread": spread, "--max-pause": max_pause}
    for option, value in times.items():
        if value is not None and not abs(value) <= MAX_TIME_S:
            raise UsageError(f"{option} {value:g}: seconds of trace time, up to {MAX_TIME_S:g}")
    if from_s is not None and until_s is not None and from_s >= until_s:
        raise UsageError(f"--from {from_s:g} --until {until_s:g}: no time lies in between")
    wanted = Transform(
        sessions=tuple(session or ()),
        from_s=from_s,
        until_s=until_s,
        copies=copies,
        spread_s=spread,
        shared_by=shared_by,
        max_pause_s=max_pause,
        same_ids=same_ids,
        seed=seed,
    )
    with ExitStack() as stack:
        opened = [
            stack.enter_context(open_workload(resolve_trace(trace), format=format, nested_t=nested_t))
            for trace in traces
        ]
        with trace_output(output) as write:
            report = make(opened, wanted, write)
    _show(report, wanted, output, as_json)


def _show(report: TransformReport, wanted: Transform, output: Path | None, as_json: bool) -> None:
    """To standard error where the trace itself is on standard output."""
    to_stderr = output is None
    if as_json:
        from kvbench.render.jsonout import json_text

        text = json_text(report)
        typer.echo(text, err=to_stderr)
        return
    rows = [
        ("took", f"{report.source_trees:,} trees, {report.source_turns:,} turns"),
        ("made", f"{report.trees:,} trees, {report.sessions:,} sessions, {report.turns:,} turns"),
    ]
    if report.copies > 1:
        shifts = ", ".join(f"{shift:g}" for shift in report.shifts_s[1:9]) + (", ..." if report.copies > 9 else "")
        rows.append(("copies", f"{report.copies}; the further ones start {shifts} s later"))
        shared = f"what at least {report.shared_by} trees have, and named prompts"
        if report.source_blocks.distinct:
            shared += f"; of hash ids {report.shared_blocks:,} of {report.source_blocks.distinct:,} blocks"
        rows.append(("shared", shared))
    if report.copies_without_private:
        rows.append(("same", f"{report.copies_without_private:,} copied trees have nothing of their own to make new"))
    before, after = report.source_blocks, report.result_blocks
    if before.hit_rate is not None and after.hit_rate is not None:
        rate = f"{after.hit_rate:.1%} of {after.blocks:,} blocks; sources {before.hit_rate:.1%} of {before.blocks:,}"
        rows.append(("ceiling", f"{rate} (hash ids, a prefix cache without a limit)"))
    if wanted.max_pause_s is not None:
        rows.append(("pauses", f"{report.pauses_capped:,} were longer than {wanted.max_pause_s:g} s"))
    if report.renamed_sources:
        rows.append(
            ("renamed", f"sessions of {report.renamed_sources} sources: an earlier source has one of their names")
        )
    for warning in report.warnings:
        rows.append(("doubt", f"{warning.message}; {warning.advice}"))
    for name, value in rows:
        typer.echo(f"{name:<10} {value}", err=to_stderr)
    if output is not None:
        typer.echo(f"{'next':<10} kvbench run {output} --endpoint sim")
