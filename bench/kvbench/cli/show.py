"""`kvbench show`: the summary of a run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run directory, or the id of a run under ./runs.")],
    slo: Annotated[
        list[str] | None,
        typer.Option(metavar="EXPR", help="ttft<2s: what a request must meet to count in the goodput; again for more."),
    ] = None,
    llmd_report: Annotated[
        Path | None,
        typer.Option("--llmd-report", metavar="FILE", help="Write an llm-d benchmark report 0.2 (JSON), too."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Show what a run measured."""
    from kvbench.analysis.gate.expression import request_slos
    from kvbench.analysis.summary import summarise
    from kvbench.render.jsonout import json_text, summary_json
    from kvbench.runs.reader import load_run, resolve_run

    path = resolve_run(run)
    loaded, slos = load_run(path), request_slos(slo or ())
    summary = summarise(loaded, slos)
    if llmd_report is not None:
        from kvbench.analysis.llmd import llmd_report as report_of
        from kvbench.cli.gate_outputs import write_whole

        report = report_of(loaded, summary, summary_json(summary, path), slos)
        write_whole(llmd_report, json_text(report) + "\n")
        typer.echo(f"report: {llmd_report}", err=True)
    if json:
        typer.echo(json_text(summary_json(summary, path)))
    else:
        from kvbench.render.terminal import print_summary

        print_summary(summary, path, next_command=f"kvbench show {path} --json")
