"""Write a recipe as TOML: what load.py reads."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from kvbench.traces.synth.fields import BlocksRecipe


def recipe_toml(recipe: BlocksRecipe) -> str:
    """The recipe without what it leaves at its default. Reading it gives an equal recipe."""
    given = _given(recipe)
    kinds = {name: given.pop(name) for name in ("root", "sub_agent") if name in given}
    lines = ['family = "blocks"', *_lines(given)]
    for name, kind in kinds.items():
        lines += ["", f"[{name}]", *_lines(kind)]
    return "\n".join(lines) + "\n"


def _lines(table: dict[str, Any]) -> list[str]:
    out = []
    for name, value in table.items():
        many = isinstance(value, list) and value and isinstance(value[0], dict)
        if many:
            out += [f"{name} = [", *(f"  {_value(item)}," for item in value), "]"]
        else:
            out.append(f"{name} = {_value(value)}")
    return out


def _given(value: Any) -> Any:
    """Structs as tables of the fields that are not their default."""
    if isinstance(value, msgspec.Struct):
        return {
            field.encode_name: _given(getattr(value, field.name))
            for field in msgspec.structs.fields(value)
            if field.required or getattr(value, field.name) != field.default
        }
    return [_given(item) for item in value] if isinstance(value, tuple) else value


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_value(item)}" for name, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return repr(value)
