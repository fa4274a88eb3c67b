"""`kvbench history`: each metric over nights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def history(
    directory: Annotated[Path, typer.Argument(metavar="[DIR]", help="Of a nightly job, or of runs.")] = Path("nights"),
    plot: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Draw it as a page, too.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List a directory's runs by trace, configuration, endpoint and model, each metric over nights."""
    from kvbench.analysis.nights.history import history as collect
    from kvbench.cli.gate_outputs import write_whole
    from kvbench.errors import UsageError
    from kvbench.render.jsonout import json_text

    if plot is not None and plot.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--plot {plot}: a page is written, and its name ends in .html")
    found = collect(directory)
    if plot is not None:
        from kvbench.render.history_plot import history_page

        write_whole(plot, history_page(found))
        typer.echo(f"plot: {plot}", err=True)
    if json:
        typer.echo(json_text(found))
        return
    from kvbench.render.history_text import history_lines

    typer.echo("\n".join(history_lines(found)))
