"""What an architecture implies for the KV cache: bytes a token (m) and bytes a session (F), from a config.json.

`bytes_model(name_or_path)` is what other parts of kvbench use; report.py makes the whole account of one model.
"""

from __future__ import annotations

from pathlib import Path

from kvbench.analysis.models.architectures import model_bytes
from kvbench.analysis.models.catalogue import Row, catalogue, find
from kvbench.analysis.models.fields import load_config
from kvbench.analysis.models.parts import ModelBytes, Part, Step

__all__ = ["ModelBytes", "Part", "Row", "Step", "bytes_model", "catalogue", "find", "of_row"]


def bytes_model(name_or_path: str, dtype: str = "auto") -> ModelBytes:
    """bytes_per_token and bytes_per_session of a catalogue row, or of the config.json at a path.

    dtype: of the cache; auto is what the row is served in, or what the config says. Raises InputError and UsageError
    with what is wrong, where, and what is allowed.
    """
    found = find(name_or_path)
    if isinstance(found, Row):
        return of_row(found, dtype)
    return model_bytes(load_config(found), _name(found), str(found), dtype)


def _name(path: Path) -> str:
    """A config.json is called after its directory."""
    if path.is_dir() or path.name == "config.json":
        return (path if path.is_dir() else path.parent).resolve().name
    return path.stem


def of_row(row: Row, dtype: str = "auto") -> ModelBytes:
    asked = row.cache_dtype if dtype == "auto" and row.cache_dtype else dtype
    return model_bytes(row.config, row.name, f"catalogue: {row.name}", asked)
