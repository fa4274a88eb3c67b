"""`kvbench trace curve`: what a prefix cache of any size would hit on a trace."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kvbench.cli.trace_options import (
    BytesOption,
    FormatOption,
    ModelOption,
    NestedOption,
    TraceArgument,
    given_bytes_per_token,
)

if TYPE_CHECKING:
    from fractions import Fraction


def curve(
    trace: TraceArgument,
    capacity_blocks: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Capacities in blocks, as 100,500,1000. Default: spread up to the ceiling."),
    ] = None,
    capacity_bytes: Annotated[
        str | None,
        typer.Option(metavar="LIST", help='Capacities in bytes instead, as "20GB,80GiB": with --model, say.'),
    ] = None,
    order: Annotated[
        Literal["leaf-first", "root-first"],
        typer.Option(help="Which end of a prompt is evicted first: its tail (vLLM, SGLang), or its head."),
    ] = "leaf-first",
    hit_rate: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Also the least capacity with these hit rates, as 0.5,0.9."),
    ] = None,
    warmup: Annotated[
        float, typer.Option(metavar="SHARE", help="The first share of the requests fills the cache and is not counted.")
    ] = 0.0,
    ttl: Annotated[
        float | None, typer.Option(metavar="S", help="Blocks not touched for S seconds of trace time are gone.")
    ] = None,
    by: Annotated[
        Literal["kind", "model"] | None,
        typer.Option(help="Also by root sessions and sub-agents, or by model; all in one cache."),
    ] = None,
    bytes_per_token: BytesOption = None,
    model: ModelOption = None,
    block_size: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Tokens a block, for text (default 64). Hash ids have their own."),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="For text: a tokenizer.json, deepseek or tiktoken:PATH. Default: estimate 4 characters a token.",
        ),
    ] = None,
    times: Annotated[
        Literal["recorded", "replay"],
        typer.Option(help="Order requests by the source's own times, where it has them, or by those of a replay."),
    ] = "recorded",
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Also draw it, into a page of its own.")
    ] = None,
    format: FormatOption = None,
    nested_t: NestedOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """The exact miss-ratio curve of a prefix cache (LRU) on a trace: hits by block and by token at every capacity.

    The rule (eviction order, weighting, warm-up, partial blocks) is printed with it: a hit rate hangs on its rule.
    """
    from kvbench.errors import RefusedError, UsageError
    from kvbench.render.curve_text import curve_json, curve_lines
    from kvbench.traces.blocks import BlockedTrace
    from kvbench.traces.bundled import resolve_trace
    from kvbench.traces.curve.doubts import doubts
    from kvbench.traces.curve.measure import Asked, fine_curve, measure
    from kvbench.traces.curve.traffic import read_traffic
    from kvbench.traces.importing import open_workload
    from kvbench.traces.output import trace_output
    from kvbench.traces.tokenizers import load_tokenizer

    if plot is not None and plot.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--plot {plot}: a page is written, and its name ends in .html")
    if not 0 <= warmup < 1:
        raise UsageError(
            f"--warmup {warmup:g}: not a share from 0 to below 1", hint="--warmup 0.5 counts the second half"
        )
    if ttl is not None and not 0 < ttl < math.inf:
        raise UsageError(f"--ttl {ttl:g}: not a number of seconds above 0")
    token_bytes = given_bytes_per_token(bytes_per_token, model)
    sizes = _sizes(capacity_bytes, capacity_blocks, token_bytes)
    asked = Asked(
        order=order,
        capacities_blocks=_capacities(capacity_blocks),
        hit_rates=_rates(hit_rate),
        warmup=warmup,
        ttl_s=ttl,
        by=by,
        bytes_per_token=token_bytes,
    )
    counts = load_tokenizer(tokenizer) if tokenizer is not None else None
    with open_workload(resolve_trace(trace), format=format, nested_t=nested_t) as opened:
        blocked = BlockedTrace(opened, block_size=block_size, tokenizer=counts, times=times)
        if opened.header.prefixes == "unknown":
            raise RefusedError(
                f"{opened.path}: arrivals and lengths alone; which prompts begin alike is not known, so there is no "
                "hit rate to compute",
                hint="a source with hash ids or text has one",
            )
        traffic = read_traffic(blocked)
        notes = doubts(opened, times, blocked, traffic)
    if counts is not None and not blocked.text_turns:
        raise UsageError(
            f"--tokenizer {tokenizer}: {opened.path} has no text to count",
            hint="leave it out; the trace gives lengths",
        )
    if sizes and token_bytes is not None:
        held = [int(size // (token_bytes * blocked.block_size)) for size in sizes]
        if min(held) < 1:
            raise UsageError(
                f"--capacity-bytes {capacity_bytes}: a block of {blocked.block_size} tokens takes "
                f"{math.ceil(token_bytes * blocked.block_size):,} bytes"
            )
        asked = replace(asked, capacities_blocks=held)
    measured = measure(traffic, asked)
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    name = opened.header.name or opened.path.stem
    if plot is not None:
        from kvbench.render.curve_plot import plot_page

        with trace_output(plot) as write:
            write(plot_page(name, fine_curve(traffic, asked, measured), notes).encode())
        typer.echo(f"plot: {plot}", err=True)
    if as_json:
        from kvbench.render.jsonout import json_text

        typer.echo(json_text(curve_json(str(opened.path), measured, notes)))
    else:
        typer.echo("\n".join(curve_lines(name, measured, model)))


def _capacities(text: str | None) -> list[int] | None:
    from kvbench.errors import UsageError

    if text is None:
        return None
    try:
        found = [int(part.replace("_", "")) for part in text.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1 or max(found) > 10**15:
        raise UsageError(
            f"--capacity-blocks {text}: not a list of whole numbers of blocks", hint="as --capacity-blocks 100,500,1000"
        )
    return found


def _sizes(text: str | None, blocks: str | None, token_bytes: Fraction | None) -> list[int]:
    from kvbench.analysis.planning.profile import amount
    from kvbench.analysis.planning.source import Source
    from kvbench.errors import UsageError

    if text is None:
        return []
    if blocks is not None:
        raise UsageError("--capacity-blocks and --capacity-bytes both give capacities", hint="give one of them")
    if token_bytes is None:
        raise UsageError(
            "--capacity-bytes: what a token takes is not given", hint="add --model NAME, or --bytes-per-token B"
        )
    source = Source(None, "", {})
    return [amount(source, "--capacity-bytes", part.strip()) for part in text.split(",")]


def _rates(text: str | None) -> list[float]:
    from kvbench.errors import UsageError

    if text is None:
        return []
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [0.0]
    if not all(0 < rate <= 1 for rate in found):
        raise UsageError(f"--hit-rate {text}: not a list of rates above 0, up to 1", hint="as --hit-rate 0.5,0.9")
    return found
