"""`kvbench runs`: the runs of a directory, newest last."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def runs(
    directory: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where the run directories are.")] = Path("runs"),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON array instead.")] = False,
) -> None:
    """List runs: status, trace, endpoint, turns, TTFT and hit rate."""
    from kvbench.analysis.listing import list_runs

    rows = list_runs(directory)
    if json:
        from kvbench.render.jsonout import json_text

        typer.echo(json_text(rows))
        return
    from kvbench.render.runlist import run_table

    for line in run_table(rows):
        typer.echo(line)
    if not rows:
        typer.echo(f"no runs in {directory}; kvbench run TRACE --endpoint URL makes one")
