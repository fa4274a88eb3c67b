"""`kvbench claims`: the vendors' claims, each held against what the model gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvbench.cli.output import say
from kvbench.cli.trace_options import FormatOption, NestedOption, NestedT

if TYPE_CHECKING:
    from kvbench.analysis.claims import Traffic


def claims(
    trace: Annotated[
        str | None,
        typer.Option("--trace", metavar="TRACE", help="Also on the traffic of this trace, or bundled workload."),
    ] = None,
    format: FormatOption = None,
    nested_t: NestedOption = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check what vendors claim of their KV caches. Exit code 1: a claim does not hold, by the model or on the trace."""
    from kvbench.analysis.claims.report import claims_report
    from kvbench.errors import EXIT_CHECK_FAILED, UsageError
    from kvbench.render.claimtext import claim_lines

    if trace is None and (format is not None or nested_t != "auto"):
        raise UsageError("--format and --nested-t are for a trace", hint="kvbench claims --trace TRACE")
    report = claims_report(None if trace is None else _traffic(trace, format, nested_t))
    if json:
        from kvbench.render.jsonout import json_text

        say(json_text(report))
    else:
        say("\n".join(claim_lines(report)))
    if report["failed"]:
        raise typer.Exit(EXIT_CHECK_FAILED)


def _traffic(trace: str, format: str | None, nested_t: NestedT) -> Traffic:
    from kvbench.analysis.claims.traffic import traffic_of
    from kvbench.traces.bundled import resolve_trace
    from kvbench.traces.importing import open_workload

    with open_workload(resolve_trace(trace), format=format, nested_t=nested_t) as opened:
        return traffic_of(opened)
