"""`kvbench trace info`: what a trace holds, and what a prefix cache could do with it."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from kvbench.cli.trace_options import (
    BytesOption,
    FormatOption,
    ModelOption,
    NestedOption,
    TraceArgument,
    given_bytes_per_token,
)


def info(
    trace: TraceArgument,
    ttl: Annotated[
        float,
        typer.Option(metavar="S", help="Held against pauses; and how long a touched block is in the working set."),
    ] = 300.0,
    bytes_per_token: BytesOption = None,
    model: ModelOption = None,
    format: FormatOption = None,
    nested_t: NestedOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Describe a trace: sessions, turns, lengths, pauses, what prompts share, the ceiling of a prefix cache, load."""
    import msgspec

    from kvbench.errors import UsageError
    from kvbench.render.jsonout import json_text
    from kvbench.render.trace_text import info_json, info_lines
    from kvbench.traces.bundled import resolve_trace
    from kvbench.traces.importing import open_workload
    from kvbench.traces.stats import trace_stats

    if not 0 < ttl < math.inf:
        raise UsageError(f"--ttl {ttl:g}: not a number of seconds above 0")
    per_token = given_bytes_per_token(bytes_per_token, model)
    with open_workload(resolve_trace(trace), format=format, nested_t=nested_t) as opened:
        stats = trace_stats(opened, ttl_s=ttl)
        doubts = len(opened.warnings)
        imported = opened.imported
    if as_json:
        shown = {"trace": str(opened.path), **info_json(stats, per_token), "import": msgspec.to_builtins(imported)}
        typer.echo(json_text(shown))
        return
    lines = info_lines(stats, per_token)
    if doubts:
        lines.append(f"{'doubts':<10} {doubts:,} warning{'' if doubts == 1 else 's'}: kvbench trace validate {trace}")
    for sentence in imported.sentences() if imported else ():
        lines.append(f"{'import':<10} {sentence}")
    typer.echo("\n".join(lines))
