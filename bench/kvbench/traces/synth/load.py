"""Read a recipe, a TOML file or a bundled one's name; what is wrong names file, line, field and what is allowed."""

from __future__ import annotations

import re
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from kvbench.errors import InputError
from kvbench.traces.synth.doubts import doubts, found
from kvbench.traces.synth.fields import AgentsRecipe, BlocksRecipe, Recipe

_FAMILIES: dict[str, type[AgentsRecipe] | type[BlocksRecipe]] = {"agents": AgentsRecipe, "blocks": BlocksRecipe}
_WHERE = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<field>.*)`)?$", re.DOTALL)
_MOST_BASES = 8


def bundled_recipes() -> dict[str, Path]:
    """Recipes that come with kvbench, by name."""
    folder = Path(str(resources.files("kvbench") / "workloads"))
    return {path.stem: path for place in (folder, folder / "recipes") for path in sorted(place.glob("*.toml"))}


def resolve_recipe(name: str) -> Path:
    """Path of the file `name`, or of the bundled recipe of that name. Raises InputError that lists the bundled ones."""
    path = Path(name)
    try:
        if name and path.is_file():
            return path
    except (OSError, ValueError):
        raise InputError("not a usable file name", path=name[:200]) from None
    bundled = bundled_recipes()
    if name.removesuffix(".toml") in bundled:
        return bundled[name.removesuffix(".toml")]
    what = "a directory, not a recipe" if name and path.is_dir() else "no such file, and no bundled recipe of that name"
    raise InputError(what, path=name, hint=f"bundled recipes: {', '.join(sorted(bundled)) or 'none'}")


def load_recipe(path: Path) -> Recipe:
    """The recipe in `path`, with those it extends. Raises InputError: file, line where it is found, field."""
    texts: list[tuple[Path, str]] = []
    table = _read(path, texts)
    kind = _FAMILIES.get(table["family"]) if isinstance(table.get("family"), str) else None
    if kind is None:
        raise _wrong(texts, "family", f"one of {', '.join(_FAMILIES)}" + found(table.get("family")))
    try:
        recipe = msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise _explained(error, table, kind, texts) from None
    for field, message in doubts(recipe):
        raise _wrong(texts, field, message)
    return recipe


def _read(path: Path, texts: list[tuple[Path, str]]) -> dict[str, Any]:
    """The TOML table of a file, laid over that of the recipe it extends; `texts` gets the files, this one first."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not UTF-8"
        raise InputError(f"cannot be read as a recipe: {reason}", path=path) from None
    texts.append((path, text))
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))
        raise InputError(f"no valid TOML: {error}", path=path, line=int(line[1]) if line else None) from None
    base = table.pop("extends", None)
    if base is None:
        return table
    if not isinstance(base, str):
        raise _wrong(texts, "extends", "the name of a bundled recipe, or a file beside this one" + found(base))
    below = _base_path(path, base, texts)
    if len(texts) >= _MOST_BASES or below.resolve() in {known.resolve() for known, _ in texts}:
        raise _wrong(texts[:1], "extends", f'"{base}" extends this recipe again')
    return _laid_over(_read(below, texts), table)


def _base_path(path: Path, base: str, texts: list[tuple[Path, str]]) -> Path:
    try:
        beside = path.parent / base
        return beside if beside.is_file() else resolve_recipe(base)
    except (InputError, ValueError) as error:
        message = f'no file "{base}" beside it, and no bundled recipe of that name'
        raise _wrong(texts, "extends", message, hint=getattr(error, "hint", None)) from None


def _laid_over(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """Tables are joined field by field; everything else (lists too) is replaced."""
    out = dict(base)
    for key, value in top.items():
        before = out.get(key)
        joined = isinstance(before, dict) and isinstance(value, dict) and not _is_draw(value)
        out[key] = _laid_over(before, value) if joined else value  # type: ignore[arg-type]
    return out


def _is_draw(value: dict[str, Any]) -> bool:
    """A distribution replaces another as a whole: half of each is neither."""
    return bool(value.keys() & {"median", "range", "values", "quantiles", "median_s"})


# ------------------------------------------------------------------------------------------------ what is wrong


def _wrong(texts: list[tuple[Path, str]], field: str, message: str, hint: str | None = None) -> InputError:
    for path, text in texts:
        line = _line_of(text, field)
        if line is not None:
            return InputError(message, path=path, line=line, field=field, hint=hint)
    return InputError(message, path=texts[0][0], field=field, hint=hint)


def _explained(
    error: msgspec.ValidationError, table: dict[str, Any], kind: type[msgspec.Struct], texts: list[tuple[Path, str]]
) -> InputError:
    match = _WHERE.match(str(error))
    assert match is not None
    what, field = match["what"], _full_path(match["field"] or "", table, kind, str(error))
    info = _type_at(kind, field)
    allowed = sorted(f.encode_name for f in info.fields) if isinstance(info, inspect.StructType) else []
    if unknown := re.search(r"unknown field `(.*)`", what):
        name = f"{field}.{unknown[1]}" if field else unknown[1]
        return _wrong(texts, name, "unknown field", hint=f"allowed here: {', '.join(allowed)}")
    if missing := re.search(r"missing required field `(.*)`", what):
        return _wrong(texts, f"{field}.{missing[1]}" if field else missing[1], "missing")
    if isinstance(info, inspect.LiteralType) or "enum value" in what:
        literal = next((t for t in _members(info) if isinstance(t, inspect.LiteralType)), None)
        if literal is not None:
            return _wrong(
                texts, field, f"one of {', '.join(map(str, literal.values))}" + found(_value_at(table, field))
            )
    what = what.replace("`float | object | array`", "a number, a distribution or a list of them")
    what = what.replace("`float | object`", "a number or a distribution")
    return _wrong(texts, field or "recipe", what.replace("`", "").replace("Expected", "expected", 1))


def _full_path(field: str, table: dict[str, Any], kind: type[msgspec.Struct], message: str) -> str:
    """The decoder does not say which key of a table of names it was: try them one at a time."""
    if "[...]" not in field:
        return field
    outer, _, inner = field.partition("[...]")
    names = _value_at(table, outer)
    for name in names if isinstance(names, dict) else ():
        alone = _with_value(table, outer.split("."), {name: names[name]})
        try:
            msgspec.convert(alone, kind)
        except msgspec.ValidationError as error:
            if str(error) == message:
                return f"{outer}.{name}{inner}"
    return f"{outer}{inner}"


def _with_value(table: dict[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    head, *rest = path
    return {**table, head: _with_value(table[head], rest, value) if rest else value}


def _steps(field: str) -> list[str | int]:
    return [int(part[1:-1]) if part.startswith("[") else part for part in re.findall(r"\[\d+\]|[^.\[\]]+", field)]


def _value_at(table: Any, field: str) -> Any:
    for step in _steps(field):
        try:
            table = table[step]
        except (KeyError, IndexError, TypeError):
            return None
    return table


def _members(info: inspect.Type | None) -> list[inspect.Type]:
    return list(info.types) if isinstance(info, inspect.UnionType) else [info] if info is not None else []


def _type_at(kind: type[msgspec.Struct], field: str) -> inspect.Type | None:
    """The type that a recipe has at a path; of a union the struct in it, if there is one."""
    info: inspect.Type | None = inspect.type_info(kind)
    for step in _steps(field):
        found: inspect.Type | None = None
        for member in _members(info):
            if isinstance(member, inspect.StructType):
                found = next((f.type for f in member.fields if f.encode_name == step), found)
            elif isinstance(member, inspect.DictType):
                found = member.value_type
            elif isinstance(member, inspect.VarTupleType):
                found = member.item_type
        info = found
    structs = [member for member in _members(info) if isinstance(member, inspect.StructType)]
    return structs[0] if structs else info


def _line_of(text: str, field: str) -> int | None:
    """The line where a field stands: in its table's part of the file, or written with dots or in a table of one line.

    A search by eye, not a parser: text that looks like TOML in a long string may be taken for it.
    """
    steps = _steps(field)
    names = [step for step in steps if isinstance(step, str)]
    lines = text.splitlines()
    best: int | None = None
    for depth in range(len(names), -1, -1):
        for start in _headers(lines, names[:depth], steps):
            key = names[depth] if depth < len(names) else None
            if key is None:
                return start + 1
            end = next((i for i in range(start + 1, len(lines)) if lines[i].startswith("[")), len(lines))
            pattern = re.compile(rf"\s*\"?{re.escape(key)}\"?\s*[=.]")
            for i in range(start, end):
                if pattern.match(lines[i]):
                    return i + 1
            best = best if best is not None or not depth else start + 1
    return best


def _headers(lines: list[str], names: list[str], steps: list[str | int]) -> list[int]:
    if not names:
        return [0] if lines else []
    wanted = re.compile(rf"\[\[?\s*{re.escape('.'.join(names))}\s*\]\]?\s*(#.*)?$")
    found = [i for i, line in enumerate(lines) if wanted.match(line)]
    number = next((step for step in steps if isinstance(step, int)), None)
    if number is not None and len(found) > 1 and number < len(found):
        return [found[number]]
    return found[:1]
