from __future__ import annotations

import msgspec
import pytest

from kvbench.errors import UsageError
from kvbench.sim.parameters import Preset
from kvbench.sim.presets import DEFAULT_PRESET, PRESETS
from kvbench.sim.settings import parameters, parse_endpoint, parse_settings, resolve_preset, settable


def test_every_parameter_has_a_unit_and_every_known_one_exists() -> None:
    units = settable()
    assert all(units.values()), units
    assert {"block_size", "num_blocks", "idle_ttl_s"} <= units.keys()
    for preset in PRESETS.values():
        assert preset.known.keys() <= units.keys()
        assert preset.assumed.keys() <= units.keys() - preset.known.keys()
    assert DEFAULT_PRESET in PRESETS


def test_the_null_block_is_taken_off_the_capacity() -> None:
    assert resolve_preset("tiny").capacity_tokens == 16_352
    assert resolve_preset("vllm-small").capacity_tokens == 2_000_000


def test_settings_may_be_text_and_are_no_longer_known() -> None:
    preset = resolve_preset("tiny", parse_settings(["num_blocks=1025", "decode_base_s = 0.5", "idle_ttl_s=300"]))
    assert (preset.num_blocks, preset.decode_base_s, preset.idle_ttl_s) == (1025, 0.5, 300.0)
    assert "num_blocks" in PRESETS["tiny"].known
    assert "num_blocks" not in preset.known
    assert isinstance(preset, Preset)
    assert msgspec.structs.asdict(resolve_preset("tiny")) == msgspec.structs.asdict(PRESETS["tiny"])


def test_of_every_parameter_it_is_said_where_it_comes_from() -> None:
    preset = resolve_preset("deepseek-api", {"unit_build_s": 5, "model": "other"})
    rows = {row["name"]: (row["value"], row["status"], row["source"] is None) for row in parameters(preset)}
    assert rows.keys() == settable().keys()
    assert rows["prefix"] == ("units", "known", False)
    assert rows["idle_ttl_s"] == (14_400.0, "assumed", False)
    assert rows["decode_base_s"] == (0.012, "assumed", True)
    assert rows["unit_build_s"] == (5.0, "set", True)
    assert rows["model"] == ("other", "set", True)


@pytest.mark.parametrize(
    ("name", "settings", "text"),
    [
        ("vllm-huge", {}, "no simulated endpoint is called 'vllm-huge'; there are: vllm-small, tiny, deepseek-api"),
        ("tiny", {"pool": "5"}, "no parameter 'pool'; there are: dialect, model, max_model_len, seed, block_size"),
        ("tiny", {"known": "5"}, "no parameter 'known'"),
        ("tiny", {"num_blocks": "many"}, r"num_blocks = many \[blocks"),
        ("tiny", {"num_blocks": 1}, "num_blocks = 1 .* >= 2"),
        ("tiny", {"decode_base_s": "-1"}, r"decode_base_s = -1 \[s\]"),
        ("tiny", {"decode_base_s": "nan"}, r"decode_base_s = nan \[s\]"),
        ("tiny", {"decode_base_s": "inf"}, r"decode_base_s = inf \[s\]"),
        ("tiny", {"idle_ttl_s": "0"}, "idle_ttl_s = 0"),
        ("deepseek-api", {"granted_balance": "-1"}, r"granted_balance = -1 \[of currency\]: expected 0 up to"),
        ("deepseek-api", {"price_hit_per_mtok": "nan"}, r"price_hit_per_mtok = nan .*: not a number"),
        ("deepseek-api", {"price_hit_per_mtok": "much"}, r"price_hit_per_mtok = much \[of currency/10\^6 tokens\]"),
        ("deepseek-api", {"currency": "EUR"}, r"currency = EUR \[name\]"),
        ("deepseek-api", {"unit_interval_tokens": 1000}, "1000 tokens is no multiple of .* = 128 tokens"),
        ("deepseek-api", {"lapse_probability": 2}, r"lapse_probability = 2 \[1\]"),
        ("tiny", {"num_blocks": 101}, r"max_model_len = 8192 tokens do not fit the pool: .* = 3200 tokens"),
    ],
)
def test_what_cannot_be_meant_is_named(name: str, settings: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        resolve_preset(name, settings)


def test_a_setting_needs_a_value() -> None:
    with pytest.raises(UsageError, match="--set num_blocks: expected PARAMETER=VALUE"):
        parse_settings(["num_blocks"])


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("sim", ("vllm-small", {})),
        ("sim:tiny", ("tiny", {})),
        ("sim?num_blocks=9", ("vllm-small", {"num_blocks": "9"})),
        ("sim:tiny?num_blocks=9&model=a%26b%3Dc+d", ("tiny", {"num_blocks": "9", "model": "a&b=c+d"})),
        ("simulated", None),
        ("sim.toml", None),
        ("http://sim:80/?a=b", None),
    ],
)
def test_an_endpoint_may_carry_parameters(spec: str, expected: object) -> None:
    assert parse_endpoint(spec) == expected


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("sim:tiny?", r"--endpoint sim:tiny\?: : expected PARAMETER=VALUE"),
        ("sim:tiny?num_blocks", "num_blocks: expected PARAMETER=VALUE"),
        ("sim:tiny?num_blocks=9&num_blocks=8", "num_blocks has been set to 9 already"),
    ],
)
def test_a_setting_of_an_endpoint_needs_one_value(spec: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        parse_endpoint(spec)
