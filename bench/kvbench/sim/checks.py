"""What parameters must be to each other. Limits of a single one stand with it (parameters.py)."""

from __future__ import annotations

from datetime import datetime

from kvbench.errors import UsageError
from kvbench.sim.parameters import Preset

_LEAST_BYTES_PER_TOKEN = 0.01
_MOST_SESSION_BLOCKS = 1_000_000
_LAST_YEAR = 9000


def check_together(preset: Preset) -> None:
    """UsageError names the parameters that cannot be meant together, and what would do."""
    _check_pool(preset)
    _check_tiers(preset)
    _check_window(preset)
    _check_units(preset)
    _check_clock(preset)


def check_bytes_per_token(preset: Preset) -> None:
    """UsageError where a token is so small that a pool would have blocks without end."""
    if 0 < preset.bytes_per_token < _LEAST_BYTES_PER_TOKEN:
        raise UsageError(
            f"bytes_per_token = {preset.bytes_per_token:g}: expected 0 (not stated) or at least "
            f"{_LEAST_BYTES_PER_TOKEN:g}"
        )


def _check_pool(preset: Preset) -> None:
    check_bytes_per_token(preset)
    if preset.bytes_per_session and not preset.bytes_per_token:
        raise UsageError(
            f"bytes_per_session = {preset.bytes_per_session} bytes: it is pinned in blocks, and bytes_per_token = 0 "
            "does not say how large they are",
            hint="set bytes_per_token too",
        )
    if preset.session_blocks > _MOST_SESSION_BLOCKS:
        raise UsageError(
            f"bytes_per_session = {preset.bytes_per_session} bytes are {preset.session_blocks:,} blocks of "
            f"{preset.block_bytes:g} bytes: expected {_MOST_SESSION_BLOCKS:,} at most",
            hint="set bytes_per_session lower, or bytes_per_token or block_size higher",
        )
    if preset.max_model_len > preset.capacity_tokens:
        raise UsageError(
            f"max_model_len = {preset.max_model_len} tokens do not fit the pool: (num_blocks - 1) * block_size = "
            f"{preset.capacity_tokens} tokens",
            hint="set max_model_len lower, or num_blocks (or pool_bytes) higher",
        )
    of_tokens = -(-preset.max_model_len // preset.block_size)
    if of_tokens + preset.session_blocks > preset.num_blocks - 1:
        raise UsageError(
            f"bytes_per_session = {preset.bytes_per_session} bytes pin {preset.session_blocks} blocks: with the "
            f"{of_tokens} of max_model_len they do not fit the pool's {preset.num_blocks - 1}",
            hint="set max_model_len lower, or num_blocks (or pool_bytes) higher",
        )


def _check_tiers(preset: Preset) -> None:
    for name, size in (("host_bytes", preset.host_bytes), ("ssd_bytes", preset.ssd_bytes)):
        if not size:
            continue
        if preset.prefix == "units":
            raise UsageError(f"{name} = {size} bytes: prefix units are not kept in tiers", hint=f"set {name} to 0")
        if not preset.bytes_per_token:
            raise UsageError(
                f"{name} = {size} bytes: bytes_per_token says how many blocks that are, and is 0",
                hint="set bytes_per_token too",
            )
        if size < preset.block_bytes:
            raise UsageError(f"{name} = {size} bytes is less than a block of {preset.block_bytes:g} bytes")


def _check_window(preset: Preset) -> None:
    if preset.window_replay != "never" and not preset.window_tokens:
        raise UsageError(
            f"window_replay = {preset.window_replay}: window_tokens = 0 says that there is no window to replay",
            hint="set window_tokens, for example 128",
        )
    if preset.window_tokens and preset.prefix == "units":
        raise UsageError(
            f"window_tokens = {preset.window_tokens} tokens: prefix units are hit whole, with the state they need",
            hint="set window_tokens to 0",
        )


def _check_units(preset: Preset) -> None:
    interval, granularity = preset.unit_interval_tokens, preset.unit_granularity_tokens
    if interval is not None and interval % granularity:
        raise UsageError(
            f"unit_interval_tokens = {interval} tokens is no multiple of unit_granularity_tokens = {granularity} tokens"
        )
    if preset.prefix != "units":
        return
    if preset.eviction != "lru":
        raise UsageError(f"eviction = {preset.eviction}: prefix units are not evicted, only blocks are")
    if preset.foreign_share:
        raise UsageError(f"foreign_share = {preset.foreign_share:g}: prefix units are not evicted, only blocks are")


def _check_clock(preset: Preset) -> None:
    for span in preset.peak_hours_utc.split(","):
        start, _, end = span.partition("-")
        if span and start >= end:
            raise UsageError(f"peak_hours_utc = {preset.peak_hours_utc} [times of day]: {span} ends before it begins")
    if preset.utc_start is not None:
        try:
            started = datetime.fromisoformat(preset.utc_start)
        except ValueError as error:
            raise UsageError(f"utc_start = {preset.utc_start} [UTC]: {error}") from None
        if started.year > _LAST_YEAR:
            raise UsageError(f"utc_start = {preset.utc_start} [UTC]: expected a year up to {_LAST_YEAR}")
