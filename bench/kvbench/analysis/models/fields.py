"""A model's config.json, read field by field: what is missing, of another type or not allowed is refused by name.

Every field that a derivation uses is kept with its value, and every value that the config leaves to the architecture's
own default is kept apart, so that a reader can tell the two.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvbench.errors import InputError

MAX_CONFIG_BYTES = 16 * 2**20
MAX_COUNT = 10**9
"""No size in a config comes near it; what exceeds it is a mistake."""

WEIGHT_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}

MAX_LAYERS = 10_000

_ADD = "add it as the model's published config.json has it"


class Config:
    """One config: `data` is the object that has the language model's fields, `prefix` where it stands in the file."""

    def __init__(self, data: dict[str, Any], path: str, outer: dict[str, Any] | None = None, prefix: str = "") -> None:
        self.data = data
        self.path = path
        self.prefix = prefix
        self.outer = outer if outer is not None else data
        self.used: dict[str, Any] = {}
        self.assumed: list[str] = []

    def refuse(self, field: str, message: str, *, hint: str | None = None) -> InputError:
        return InputError(message, path=self.path, field=f"{self.prefix}{field}", hint=hint)

    def has(self, field: str) -> bool:
        """Given, and not null."""
        return self.data.get(field) is not None

    def count(self, field: str, *, least: int = 1, default: int | None = None, why: str | None = None) -> int:
        """A whole number, at least `least`. Missing: `default`, told as `why`; refused without a default."""
        value = self.data.get(field)
        if value is None:
            if default is None:
                raise self.refuse(field, "missing", hint=_ADD)
            self.assumed.append(f"{field} {default}: {why or 'not in the config; the default of this architecture'}")
            return default
        checked = self._whole(field, value, least)
        self.used[f"{self.prefix}{field}"] = checked
        return checked

    def layers(self) -> int:
        """num_hidden_layers; lists as long as it are made."""
        layers = self.count("num_hidden_layers")
        if layers > MAX_LAYERS:
            raise self.refuse("num_hidden_layers", f"{layers} is not allowed: from 1 to {MAX_LAYERS:,}")
        return layers

    def _whole(self, field: str, value: Any, least: int) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refuse(field, f"{shown(value)} is not a whole number")
        if not least <= value <= MAX_COUNT:
            raise self.refuse(field, f"{shown(value)} is not allowed: from {least} to {MAX_COUNT:,}")
        return value

    def flag(self, field: str, default: bool) -> bool:
        value = self.data.get(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(field, f"{shown(value)} is neither true nor false")
        self.used[f"{self.prefix}{field}"] = value
        return value

    def counts(self, field: str, *, least: int = 0) -> list[int]:
        """A list of whole numbers, at least `least` each."""
        values = self._list(field)
        checked = [self._whole(f"{field}[{i}]", value, least) for i, value in enumerate(values)]
        self.used[f"{self.prefix}{field}"] = checked
        return checked

    def words(self, field: str, allowed: tuple[str, ...]) -> list[str]:
        """A list of words out of `allowed`."""
        values = self._list(field)
        for i, value in enumerate(values):
            if value not in allowed:
                raise self.refuse(f"{field}[{i}]", f"{shown(value)} is not known; known: {', '.join(allowed)}")
        self.used[f"{self.prefix}{field}"] = values
        return values

    def _list(self, field: str) -> list[Any]:
        value = self.data.get(field)
        if value is None:
            raise self.refuse(field, "missing", hint=_ADD)
        if not isinstance(value, list):
            raise self.refuse(field, f"{shown(value)} is not a list")
        return value

    def inside(self, field: str) -> Config:
        """The object in `field`; what is read of it is kept here."""
        value = self.data.get(field)
        if value is None:
            raise self.refuse(field, "missing", hint=_ADD)
        if not isinstance(value, dict):
            raise self.refuse(field, f"{shown(value)} is not an object")
        inner = Config(value, self.path, self.outer, f"{self.prefix}{field}.")
        inner.used, inner.assumed = self.used, self.assumed
        return inner

    def dtype(self) -> str | None:
        """The weights' dtype by its short name, from `dtype` or `torch_dtype`; None: the config gives none."""
        for data, prefix in ((self.data, self.prefix), (self.outer, "")):
            for field in ("dtype", "torch_dtype"):
                if (value := data.get(field)) is not None:
                    if not isinstance(value, str) or value not in WEIGHT_DTYPES:
                        known = ", ".join(WEIGHT_DTYPES)
                        raise InputError(
                            f"{shown(value)} is not a dtype known here; known: {known}",
                            path=self.path,
                            field=f"{prefix}{field}",
                        )
                    self.used[f"{prefix}{field}"] = value
                    return WEIGHT_DTYPES[value]
        return None


def load_config(path: Path) -> dict[str, Any]:
    """The object in a config.json, or in the config.json of a directory. Raises InputError naming what is wrong."""
    if path.is_dir():
        path = path / "config.json"
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from None
    if len(raw) > MAX_CONFIG_BYTES:
        raise InputError(f"longer than {MAX_CONFIG_BYTES // 2**20} MiB: not a config.json", path=path)
    try:
        value = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=lambda pairs: _unique(pairs, path))
    except UnicodeDecodeError:
        raise InputError("not UTF-8 text, so no config.json", path=path) from None
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {error.msg}, column {error.colno}", path=path, line=error.lineno) from None
    except ValueError:
        raise InputError("has a number of thousands of digits: not a config.json", path=path) from None
    except RecursionError:
        raise InputError("nested too deep for a config.json", path=path) from None
    if not isinstance(value, dict):
        raise InputError("not an object: a model's config.json is one {...}", path=path)
    return value


def _unique(pairs: list[tuple[str, Any]], path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found and found[name] != value:
            raise InputError(
                f"given twice, as {shown(found[name])} and as {shown(value)}",
                path=path,
                field=json.dumps(name)[1:-1][:80],
                hint="keep the one that is right",
            )
        found[name] = value
    return found


def shown(value: Any) -> str:
    """A value of the file for an error: as JSON, in ASCII, not too long."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
