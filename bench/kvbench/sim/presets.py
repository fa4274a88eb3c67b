"""What a simulated endpoint is made of: every parameter with its unit, and whether its value is known or assumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from kvbench.errors import UsageError

DEFAULT_PRESET = "vllm-small"


def _unit(unit: str) -> dict[str, str]:
    return {"unit": unit}


class Preset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model on an engine with a pool of KV blocks. `known` names the parameters that are documented or were
    measured on the real server; all others are assumed, plausible values.

    TTFT of a request without load, in seconds, for u uncached and c cached prompt tokens:
        frontend_s + prefill_base_s + prefill_s_per_token * u + prefill_s_per_cached_token * c
        + attention_s_per_token2 * (u * c + u * u / 2)
    The last term is the causal attention of u new tokens over c cached ones and over themselves.
    A decode step of n running requests takes decode_base_s + decode_s_per_request * n.
    """

    name: str
    description: str
    known: frozenset[str] = frozenset()
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
    """A block nobody has used for this long is forgotten; None: only eviction forgets."""

    @property
    def capacity_tokens(self) -> int:
        """Usable tokens: one block of the pool is the null block."""
        return (self.num_blocks - 1) * self.block_size


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
            known=frozenset({"block_size", "num_blocks", "max_model_len", "max_running", "max_batched_tokens"}),
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
    )
}

_NOT_SETTABLE = frozenset({"name", "description", "known"})


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
    values = {**msgspec.structs.asdict(PRESETS[name]), **given, "known": []}
    try:
        preset = msgspec.convert(values, Preset, strict=False)
    except msgspec.ValidationError as error:
        key = str(error).rpartition("`$.")[2].rstrip("`")
        raise UsageError(f"{key} = {given.get(key)} [{units.get(key, '')}]: {error}") from None
    for key in given:
        value = getattr(preset, key)
        if isinstance(value, float) and value != value:
            raise UsageError(f"{key} = {given[key]} [{units[key]}]: not a number")
    if preset.max_model_len > preset.capacity_tokens:
        raise UsageError(
            f"max_model_len = {preset.max_model_len} tokens do not fit the pool: (num_blocks - 1) * block_size = "
            f"{preset.capacity_tokens} tokens",
            hint="set max_model_len lower or num_blocks higher",
        )
    # A value somebody set is no longer the one that was measured or documented.
    return msgspec.structs.replace(preset, known=PRESETS[name].known - given.keys())


def parse_settings(items: list[str]) -> dict[str, str]:
    """`["num_blocks=129", ...]` as a dict; UsageError where there is no `=`."""
    settings: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals:
            raise UsageError(f"--set {item}: expected PARAMETER=VALUE, for example num_blocks=1025")
        settings[key.strip()] = value.strip()
    return settings


def _field_unit(annotation: object) -> str:
    info = msgspec.inspect.type_info(annotation)
    parts = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    for part in parts:
        if isinstance(part, msgspec.inspect.Metadata) and part.extra:
            return str(part.extra["unit"])
    return ""
