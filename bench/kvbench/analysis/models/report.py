"""The whole account of one model, as the object that `kvbench model --json` prints and that the terminal shows."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from kvbench.analysis.models import ModelBytes, bytes_model, catalogue, find, of_row
from kvbench.analysis.models.catalogue import Row
from kvbench.analysis.models.layouts import Layout, allocated
from kvbench.analysis.models.numbers import plain
from kvbench.errors import UsageError

RANKS_AT_MOST = 4096
CONTEXT_AT_MOST = 10**9


def model_report(
    name_or_path: str, *, dtype: str = "auto", ranks: int = 1, context: int | None = None
) -> dict[str, Any]:
    """Claimed, architectural and allocated figures of a model side by side, never one number, and how they come about.

    bytes_per_token and bytes_per_session are the architecture's, on a single copy of the model; whole numbers are
    ints. tensor_parallel: what one of `ranks` holds, and all of them together. context: a session of so many tokens.
    Raises InputError (the config), UsageError (a dtype or a number of ranks it cannot have).
    """
    if not 1 <= ranks <= RANKS_AT_MOST:
        raise UsageError(f"--tp {ranks} is not allowed: from 1 to {RANKS_AT_MOST:,}")
    if context is not None and not 1 <= context <= CONTEXT_AT_MOST:
        raise UsageError(f"--context {context} is not allowed: from 1 to {CONTEXT_AT_MOST:,} tokens")
    found = find(name_or_path)
    row = found if isinstance(found, Row) else None
    model = bytes_model(name_or_path, dtype)
    layouts, remark = allocated(model)
    rank = model.per_rank(ranks)
    return {
        "name": model.name,
        "title": row.title if row else None,
        "model_type": model.model_type,
        "architecture": model.architecture,
        "cache_dtype": model.cache_dtype,
        "bytes_per_token": plain(model.bytes_per_token),
        "bytes_per_session": plain(model.bytes_per_session),
        "claimed": _claimed(row),
        "allocated": [_layout(layout, model, rank) for layout in layouts],
        "allocated_remark": remark,
        "parts": [
            {
                "label": part.label,
                "kind": part.kind,
                "layers": part.layers,
                "bytes_per_token": plain(part.per_token),
                "bytes_per_session": plain(part.per_session),
                "window_tokens": part.window or None,
                "split_over": part.units,
            }
            for part in model.parts
        ],
        "derivation": [
            {"text": step.text, "value": None if step.value is None else plain(step.value), "unit": step.unit}
            for step in model.steps
        ],
        "fields": model.fields,
        "assumed": list(model.assumed) + _row_assumed(row, dtype),
        "tensor_parallel": {
            "ranks": ranks,
            "bytes_per_token_per_rank": plain(rank.bytes_per_token),
            "bytes_per_session_per_rank": plain(rank.bytes_per_session),
            "bytes_per_token_all_ranks": plain(rank.bytes_per_token * ranks),
            "bytes_per_session_all_ranks": plain(rank.bytes_per_session * ranks),
            "copies_of_token_bytes": _copies(rank.bytes_per_token * ranks, model.bytes_per_token),
            "copies_of_session_bytes": _copies(rank.bytes_per_session * ranks, model.bytes_per_session),
        },
        "context": None if context is None else _context(model, rank, ranks, context),
        "sources": _sources(row, str(found), layouts),
    }


def catalogue_report() -> list[dict[str, Any]]:
    """One line a row of the catalogue, with its figures at the dtype it is served in."""
    lines = []
    for row in catalogue().values():
        model = of_row(row)
        lines.append(
            {
                "name": row.name,
                "title": row.title,
                "architecture": model.architecture,
                "cache_dtype": model.cache_dtype,
                "bytes_per_token": plain(model.bytes_per_token),
                "bytes_per_session": plain(model.bytes_per_session),
                "claimed_bytes_per_token": row.claimed.bytes_per_token if row.claimed else None,
                "source": row.source,
                "status": row.status,
            }
        )
    return lines


def _claimed(row: Row | None) -> dict[str, Any] | None:
    if row is None or row.claimed is None:
        return None
    return {"bytes_per_token": row.claimed.bytes_per_token, "text": row.claimed.text, "source": row.claimed.source}


def _layout(layout: Layout, model: ModelBytes, rank: ModelBytes) -> dict[str, Any]:
    """A page is split as its rows are: padded pages are those of rows that every rank holds in full."""
    share = rank.bytes_per_token / model.bytes_per_token
    return {
        "engine": layout.engine,
        "layout": layout.layout,
        "bytes_per_token": plain(layout.bytes_per_token),
        "bytes_per_token_per_rank": plain(layout.bytes_per_token * share),
        "page_bytes": layout.page_bytes,
        "block_tokens": layout.block_tokens,
        "derivation": list(layout.lines),
        "source": layout.source,
    }


def _row_assumed(row: Row | None, dtype: str) -> list[str]:
    if row is None or dtype != "auto" or row.cache_dtype is None:
        return []
    return [f"cache dtype {row.cache_dtype}: {row.cache_dtype_source}"]


def _copies(held: Fraction, one: Fraction) -> int | float | None:
    return plain(held / one) if one else None


def _context(model: ModelBytes, rank: ModelBytes, ranks: int, tokens: int) -> dict[str, Any]:
    windows = [part.window for part in model.parts if part.kind == "window"]
    return {
        "tokens": tokens,
        "bytes": plain(model.at(tokens)),
        "bytes_per_rank": plain(rank.at(tokens)),
        "bytes_all_ranks": plain(rank.at(tokens) * ranks),
        "windows_filled": all(tokens >= window for window in windows),
        "share_of_session_bytes": float(1 - model.bytes_per_token * tokens / model.at(tokens)),
    }


def _sources(row: Row | None, path: str, layouts: tuple[Layout, ...]) -> list[dict[str, Any]]:
    if row is None:
        sources = [{"what": "config", "source": path, "status": "read"}]
    else:
        sources = [{"what": "config", "source": row.source, "status": row.status}]
        if row.claimed is not None:
            sources.append({"what": "claimed", "source": row.claimed.source, "status": "quoted"})
    for source in dict.fromkeys(layout.source for layout in layouts):
        sources.append({"what": "allocated", "source": source, "status": "computed by its rule"})
    return sources
