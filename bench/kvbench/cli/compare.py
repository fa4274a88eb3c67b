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
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare runs turn by turn: what changed, by how much, where, and what else is different."""
    from kvbench.analysis.compare.report import compare as compared
    from kvbench.analysis.gate.sources import run_directories
    from kvbench.prices.load import load_prices
    from kvbench.render.comparetext import compare_lines

    report = compared(run_directories([base]), run_directories([new]), load_prices(prices))
    if json:
        import msgspec

        typer.echo(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        typer.echo("\n".join(compare_lines(report)))
