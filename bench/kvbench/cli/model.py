"""`kvbench model`: what an architecture implies for the KV cache."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

CacheDtype = Literal["auto", "fp32", "bf16", "fp16", "fp8", "fp8_ds_mla", "nvfp4"]


def model(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME|CONFIG]",
            help="A model of the catalogue, or a config.json (or a directory with one). Without: list them.",
        ),
    ] = None,
    dtype: Annotated[
        CacheDtype, typer.Option(help="Of the cache; auto is the model's own, or what its config says.")
    ] = "auto",
    tp: Annotated[int, typer.Option("--tp", metavar="N", help="Also for each of N tensor-parallel ranks.")] = 1,
    context: Annotated[
        int | None, typer.Option("--context", metavar="N", help="Also for a session of N tokens.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """KV bytes a token and a session: claimed, architectural and allocated, with their derivation."""
    from kvbench.analysis.models.report import catalogue_report, model_report
    from kvbench.errors import UsageError
    from kvbench.render.modeltext import catalogue_lines, model_lines

    if name is None:
        if (dtype, tp, context) != ("auto", 1, None):
            raise UsageError("--dtype, --tp and --context are for one model", hint="kvbench model NAME --tp 8")
        rows = catalogue_report()
        _print({"models": rows} if json else None, catalogue_lines(rows))
        return
    report = model_report(name, dtype=dtype, ranks=tp, context=context)
    _print(report if json else None, model_lines(report))


def _print(value: dict[str, Any] | None, lines: list[str]) -> None:
    if value is None:
        typer.echo("\n".join(lines))
        return
    from kvbench.render.jsonout import json_text

    typer.echo(json_text(value))
