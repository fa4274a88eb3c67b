"""Read a plan's profile, lay the options over it, and refuse what cannot be, with file, line and field."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec

from kvbench.analysis.planning.fields import Amount, Profile
from kvbench.analysis.planning.source import Source
from kvbench.errors import InputError, KvbenchError

TOKENS_AT_MOST = 10**12
BYTES_AT_MOST = 10**16
_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
    f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)
}
_AMOUNT = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+]?[0-9]{1,2})?)\s*([A-Za-z]*?)\s*(/s)?\s*")


def load_plan(path: Path | None, options: Mapping[str, Any]) -> tuple[Profile, Source]:
    """The profile with the options in it, by field ("memory.kv"), and where each field was set.

    Raises InputError for the file and UsageError for an option: a field that is not known, of another type, or out of
    range, and fields that contradict each other.
    """
    given = {field: value for field, value in options.items() if value is not None}
    text, table = ("", {}) if path is None else _read(path)
    source = Source(path, text, given)
    for field, value in given.items():
        name, key = field.split(".")
        below = table.setdefault(name, {})
        if isinstance(below, dict):
            below[key] = value
    try:
        profile = msgspec.convert(table, Profile)
    except msgspec.ValidationError as error:
        raise _explained(error, source) from None
    _check(profile, source)
    return profile, source


def amount(source: Source, field: str, given: Amount, *, least: int = 1) -> int:
    """Whole bytes of a number, or of a text with a unit; a rate may end in /s."""
    if isinstance(given, str):
        found = _AMOUNT.fullmatch(given)
        unit = 1 if found is None or not found[2] else _UNITS.get(found[2])
        if found is None or unit is None:
            raise source.wrong(
                field,
                f"{given!r} is no number of bytes; allowed: 40e9, 40_000_000_000, or with one of "
                f"{', '.join(_UNITS)}, as 80 GiB",
            )
        exact = int(Fraction(found[1].replace("_", "")) * unit)
    else:
        exact = int(given) if math.isfinite(given) else -1
    if not least <= exact <= BYTES_AT_MOST:
        raise source.wrong(field, f"{given} is not allowed: from {least} to {BYTES_AT_MOST:.0e} bytes")
    return exact


# -------------------------------------------------------------------------------------------------------- reading


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = path.read_bytes().decode("utf-8")
        return text, tomllib.loads(text, parse_float=Decimal)
    except OSError as error:
        hint = "kvbench plan PROFILE.toml; docs/plan.md describes it"
        raise InputError(f"cannot be read: {error.strerror}", path=path, hint=hint) from None
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 at byte {error.start}", path=path) from None
    except (tomllib.TOMLDecodeError, ValueError) as error:
        line = re.search(r"\(at line (\d+), column \d+\)", str(error))
        message = re.sub(r" \(at .*\)$", "", str(error))
        number = int(line[1]) if line else len(text.splitlines())
        raise InputError(f"not valid TOML: {message}", path=path, line=number) from None


def _explained(error: msgspec.ValidationError, source: Source) -> KvbenchError:
    what, _, where = str(error).partition(" - at `$")
    field = where.strip("`.").replace("[...]", "")
    named = re.search(r"(?:unknown|missing required) field `(.*)`", what)
    if named is None:
        what = re.sub(r"\bdecimal\b", "float", what.replace("`", "").replace(" | null", ""))
        return source.wrong(field or "profile", what.replace("Expected", "expected", 1))
    full = f"{field}.{named[1]}" if field else named[1]
    if "missing" in what:
        return source.wrong(full, "missing")
    return source.wrong(full, f"unknown field; allowed here: {', '.join(_allowed(field))}")


def _allowed(field: str) -> list[str]:
    """Names of the fields of a table, or of the tables."""
    info = msgspec.inspect.type_info(Profile)
    for step in re.sub(r"\[\d+\]", "", field).split(".") if field else ():
        assert isinstance(info, msgspec.inspect.StructType)
        info = next(f.type for f in info.fields if f.encode_name == step)
        if isinstance(info, msgspec.inspect.VarTupleType):
            info = info.item_type
        if isinstance(info, msgspec.inspect.UnionType):
            info = next(kind for kind in info.types if isinstance(kind, msgspec.inspect.StructType))
    assert isinstance(info, msgspec.inspect.StructType)
    return [f.encode_name for f in info.fields]


# ------------------------------------------------------------------------------------------------------- checking


_RANGES: dict[str, tuple[float | Decimal, float]] = {
    "model.tensor_parallel": (1, 4096),
    "model.bytes_per_token": (Decimal("0.001"), 10**9),
    "model.bytes_per_session": (0, BYTES_AT_MOST),
    "memory.running": (0, TOKENS_AT_MOST),
    "traffic.context": (1, TOKENS_AT_MOST),
    "traffic.new_tokens": (0, TOKENS_AT_MOST),
    "traffic.output_tokens": (0, TOKENS_AT_MOST),
    "traffic.shared_tokens": (0, TOKENS_AT_MOST),
    "traffic.turns": (1, 10**9),
    "traffic.pause_s": (0, 1e9),
    "speed.attention_s_per_token2": (0, 1),
    "replay.tokens": (0, TOKENS_AT_MOST),
    "replay.window_lost": (0, 1),
    "prices.miss": (0, 1e9),
    "prices.hit": (0, 1e9),
    "prices.output": (0, 1e9),
    "prices.wanted": (0, 1e9),
    "task.input_tokens": (0, 10**15),
    "task.output_tokens": (0, 10**15),
    "task.hit_rate": (0, 1),
}
_ABOVE_0 = {
    "traffic.residence_s": 1e9,
    "speed.prefill_tokens_per_s": 1e12,
    "speed.decode_tokens_per_s": 1e12,
    "speed.tpot_s": 1e6,
    "replay.window_ttl_s": 1e9,
}


def _check(profile: Profile, source: Source) -> None:
    for field, (low, high) in _RANGES.items():
        value = _value(profile, field)
        # an ordered comparison with a Decimal that is no number raises
        if value is not None and (value != value or not low <= value <= high):
            raise source.wrong(field, f"{value} is not allowed: from {low:g} to {high:,.12g}")
    for field, high in _ABOVE_0.items():
        value = _value(profile, field)
        if value is not None and not 0 < value <= high:
            raise source.wrong(field, f"{value} is not allowed: above 0, to {high:,.12g}")
    _check_memory(profile, source)
    _check_traffic(profile, source)
    _check_tiers(profile, source)
    _check_prices(profile, source)


def _value(profile: Profile, field: str) -> Any:
    table, key = field.split(".")
    found = getattr(profile, table)
    return None if found is None else getattr(found, key)


def _check_memory(profile: Profile, source: Source) -> None:
    model, memory = profile.model, profile.memory
    terms = [name for name in ("hbm", "weights", "activations", "reserve") if getattr(memory, name) is not None]
    if memory.kv is not None and terms:
        raise source.wrong(
            f"memory.{terms[0]}", "memory.kv is given too, which says what these would give: one of both"
        )
    for name in ("hbm", "weights", "activations", "reserve") if terms else ():
        if name not in terms:
            raise source.wrong(
                f"memory.{name}",
                f"missing beside {', '.join(terms)}: what is not said is not taken as 0",
                "write 0 where there is none",
            )
    if model.name is None and (model.bytes_per_token is None) != (model.bytes_per_session is None):
        missing = "bytes_per_token" if model.bytes_per_token is None else "bytes_per_session"
        raise source.wrong(f"model.{missing}", "missing: without a model's name both say what a session holds")
    if model.name is None and model.tensor_parallel != 1:
        raise source.wrong("model.tensor_parallel", "a model's name is missing: bytes that are given are one rank's")


def _check_traffic(profile: Profile, source: Source) -> None:
    traffic, replay = profile.traffic, profile.replay
    if traffic.trace is not None:
        for name in ("context", "new_tokens", "output_tokens", "turns", "pause_s"):
            if getattr(traffic, name) is not None:
                raise source.wrong(f"traffic.{name}", "a trace is given too, which says it: one of both")
    elif traffic.format is not None:
        raise source.wrong("traffic.format", "there is no trace")
    context = traffic.context
    for name in ("new_tokens", "output_tokens", "shared_tokens"):
        value = getattr(traffic, name)
        if context is not None and value is not None and value > context:
            raise source.wrong(f"traffic.{name}", f"{value:,} is more than the context, {context:,} tokens")
    if context is not None and context < (traffic.new_tokens or 0) + (traffic.output_tokens or 0):
        raise source.wrong(
            "traffic.new_tokens",
            f"{traffic.new_tokens:,} and an answer of {traffic.output_tokens:,} are more than the context, {context:,}",
        )
    if replay.window_lost is not None and replay.window_ttl_s is not None:
        raise source.wrong("replay.window_lost", "window_ttl_s is given too, which says it by the pauses: one of both")
    if replay.window_ttl_s is not None and traffic.trace is None:
        raise source.wrong("replay.window_ttl_s", "there is no trace whose pauses it could be held against")


def _check_tiers(profile: Profile, source: Source) -> None:
    seen = {"hbm"}
    for i, tier in enumerate(profile.tier):
        if not tier.name.strip() or tier.name.lower() in seen:
            raise source.wrong(
                f"tier[{i}].name", f"{tier.name!r} is not allowed: a name, another one for each, not HBM"
            )
        seen.add(tier.name.lower())
        amount(source, f"tier[{i}].bytes", tier.bytes)
        amount(source, f"tier[{i}].bytes_per_s", tier.bytes_per_s)
        if not 0 <= tier.latency_s <= 1e6:
            raise source.wrong(f"tier[{i}].latency_s", f"{tier.latency_s} is not allowed: 0 or more, in seconds")


def _check_prices(profile: Profile, source: Source) -> None:
    prices = profile.prices
    if prices is None:
        return
    rates = [name for name in ("miss", "hit", "output") if getattr(prices, name) is not None]
    if prices.book is None:
        for name in ("model", "at"):
            if getattr(prices, name) is not None:
                raise source.wrong(f"prices.{name}", "there is no price book to look it up in", "book = deepseek")
        for name in ("miss", "hit", "output", "currency"):
            if getattr(prices, name) is None:
                raise source.wrong(
                    f"prices.{name}", "missing: miss, hit, output and currency, or a book, a model and a date"
                )
    elif rates:
        raise source.wrong(f"prices.{rates[0]}", "a book is given too, which says it: one of both")
    elif prices.model is None:
        raise source.wrong("prices.model", "missing: whose row of the book it is")
