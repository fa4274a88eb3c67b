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
        ("tiny", {"num_blocks": 1}, "num_blocks = 1 .* >= 2$"),
        ("tiny", {"decode_base_s": "-1"}, r"decode_base_s = -1 \[s\]"),
        ("tiny", {"decode_base_s": "nan"}, r"decode_base_s = nan \[s\]"),
        ("tiny", {"decode_base_s": "inf"}, r"decode_base_s = inf \[s\]"),
        ("tiny", {"idle_ttl_s": "0"}, "idle_ttl_s = 0"),
        ("tiny", {"idle_ttl_s": "inf"}, r"idle_ttl_s = inf \[s"),
        ("tiny", {"host_ttl_s": "1e10"}, r"host_ttl_s = 1e10 \[s"),
        ("deepseek-api", {"unit_build_s": "inf"}, r"unit_build_s = inf \[s"),
        ("deepseek-api", {"peak_factor": "sNaN"}, r"peak_factor = sNaN .*: not a number"),
        ("tiny", {"num_blocks": "9" * 400}, "num_blocks = 999"),
        ("tiny", {"pool_bytes": "9" * 400}, "pool_bytes = 999"),
        ("kimi-k3", {"bytes_per_token": "1e-300"}, "bytes_per_token = 1e-300: expected 0 .* at least 0.01"),
        ("kimi-k3", {"bytes_per_token": "0.5"}, "are 14,042,880 blocks of 32 bytes: expected 1,000,000 at most"),
        ("tiny", {"utc_start": "9999-12-31T23:59:59Z"}, "utc_start = 9999.* expected a year up to 9000"),
        ("deepseek-api", {"granted_balance": "-1"}, r"granted_balance = -1 \[of currency\]: expected 0 up to"),
        ("deepseek-api", {"price_hit_per_mtok": "nan"}, r"price_hit_per_mtok = nan .*: not a number"),
        ("deepseek-api", {"price_hit_per_mtok": "much"}, r"price_hit_per_mtok = much \[of currency/10\^6 tokens\]"),
        ("deepseek-api", {"currency": "EUR"}, r"currency = EUR \[name\]"),
        ("deepseek-api", {"unit_interval_tokens": 1000}, "1000 tokens is no multiple of .* = 128 tokens"),
        ("deepseek-api", {"lapse_probability": 2}, r"lapse_probability = 2 \[1\]"),
        ("tiny", {"eviction": "mru"}, r"eviction = mru \[name\]: expected fifo, head_first or lru"),
        ("tiny", {"pool_bytes": 16_384, "num_blocks": 5}, "num_blocks and pool_bytes both"),
        ("tiny", {"pool_bytes": 16_384}, "holds 1 blocks of 32 tokens of 512 bytes"),
        ("tiny", {"pool_bytes": 10**7, "bytes_per_token": 0}, "pool_bytes = 10000000 bytes: bytes_per_token"),
        ("tiny", {"bytes_per_session": 10**7}, "pin 611 blocks: with the 256 of max_model_len .* pool's 511"),
        ("tiny", {"bytes_per_session": 5, "bytes_per_token": 0}, "bytes_per_session = 5 bytes"),
        ("tiny", {"host_bytes": 10**6, "bytes_per_token": 0}, "host_bytes = 1000000 bytes: bytes_per_token"),
        ("tiny", {"ssd_bytes": 100}, "ssd_bytes = 100 bytes is less than a block of 16384 bytes"),
        ("tiny", {"host_bandwidth_bytes_per_s": 0}, "host_bandwidth_bytes_per_s = 0"),
        ("tiny", {"window_replay": "always"}, "window_tokens = 0 says that there is no window"),
        ("tiny", {"foreign_share": 1}, "foreign_share = 1"),
        ("tiny", {"replicas": 0}, "replicas = 0"),
        (
            "tiny",
            {"peak_hours_utc": "1-4"},
            r"peak_hours_utc = 1-4 \[times of day\]: expected: Half-open, for example 01:00-04:00",
        ),
        ("tiny", {"peak_hours_utc": "04:00-01:00"}, "peak_hours_utc = 04:00-01:00 .* ends before"),
        ("tiny", {"utc_start": "2026-13-01T00:00:00Z"}, "utc_start = 2026-13-01T00:00:00Z"),
        ("deepseek-api", {"host_bytes": 10**9}, "host_bytes = 1000000000 bytes: prefix units"),
        ("deepseek-api", {"window_tokens": 128}, "window_tokens = 128 tokens: prefix units"),
        ("deepseek-api", {"eviction": "fifo"}, "eviction = fifo: prefix units"),
        ("deepseek-api", {"foreign_share": 0.3}, "foreign_share = 0.3: prefix units"),
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


def test_a_pool_may_be_sized_in_bytes() -> None:
    # 3,514.25 bytes a token, 256 tokens a block: 899,648 bytes.
    preset = resolve_preset("deepseek-v4-flash", {"pool_bytes": 899_648 * 5000 + 1, "max_model_len": 100_000})
    assert (preset.num_blocks, preset.session_blocks) == (5000, 4)
    assert "num_blocks" not in preset.assumed
    rows = {row["name"]: row["status"] for row in parameters(preset)}
    assert (rows["num_blocks"], rows["pool_bytes"], rows["bytes_per_token"]) == ("set", "set", "known")
    smaller = resolve_preset("deepseek-v4-flash", {"num_blocks": 600, "max_model_len": 100_000})
    assert (smaller.num_blocks, smaller.pool_bytes) == (600, None)


@pytest.mark.parametrize(
    ("name", "bytes_per_token", "bytes_per_session", "sessions", "tokens"),
    [
        ("deepseek-v4.1-flash", 890, 2_727_936, 335, 131_072),
        ("deepseek-v4-flash", 3514.25, 3_214_336, 86, 131_072),
        ("deepseek-v3.2", 48_068, 0, 6, 131_072),
        ("deepseek-v1", 389_120, 0, 0, 131_072),
        ("kimi-k3", 13_824, 449_372_160, 17, 131_072),
    ],
)
def test_models_have_the_bytes_of_their_architecture(
    name: str, bytes_per_token: float, bytes_per_session: int, sessions: int, tokens: int
) -> None:
    """Sessions of so many tokens in 40e9 bytes: floor(40e9 / (m n + F)); whole blocks may cost one."""
    preset = PRESETS[name]
    assert (preset.bytes_per_token, preset.bytes_per_session) == (bytes_per_token, bytes_per_session)
    assert preset.pool_bytes == 40 * 10**9
    each = -(-tokens // preset.block_size) + preset.session_blocks
    assert int(40e9 // (bytes_per_token * tokens + bytes_per_session)) == sessions
    assert sessions - 1 <= (preset.num_blocks - 1) // each <= sessions


def test_every_preset_can_be_had_and_says_of_its_sizes_where_they_come_from() -> None:
    for name in PRESETS:
        preset = resolve_preset(name)
        sources = preset.known | preset.assumed
        assert {"bytes_per_token", "num_blocks"} <= sources.keys() or name == "deepseek-api", name
