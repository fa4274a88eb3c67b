"""The rows of the catalogue: configs of known models, in catalogue/*.toml. Figures are computed from them, not stored.

A row says where its config is from and whether it was read there (`known`) or is written down from memory.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import msgspec

from kvbench.errors import InputError

FROM_MEMORY = "from memory, check against a config.json"


class Claimed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the vendor says, in the vendor's precision."""

    bytes_per_token: int | float
    source: str
    text: str | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model. cache_dtype: what its KV is served in; None: as its config says."""

    name: str
    title: str
    source: str
    status: Literal["known", "from memory, check against a config.json"]
    config: dict[str, Any]
    cache_dtype: str | None = None
    cache_dtype_source: str | None = None
    claimed: Claimed | None = None


@cache
def catalogue() -> dict[str, Row]:
    """All rows by name, in order of name. One object for all callers: it is read, not changed."""
    rows = {}
    for file in sorted((resources.files(__package__) / "catalogue").iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".toml"):
            row = msgspec.convert(tomllib.loads(file.read_text("utf-8")), Row)
            rows[row.name] = row
    return rows


def find(name_or_path: str) -> Row | Path:
    """The row of that name, else the path of a config.json or of a directory that has one.

    Raises InputError naming the rows where it is neither.
    """
    rows = catalogue()
    if name_or_path in rows:
        return rows[name_or_path]
    path = Path(name_or_path)
    try:
        if name_or_path and path.exists():
            return path
    except (OSError, ValueError):
        raise InputError("not a usable file name", path=name_or_path[:200]) from None
    raise InputError(
        "no model of that name in the catalogue, and no such file",
        path=name_or_path,
        hint=f"models: {', '.join(rows)}; or give a model's config.json",
    )
