"""`kvbench show`: the summary of a run again."""

from __future__ import annotations

from typing import Annotated

import typer


def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run directory, or the id of a run under ./runs.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Show what a run measured."""
    from kvbench.analysis.summary import summarise
    from kvbench.runs.reader import load_run, resolve_run

    path = resolve_run(run)
    summary = summarise(load_run(path))
    if json:
        import msgspec

        from kvbench.render.jsonout import summary_json

        typer.echo(msgspec.json.format(msgspec.json.encode(summary_json(summary, path)), indent=2))
    else:
        from kvbench.render.terminal import print_summary

        print_summary(summary, path, next_command=f"kvbench show {path} --json")
