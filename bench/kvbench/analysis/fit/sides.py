"""What is claimed of a model, what its architecture implies and what was measured, side by side and never mixed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvbench.analysis.fit.memory import server_cache
from kvbench.analysis.models.report import model_report
from kvbench.errors import UsageError
from kvbench.model import Estimate, FitReport
from kvbench.runs.reader import Run

_DTYPES = {
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "fp8_ds_mla": "fp8_ds_mla",
    "nvfp4": "nvfp4",
}
"""vLLM's names of cache dtypes, and those of the catalogue."""
CLAIM_ROUNDED = 0.5


def side_by_side(report: FitReport, runs: Sequence[Run], name_or_path: str) -> dict[str, Any]:
    """Plain values, for JSON and for showing.

    measured: each estimate in bytes a token or a session, with `within`, what of the others lies in its interval, and
    `off`, by which share of itself each of the rest is from the value. Raises InputError and UsageError of the model,
    and UsageError where the runs are of several models.
    """
    models = sorted({str((run.info.server or {}).get("model")) for run in runs})
    if len(models) > 1:
        raise UsageError(
            f"--model {name_or_path} is one model, and the runs are of {', '.join(models)}", hint="one model at a time"
        )
    model = _of(name_or_path, runs)
    layouts = [
        {key: layout[key] for key in ("engine", "layout", "bytes_per_token", "block_tokens")}
        for layout in model["allocated"]
    ]
    return {
        "model": model["name"],
        "cache_dtype": model["cache_dtype"],
        "claimed": model["claimed"],
        "architecture": {key: model[key] for key in ("bytes_per_token", "bytes_per_session")},
        "allocated_by_layout": layouts,
        "allocated_remark": model["allocated_remark"],
        "measured": [_measured(e, model, layouts) for e in report.estimates if _is_bytes(e)],
        "assumed": [
            *_other_dtypes(model["cache_dtype"], runs),
            *model["assumed"],
            "the memory and the figures are those of one rank that holds the whole model (else: kvbench model --tp)",
        ],
    }


def _of(name_or_path: str, runs: Sequence[Run]) -> dict[str, Any]:
    """With the cache dtype that the server states, where the architecture has it."""
    stated = {_DTYPES.get(str(server_cache(run).get("cache_dtype"))) for run in runs}
    dtype = stated.pop() if len(stated) == 1 else None
    if dtype is not None:
        try:
            return model_report(name_or_path, dtype=dtype)
        except UsageError:
            pass
    return model_report(name_or_path)


def _other_dtypes(shown: str, runs: Sequence[Run]) -> list[str]:
    """Said where the server states a cache dtype and the figures are of another."""
    stated = {str(dtype) for run in runs if (dtype := server_cache(run).get("cache_dtype")) not in (None, "auto")}
    other = sorted(dtype for dtype in stated if _DTYPES.get(dtype, dtype) != shown)
    return [f"the server states a cache of {', '.join(other)}: the figures beside it are of {shown}"] if other else []


def _is_bytes(estimate: Estimate) -> bool:
    return estimate.unit in ("bytes/token", "bytes/session")


def _measured(estimate: Estimate, model: dict[str, Any], layouts: list[dict[str, Any]]) -> dict[str, Any]:
    of = "bytes_per_token" if estimate.unit == "bytes/token" else "bytes_per_session"
    figures: dict[str, tuple[float, float]] = {"architecture": (float(model[of]), 0.0)}
    if of == "bytes_per_token":
        if model["claimed"] is not None:
            figures["claimed"] = (float(model["claimed"]["bytes_per_token"]), CLAIM_ROUNDED)
        for layout in layouts:
            figures[f"{layout['engine']}, {layout['layout']}"] = (float(layout["bytes_per_token"]), 0.0)
    return {
        "name": estimate.name,
        "of": of,
        "value": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "within": [name for name, (figure, slack) in figures.items() if _holds(estimate, figure, slack)],
        "off": {
            name: None if not figure or estimate.value is None else estimate.value / figure - 1
            for name, (figure, slack) in figures.items()
            if not _holds(estimate, figure, slack)
        },
    }


def _holds(estimate: Estimate, figure: float, slack: float) -> bool:
    low, high = estimate.low, estimate.high
    return (low is None or low - slack <= figure) and (high is None or figure <= high + slack)
