"""`kvbench plan`: what fits, what hits, how fast it can go, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kvbench.analysis.planning.fields import Profile
    from kvbench.analysis.planning.source import Source
    from kvbench.analysis.planning.traffic import Observed

Bytes = "BYTES"


def plan(
    profile: Annotated[
        Path | None,
        typer.Argument(metavar="[PROFILE]", help="A TOML with all that a plan can be told; options come before it."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Of the catalogue, or a config.json.")
    ] = None,
    tp: Annotated[
        int | None, typer.Option("--tp", metavar="N", help="Tensor-parallel ranks; a plan is of one.")
    ] = None,
    kv_memory: Annotated[
        str | None, typer.Option("--kv-memory", metavar=Bytes, help="Memory for KV on one rank, as 40e9 or '40 GB'.")
    ] = None,
    hbm: Annotated[
        str | None, typer.Option("--hbm", metavar=Bytes, help="Instead: one rank's memory, of which KV gets the rest.")
    ] = None,
    weights: Annotated[str | None, typer.Option("--weights", metavar=Bytes, help="Less the weights.")] = None,
    activations: Annotated[
        str | None, typer.Option("--activations", metavar=Bytes, help="Less the activations.")
    ] = None,
    reserve: Annotated[
        str | None, typer.Option("--reserve", metavar=Bytes, help="Less what the engine keeps free.")
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option("--trace", metavar="TRACE", help="The traffic: a trace of any format, or a bundled workload."),
    ] = None,
    context: Annotated[
        int | None, typer.Option("--context", metavar="N", help="Or: tokens of a session, its last answer included;")
    ] = None,
    new_tokens: Annotated[
        int | None, typer.Option("--new-tokens", metavar="N", help="of a prompt those that no cache can have;")
    ] = None,
    output: Annotated[int | None, typer.Option("--output", metavar="N", help="and of an answer.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Plan a cache: sessions that fit, hit rate by tier, the bound on requests a second, and costs, term by term.

    Speeds, slower tiers, prices and tasks go into the profile. What cannot be worked out is named, with what it needs.
    """
    from kvbench.analysis.planning.profile import load_plan
    from kvbench.analysis.planning.report import Plan
    from kvbench.render.plan_text import plan_lines

    options = {
        "model.name": model,
        "model.tensor_parallel": tp,
        "memory.kv": kv_memory,
        "memory.hbm": hbm,
        "memory.weights": weights,
        "memory.activations": activations,
        "memory.reserve": reserve,
        "traffic.trace": trace,
        "traffic.context": context,
        "traffic.new_tokens": new_tokens,
        "traffic.output_tokens": output,
    }
    asked, source = load_plan(profile, options)
    report = Plan(asked, source).report(_observed(asked, source))
    if as_json:
        from kvbench.render.jsonout import json_text

        typer.echo(json_text(report))
    else:
        typer.echo("\n".join(plan_lines(report)))


def _observed(asked: Profile, source: Source) -> Observed | None:
    from kvbench.analysis.planning.traffic import observe
    from kvbench.errors import InputError, UsageError
    from kvbench.traces.bundled import resolve_trace
    from kvbench.traces.importing import open_workload

    if asked.traffic.trace is None:
        return None
    try:
        path = resolve_trace(source.beside("traffic.trace", asked.traffic.trace))
    except InputError as error:
        raise source.wrong("traffic.trace", error.message, error.hint) from None
    try:
        opened = open_workload(path, format=asked.traffic.format)
    except UsageError as error:
        raise source.wrong("traffic.format", error.message, error.hint) from None
    with opened:
        return observe(opened)
