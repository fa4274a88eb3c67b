"""`kvbench compare`: two runs, or groups of runs, side by side."""

from __future__ import annotations

from typing import Annotated

import typer


def compare(
    base: Annotated[str, typer.Argument(metavar="BASE", help="A run directory or id, a comma list, or a glob.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="What to compare with it, likewise.")],
    prices: Annotated[
        list[str] | None,
        typer.Option(metavar="BOOK", help="A bundled price book or a TOML. Without: all bundled ones."),
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(metavar="EXPR", help="ttft<2s: what a request must meet to count in the goodput; again for more."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare runs turn by turn: what changed, by how much, where, and what else is different."""
    from kvbench.analysis.compare.report import compare as compared
    from kvbench.analysis.gate.expression import request_slos
    from kvbench.analysis.gate.sources import run_directories
    from kvbench.prices.load import load_prices
    from kvbench.render.comparetext import compare_lines
    from kvbench.render.jsonout import json_text

    slos = request_slos(slo or ())
    report = compared(run_directories([base]), run_directories([new]), load_prices(prices), slos)
    if json:
        typer.echo(json_text(report))
    else:
        typer.echo("\n".join(compare_lines(report)))
