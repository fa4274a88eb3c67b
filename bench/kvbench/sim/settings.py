"""Presets with settings laid over them: what somebody asks for, checked, and what is said of each parameter."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from decimal import Decimal
from urllib.parse import unquote

import msgspec

from kvbench.errors import UsageError
from kvbench.sim.checks import check_bytes_per_token, check_together
from kvbench.sim.parameters import Preset
from kvbench.sim.presets import DEFAULT_PRESET, PRESETS

_MOST_MONEY = 10**9
_NOT_SETTABLE = frozenset({"name", "description", "known", "assumed"})


def settable() -> dict[str, str]:
    """Parameter names that `--set` takes, each with its unit."""
    return {name: unit for name, (unit, _) in _described().items()}


def resolve_preset(name: str, settings: Mapping[str, object] | None = None) -> Preset:
    """The preset called `name` with `settings` laid over it; values may be text. UsageError names the parameter.

    A pool whose size is stated in bytes has the blocks that fit; one whose num_blocks are set is no longer sized so.
    """
    if name not in PRESETS:
        raise UsageError(
            f"no simulated endpoint is called {name!r}; there are: {', '.join(PRESETS)}",
            hint=f"--endpoint sim alone takes {DEFAULT_PRESET}",
        )
    units = settable()
    given = dict(settings or {})
    for key in given:
        if key not in units:
            close = difflib.get_close_matches(key, units, 3)
            raise UsageError(
                f"a simulated endpoint has no parameter {key!r}; there are: {', '.join(units)}",
                hint=f"close to it: {', '.join(close)}" if close else "docs/sim.md says what each does",
            )
    values = {**msgspec.structs.asdict(PRESETS[name]), **given}
    if "num_blocks" in given and "pool_bytes" not in given:
        values["pool_bytes"] = None
    try:
        preset = msgspec.convert(values, Preset, strict=False)
    except msgspec.ValidationError as error:
        key = str(error).rpartition("`$.")[2].rstrip("`")
        raise UsageError(f"{key} = {given.get(key)} [{units.get(key, '')}]: {_why(key, str(error))}") from None
    for key in given:
        value = getattr(preset, key)
        if (isinstance(value, float) and math.isnan(value)) or (isinstance(value, Decimal) and value.is_nan()):
            raise UsageError(f"{key} = {given[key]} [{units[key]}]: not a number")
        if isinstance(value, Decimal) and not 0 <= value < _MOST_MONEY:
            raise UsageError(f"{key} = {given[key]} [{units[key]}]: expected 0 up to {_MOST_MONEY}")
    preset = _sized(preset, given)
    check_together(preset)
    # A value somebody set is no longer the one that was measured, documented or argued for.
    changed = given.keys() | {
        key for key in ("num_blocks", "pool_bytes") if getattr(preset, key) != getattr(PRESETS[name], key)
    }
    return msgspec.structs.replace(
        preset,
        known={key: source for key, source in preset.known.items() if key not in changed},
        assumed={key: reason for key, reason in preset.assumed.items() if key not in changed},
    )


def parameters(preset: Preset) -> list[dict[str, object]]:
    """Every parameter: name, value, unit, what it does, status (known, assumed or set) and source, where there is
    one."""
    original = PRESETS[preset.name]
    rows: list[dict[str, object]] = []
    for name, (unit, what) in _described().items():
        value = getattr(preset, name)
        source = preset.known.get(name) or preset.assumed.get(name)
        was_set = value != getattr(original, name)
        status = "known" if name in preset.known else "set" if was_set else "assumed"
        row = {"name": name, "value": value, "unit": unit, "what": what, "status": status, "source": source}
        rows.append(row)
    return rows


def _sized(preset: Preset, given: Mapping[str, object]) -> Preset:
    if preset.pool_bytes is None:
        return preset
    if "num_blocks" in given:
        raise UsageError("num_blocks and pool_bytes both say how large the pool is", hint="set one of them")
    if not preset.bytes_per_token:
        raise UsageError(
            f"pool_bytes = {preset.pool_bytes} bytes: bytes_per_token says what a token takes of it, and is 0",
            hint="set bytes_per_token too, or num_blocks instead",
        )
    check_bytes_per_token(preset)
    blocks = int(preset.pool_bytes // preset.block_bytes)
    if blocks < 2:
        raise UsageError(
            f"pool_bytes = {preset.pool_bytes} bytes holds {blocks} blocks of {preset.block_size} tokens of "
            f"{preset.bytes_per_token:g} bytes; at least 2 are needed, one of them the null block",
            hint=f"at least {math.ceil(2 * preset.block_bytes)} bytes",
        )
    return msgspec.structs.replace(preset, num_blocks=blocks)


def parse_settings(items: list[str], where: str = "--set ") -> dict[str, str]:
    """`["num_blocks=129", ...]` as a dict; UsageError where there is no `=`, or two values for one parameter."""
    settings: dict[str, str] = {}
    for item in items:
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            raise UsageError(f"{where}{item}: expected PARAMETER=VALUE, for example num_blocks=1025")
        if settings.setdefault(key, value) != value:
            raise UsageError(f"{where}{item}: {key} has been set to {settings[key]} already", hint="give it once")
    return settings


def parse_endpoint(spec: str) -> tuple[str, dict[str, str]] | None:
    """Preset and settings of `sim[:PRESET][?PARAMETER=VALUE&...]`, escaped as in a URL (%26 for an & inside a value);
    None for anything else. UsageError where the part after the ? is no list of settings; nothing is looked up."""
    address, question, query = spec.partition("?")
    kind, _, preset = address.partition(":")
    if kind != "sim":
        return None
    items = [unquote(item) for item in query.split("&")] if question else []
    return preset or DEFAULT_PRESET, parse_settings(items, f"--endpoint {spec}: ")


def _why(parameter: str, error: str) -> str:
    allowed = names(parameter)
    if allowed:
        return f"expected {', '.join(allowed[:-1])} or {allowed[-1]}"
    if "regex" in error:
        return f"expected: {_described()[parameter][1]}"
    return error.partition(" - at ")[0]


def names(parameter: str) -> tuple[str, ...]:
    """What a parameter may be that is one of a few names; empty for any other."""
    for field in msgspec.structs.fields(Preset):
        info = msgspec.inspect.type_info(field.type)
        if isinstance(info, msgspec.inspect.Metadata):
            info = info.type
        if field.name == parameter and isinstance(info, msgspec.inspect.LiteralType):
            return tuple(map(str, info.values))
    return ()


def _described() -> dict[str, tuple[str, str]]:
    """Unit and meaning by parameter."""
    found = {}
    for field in msgspec.structs.fields(Preset):
        if field.name in _NOT_SETTABLE:
            continue
        info = msgspec.inspect.type_info(field.type)
        for part in info.types if isinstance(info, msgspec.inspect.UnionType) else (info,):
            if isinstance(part, msgspec.inspect.Metadata) and part.extra and part.extra_json_schema:
                found[field.name] = (str(part.extra["unit"]), str(part.extra_json_schema["description"]))
    return found
