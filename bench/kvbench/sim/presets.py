"""What a simulated endpoint is made of: every parameter with its unit, and whether its value is known or assumed."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Literal
from urllib.parse import unquote

import msgspec
from msgspec import Meta

from kvbench.errors import UsageError

DEFAULT_PRESET = "vllm-small"
_MOST_MONEY = 10**9


def _unit(unit: str) -> dict[str, str]:
    return {"unit": unit}


class Preset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model on an engine with a pool of KV blocks. `known` says of the parameters that are documented or were
    measured on the real server where that is; all others are assumed, and `assumed` says what speaks for the value,
    where something does.

    TTFT of a request without load, in seconds, for u uncached and c cached prompt tokens:
        frontend_s + prefill_base_s + prefill_s_per_token * u + prefill_s_per_cached_token * c
        + attention_s_per_token2 * (u * c + u * u / 2)
    The last term is the causal attention of u new tokens over c cached ones and over themselves.
    A decode step of n running requests takes decode_base_s + decode_s_per_request * n.
    """

    name: str
    description: str
    known: dict[str, str] = {}
    assumed: dict[str, str] = {}
    dialect: Annotated[Literal["vllm", "deepseek"], Meta(extra=_unit("name"))] = "vllm"
    model: Annotated[str, Meta(min_length=1, extra=_unit("name"))] = "sim-small"
    block_size: Annotated[int, Meta(ge=1, le=4096, extra=_unit("tokens"))] = 32
    num_blocks: Annotated[int, Meta(ge=2, extra=_unit("blocks, one of them the null block"))] = 62_501
    max_model_len: Annotated[int, Meta(ge=2, extra=_unit("tokens"))] = 131_072
    max_running: Annotated[int, Meta(ge=1, extra=_unit("requests"))] = 256
    max_batched_tokens: Annotated[int, Meta(ge=1, extra=_unit("tokens/step"))] = 2048
    frontend_s: Annotated[float, Meta(ge=0, le=3600, extra=_unit("s"))] = 0.008
    prefill_base_s: Annotated[float, Meta(ge=0, le=3600, extra=_unit("s"))] = 0.012
    prefill_s_per_token: Annotated[float, Meta(ge=0, le=3600, extra=_unit("s/token"))] = 20e-6
    prefill_s_per_cached_token: Annotated[float, Meta(ge=0, le=3600, extra=_unit("s/token"))] = 0.0
    attention_s_per_token2: Annotated[float, Meta(ge=0, le=3600, extra=_unit("s/token^2"))] = 1e-10
    decode_base_s: Annotated[float, Meta(ge=0, le=3600, extra=_unit("s"))] = 0.0079
    decode_s_per_request: Annotated[float, Meta(ge=0, le=3600, extra=_unit("s/request"))] = 0.0001
    idle_ttl_s: Annotated[float, Meta(gt=0, extra=_unit("s, before --time-scale"))] | None = None
    """A block or prefix unit that nobody has used for this long is forgotten; None: only eviction forgets."""
    cache_blocks: Annotated[int, Meta(ge=1, extra=_unit("blocks"))] | None = None
    """Cached blocks kept for reuse after their requests have ended, however large the pool is; None: all it holds."""
    cache_outputs: Annotated[bool, Meta(extra=_unit("true or false"))] = True
    """Generated tokens are cached too; false: only what was sent."""
    recompute_last_token: Annotated[bool, Meta(extra=_unit("true or false"))] = True
    """A prompt is never a hit up to its last token, as that one has to be computed; false: all of it may be."""

    prefix: Annotated[Literal["block", "units"], Meta(extra=_unit("name"))] = "block"
    """What a hit is: whole blocks of the longest cached prefix, or one whole persisted prefix unit (units.py)."""
    unit_granularity_tokens: Annotated[int, Meta(ge=1, le=4096, extra=_unit("tokens"))] = 128
    """Units end at multiples of this; what is left over is not cached."""
    unit_interval_tokens: Annotated[int, Meta(ge=1, extra=_unit("tokens"))] | None = None
    """Units end at multiples of this too, in inputs and outputs; None: at their ends only."""
    unit_build_s: Annotated[float, Meta(ge=0, extra=_unit("s, before --time-scale"))] = 0.0
    """A unit can be hit this long after its tokens were computed."""
    unit_lapse_probability: Annotated[float, Meta(ge=0, le=1, extra=_unit("1"))] = 0.0
    """Best effort: a unit that would be hit turns out to be lost with this probability."""
    unit_lapse_seed: Annotated[int, Meta(ge=0, extra=_unit("seed"))] = 0

    thinking_tokens: Annotated[int, Meta(ge=0, extra=_unit("tokens"))] = 0
    """Length of the reasoning before an answer, unless a request disables it (dialect deepseek)."""
    usage_on: Annotated[Literal["finish", "extra"], Meta(extra=_unit("name"))] = "finish"
    """The chunk that carries a stream's usage: the one with the finish_reason, null on the others; or one of its own
    with no choices, where the request asks for it (dialect deepseek)."""
    keep_alive_s: Annotated[float, Meta(gt=0, le=3600, extra=_unit("s"))] | None = None
    """Between two signs of life to a request that waits (dialect deepseek); None: none is sent."""
    begin_within_s: Annotated[float, Meta(gt=0, le=86400, extra=_unit("s"))] | None = None
    """The connection of a request that is not begun by then is closed (dialect deepseek)."""
    max_in_flight: Annotated[int, Meta(ge=1, extra=_unit("requests"))] | None = None
    """One more is answered with 429 (dialect deepseek)."""
    insufficient_resource_every: Annotated[int, Meta(ge=1, extra=_unit("requests"))] | None = None
    """Each n-th answer ends half way with finish_reason insufficient_system_resource (dialect deepseek)."""
    currency: Annotated[Literal["USD", "CNY"], Meta(extra=_unit("name"))] = "USD"
    granted_balance: Annotated[Decimal, Meta(extra=_unit("of currency"))] = Decimal(0)
    """Spent first."""
    topped_up_balance: Annotated[Decimal, Meta(extra=_unit("of currency"))] = Decimal(0)
    price_hit_per_mtok: Annotated[Decimal, Meta(extra=_unit("of currency/10^6 tokens"))] = Decimal(0)
    price_miss_per_mtok: Annotated[Decimal, Meta(extra=_unit("of currency/10^6 tokens"))] = Decimal(0)
    price_output_per_mtok: Annotated[Decimal, Meta(extra=_unit("of currency/10^6 tokens"))] = Decimal(0)

    @property
    def capacity_tokens(self) -> int:
        """Usable tokens: one block of the pool is the null block."""
        return (self.num_blocks - 1) * self.block_size


_TINY_VLLM = "vLLM 0.32.0 with a tiny model, measured over HTTP"
_GUIDE = "api-docs.deepseek.com, Context Caching"
_PRICING = "api-docs.deepseek.com, Models & Pricing, from 2026-09-10"
_LIMITS = "api-docs.deepseek.com, Rate Limit"
_V41_RUN = "a run of V4.1-Flash on eight H100: 37 ms + 50.5 us/token + 1.34e-10 s/token^2"

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            name="vllm-small",
            description="a small model on one accelerator under vLLM: 2M tokens of KV cache, about 8 ms a token",
        ),
        Preset(
            name="tiny",
            description="a pool of 16,352 tokens, to see eviction, waiting and preemption",
            known=dict.fromkeys(
                ("block_size", "num_blocks", "max_model_len", "max_running", "max_batched_tokens"), _TINY_VLLM
            ),
            model="tiny",
            num_blocks=512,
            max_model_len=8192,
            max_running=16,
            frontend_s=0.002,
            prefill_base_s=0.003,
            prefill_s_per_token=10e-6,
            attention_s_per_token2=5e-9,
            decode_base_s=0.0015,
            decode_s_per_request=0.00006,
        ),
        Preset(
            name="deepseek-api",
            description="the DeepSeek API with deepseek-flash: prefix units, thinking, a balance that goes down",
            known={
                "dialect": "api-docs.deepseek.com, Create Chat Completion",
                "model": "api-docs.deepseek.com, Models & Pricing",
                "prefix": _GUIDE,
                "usage_on": "since 2026-08-27; `extra` is the shape documented before",
                "begin_within_s": _LIMITS,
                "max_in_flight": _LIMITS,
                "price_hit_per_mtok": _PRICING,
                "price_miss_per_mtok": _PRICING,
                "price_output_per_mtok": _PRICING,
            },
            assumed={
                "unit_granularity_tokens": "hit counts seen in public since V4 are multiples of 128; the documented 64 "
                "is of August 2024",
                "unit_interval_tokens": f"{_GUIDE}: there is an interval, its size is not published",
                "unit_build_s": f"{_GUIDE}: `seconds`",
                "idle_ttl_s": f"{_GUIDE}: `a few hours to a few days`; the least of it",
                "unit_lapse_probability": f"{_GUIDE}: `best effort`, no rate is published",
                "recompute_last_token": "not documented; the usage would count the whole unit",
                "max_model_len": "10^6 tokens of context are advertised",
                "frontend_s": _V41_RUN,
                "prefill_base_s": _V41_RUN,
                "prefill_s_per_token": _V41_RUN,
                "attention_s_per_token2": _V41_RUN,
            },
            dialect="deepseek",
            prefix="units",
            model="deepseek-flash",
            block_size=64,
            num_blocks=1_000_001,
            max_model_len=1_000_000,
            max_batched_tokens=8192,
            frontend_s=0.007,
            prefill_base_s=0.030,
            prefill_s_per_token=50.5e-6,
            attention_s_per_token2=1.34e-10,
            decode_base_s=0.012,
            idle_ttl_s=4 * 3600,
            recompute_last_token=False,
            unit_build_s=3.0,
            thinking_tokens=120,
            keep_alive_s=5.0,
            begin_within_s=600,
            max_in_flight=2500,
            granted_balance=Decimal(10),
            topped_up_balance=Decimal(100),
            price_hit_per_mtok=Decimal("0.003"),
            price_miss_per_mtok=Decimal("0.15"),
            price_output_per_mtok=Decimal("0.60"),
        ),
    )
}

_NOT_SETTABLE = frozenset({"name", "description", "known", "assumed"})


def settable() -> dict[str, str]:
    """Parameter names that `--set` takes, each with its unit."""
    return {
        field.name: _field_unit(field.type)
        for field in msgspec.structs.fields(Preset)
        if field.name not in _NOT_SETTABLE
    }


def resolve_preset(name: str, settings: Mapping[str, object] | None = None) -> Preset:
    """The preset called `name` with `settings` laid over it; values may be text. UsageError names the parameter."""
    if name not in PRESETS:
        raise UsageError(
            f"no simulated endpoint is called {name!r}; there are: {', '.join(PRESETS)}",
            hint=f"--endpoint sim alone takes {DEFAULT_PRESET}",
        )
    units = settable()
    given = dict(settings or {})
    for key in given:
        if key not in units:
            raise UsageError(f"a simulated endpoint has no parameter {key!r}; there are: {', '.join(units)}")
    values = {**msgspec.structs.asdict(PRESETS[name]), **given}
    try:
        preset = msgspec.convert(values, Preset, strict=False)
    except msgspec.ValidationError as error:
        key = str(error).rpartition("`$.")[2].rstrip("`")
        raise UsageError(f"{key} = {given.get(key)} [{units.get(key, '')}]: {error}") from None
    for key in given:
        value = getattr(preset, key)
        if isinstance(value, (float, Decimal)) and value != value:
            raise UsageError(f"{key} = {given[key]} [{units[key]}]: not a number")
        if isinstance(value, Decimal) and not 0 <= value < _MOST_MONEY:
            raise UsageError(f"{key} = {given[key]} [{units[key]}]: expected 0 up to {_MOST_MONEY}")
    if preset.max_model_len > preset.capacity_tokens:
        raise UsageError(
            f"max_model_len = {preset.max_model_len} tokens do not fit the pool: (num_blocks - 1) * block_size = "
            f"{preset.capacity_tokens} tokens",
            hint="set max_model_len lower or num_blocks higher",
        )
    _check_units(preset)
    # A value somebody set is no longer the one that was measured, documented or argued for.
    return msgspec.structs.replace(
        preset,
        known={key: source for key, source in preset.known.items() if key not in given},
        assumed={key: reason for key, reason in preset.assumed.items() if key not in given},
    )


def parameters(preset: Preset) -> list[dict[str, object]]:
    """Every parameter: name, value, unit, status (known, assumed or set) and source, where there is one."""
    original = PRESETS[preset.name]
    rows: list[dict[str, object]] = []
    for name, unit in settable().items():
        value = getattr(preset, name)
        source = preset.known.get(name) or preset.assumed.get(name)
        was_set = value != getattr(original, name)
        status = "known" if name in preset.known else "set" if was_set else "assumed"
        rows.append({"name": name, "value": value, "unit": unit, "status": status, "source": source})
    return rows


def _check_units(preset: Preset) -> None:
    interval, granularity = preset.unit_interval_tokens, preset.unit_granularity_tokens
    if interval is not None and interval % granularity:
        raise UsageError(
            f"unit_interval_tokens = {interval} tokens is no multiple of unit_granularity_tokens = {granularity} tokens"
        )


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


def _field_unit(annotation: object) -> str:
    info = msgspec.inspect.type_info(annotation)
    parts = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    for part in parts:
        if isinstance(part, msgspec.inspect.Metadata) and part.extra:
            return str(part.extra["unit"])
    return ""
