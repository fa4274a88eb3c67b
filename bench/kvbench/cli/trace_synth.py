"""`kvbench trace synth`: make a workload from a recipe, or one that is like a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvbench.cli.trace_options import FormatOption, NestedOption

if TYPE_CHECKING:
    from kvbench.traces.likeness.distance import Distance, Likeness
    from kvbench.traces.likeness.like import Fitted
    from kvbench.traces.synth.recipe import Made


def synth(
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="A recipe (TOML), or the name of a bundled one.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where the trace goes. Default: stdout."),
    ] = None,
    sessions: Annotated[
        int | None, typer.Option(min=1, max=10_000_000, help="Root sessions. Default: the recipe's number, or TRACE's.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Default: the recipe's, or 0.")] = None,
    like: Annotated[
        str | None,
        typer.Option(metavar="TRACE", help="Make a trace of block ids like this one, of any format."),
    ] = None,
    recipe_out: Annotated[
        Path | None, typer.Option("--recipe", metavar="FILE", help="With --like: write the recipe fitted to TRACE.")
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(min=1, help="With --like: tokens a block, where TRACE has text. Default: 64.")
    ] = None,
    format: FormatOption = None,
    nested_t: NestedOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print what was made as one JSON object.")] = False,
) -> None:
    """Make a trace from a recipe, or one that is like a trace.

    The same recipe, seed and number of sessions give the same bytes, everywhere.
    """
    from kvbench.errors import UsageError
    from kvbench.traces.synth.load import bundled_recipes

    if (recipe is None) == (like is None):
        raise UsageError(
            "name a recipe, or a trace by --like" if recipe is None else "a recipe, or --like: not both",
            hint=f"bundled recipes: {', '.join(sorted(bundled_recipes()))}",
        )
    if recipe is not None:
        if recipe_out is not None or block_size is not None:
            raise UsageError("--recipe and --block-size go with --like")
        _from_recipe(recipe, output, sessions, seed, as_json)
    elif like is not None:
        _like(like, output, sessions, seed, recipe_out, block_size, format, nested_t, as_json)


def _from_recipe(recipe: str, output: Path | None, sessions: int | None, seed: int | None, as_json: bool) -> None:
    from kvbench.traces.output import trace_output
    from kvbench.traces.synth.load import load_recipe, resolve_recipe
    from kvbench.traces.synth.recipe import synthesis

    path = resolve_recipe(recipe)
    wanted = synthesis(load_recipe(path), path.stem, seed=seed, sessions=sessions)
    with trace_output(output) as write:
        made = wanted.write(write)
    to_stderr = output is None
    if as_json:
        _print_json(made, to_stderr)
        return
    typer.echo(_made_line(made), err=to_stderr)
    if output is not None:
        typer.echo(f"{'next':<10} kvbench run {output} --endpoint sim")


def _like(
    trace: str,
    output: Path | None,
    sessions: int | None,
    seed: int | None,
    recipe_out: Path | None,
    block_size: int | None,
    format: str | None,
    nested_t: Any,
    as_json: bool,
) -> None:
    import shutil
    import sys
    import tempfile

    from kvbench.traces.bundled import resolve_trace
    from kvbench.traces.importing import open_workload
    from kvbench.traces.likeness.like import fit
    from kvbench.traces.output import trace_output
    from kvbench.traces.synth.toml import recipe_toml

    with open_workload(resolve_trace(trace), format=format, nested_t=nested_t) as opened:
        fitted = fit(opened, block_size=block_size)
    if recipe_out is not None:
        with trace_output(recipe_out) as write:
            write(recipe_toml(fitted.recipe).encode())
    with tempfile.TemporaryDirectory() as folder:
        made_in = output or Path(folder) / "made.jsonl"
        with trace_output(made_in) as write:
            made = fitted.write(write, seed=seed, sessions=sessions)
        close = fitted.compared(made_in)
        if output is None and recipe_out is None:
            with made_in.open("rb") as stream:
                shutil.copyfileobj(stream, sys.stdout.buffer)
            sys.stdout.buffer.flush()
    to_stderr = output is None and recipe_out is None
    if as_json:
        _print_json({"source": fitted.recipe.about, "made": made, "likeness": close}, to_stderr)
        return
    for line in _like_lines(fitted, made, close):
        typer.echo(line, err=to_stderr)
    if recipe_out is not None:
        typer.echo(f"{'next':<10} kvbench trace synth {recipe_out} --sessions N -o FILE")
    elif output is not None:
        typer.echo(f"{'next':<10} kvbench run {output} --endpoint sim")


def _print_json(value: Any, to_stderr: bool) -> None:
    from kvbench.render.jsonout import json_text

    typer.echo(json_text(value), err=to_stderr)


def _made_line(made: Made) -> str:
    return (
        f"{'made':<10} {made.name}, seed {made.seed}: {made.trees:,} trees, {made.sessions:,} sessions, "
        f"{made.turns:,} turns"
    )


def _like_lines(fitted: Fitted, made: Made, close: Likeness) -> list[str]:
    lines = [
        f"{'source':<10} {fitted.recipe.about.removeprefix('like ')}",
        f"{'blocks':<10} of {close.block_size} tokens: {close.tokens}",
        _made_line(made),
    ]
    if close.source_ceiling is not None and close.result_ceiling is not None:
        lines.append(
            f"{'ceiling':<10} source {close.source_ceiling:.1%} of {close.source_blocks:,} blocks, result "
            f"{close.result_ceiling:.1%} of {close.result_blocks:,} (a prefix cache without a limit)"
        )
    lines += _longest_lines(close)
    lines += ["", f"{'':<38} {'n':>17}   {'median':>19}   {'mean':>19}   {'KS':>5} {'chance':>6}   {'Wasserstein':>12}"]
    lines += [_distance_line(distance) for distance in close.distances]
    lines += [
        "",
        "Source, then result. KS: largest difference of the distribution functions; chance: what two samples of these",
        "sizes from one distribution stay below 19 times in 20, if their values do not depend on one another.",
        "Wasserstein: how far values have to be moved on average.",
        "",
    ]
    return lines


def _longest_lines(close: Likeness) -> list[str]:
    """A tail that medians and means do not show, and that an endpoint may refuse."""
    lengths = next((distance for distance in close.distances if distance.quantity == "input"), None)
    if lengths is None or lengths.source_max is None or lengths.result_max is None:
        return []
    source, result = lengths.source_max, lengths.result_max
    advice = "; max_input_tokens in a recipe (--recipe) ends sessions before that" * (result > source)
    return [f"{'longest':<10} prompt of the source {source:,.0f} tokens, of the result {result:,.0f}{advice}"]


def _distance_line(distance: Distance) -> str:
    unit = "" if distance.quantity.endswith(distance.unit) else f", {distance.unit}"
    name = distance.quantity + unit
    counts = f"{distance.source_n:>8,} {distance.result_n:>8,}"
    if distance.ks is None or distance.ks_chance is None:
        return f"{name:<38} {counts}   not in both"
    median = f"{_number(distance.source_median):>9} {_number(distance.result_median):>9}"
    mean = f"{_number(distance.source_mean):>9} {_number(distance.result_mean):>9}"
    shift = f"{_number(distance.wasserstein):>12}"
    return f"{name:<38} {counts}   {median}   {mean}   {distance.ks:>5.3f} {distance.ks_chance:>6.3f}   {shift}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
