"""`kvbench show`: the summary of a run again."""

from __future__ import annotations

from typing import Annotated

import typer


def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run directory, or the id of a run under ./runs.")],
    slo: Annotated[
        list[str] | None,
        typer.Option(metavar="EXPR", help="ttft<2s: what a request must meet to count in the goodput; again for more."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Show what a run measured."""
    from kvbench.analysis.gate.expression import parse_slo
    from kvbench.analysis.slo import Slo
    from kvbench.analysis.summary import summarise
    from kvbench.errors import UsageError
    from kvbench.runs.reader import load_run, resolve_run

    goals = [parse_slo(text) for text in slo or ()]
    if any(not isinstance(goal, Slo) for goal in goals):
        raise UsageError("--slo says here what one request must meet, without a statistic", hint="--slo 'ttft<2s'")
    path = resolve_run(run)
    summary = summarise(load_run(path), tuple(goal for goal in goals if isinstance(goal, Slo)))
    if json:
        import msgspec

        from kvbench.render.jsonout import summary_json

        typer.echo(msgspec.json.format(msgspec.json.encode(summary_json(summary, path)), indent=2))
    else:
        from kvbench.render.terminal import print_summary

        print_summary(summary, path, next_command=f"kvbench show {path} --json")
