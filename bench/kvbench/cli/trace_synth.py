"""`kvbench trace synth`: make a workload from a recipe, or one that is like a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kvbench.traces.synth.recipe import Made


def synth(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe (TOML), or the name of a bundled one.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where the trace goes. Default: standard output."),
    ] = None,
    sessions: Annotated[
        int | None, typer.Option(min=1, max=10_000_000, help="Root sessions, instead of the recipe's number.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Instead of the recipe's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was made as one JSON object.")] = False,
) -> None:
    """Make a trace from a recipe: the same recipe, seed and number of sessions give the same bytes, everywhere."""
    from kvbench.traces.output import trace_output
    from kvbench.traces.synth.load import load_recipe, resolve_recipe
    from kvbench.traces.synth.recipe import synthesis

    path = resolve_recipe(recipe)
    wanted = synthesis(load_recipe(path), path.stem, seed=seed, sessions=sessions)
    with trace_output(output) as write:
        made = wanted.write(write)
    _show(made, output, as_json)


def _show(made: Made, output: Path | None, as_json: bool) -> None:
    """To standard error where the trace itself is on standard output."""
    if as_json:
        import msgspec

        typer.echo(msgspec.json.format(msgspec.json.encode(made), indent=2).decode(), err=output is None)
        return
    what = f"{made.name}, seed {made.seed}: {made.trees:,} trees, {made.sessions:,} sessions, {made.turns:,} turns"
    typer.echo(f"{'made':<10} {what}", err=output is None)
    if output is not None:
        typer.echo(f"{'next':<10} kvbench run {output} --endpoint sim")
