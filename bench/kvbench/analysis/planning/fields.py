"""What a plan's profile may say, as types. docs/plan.md has every field; unknown ones are refused (profile.py)."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import msgspec

Amount = int | float | str
"""Bytes: a number, or a text with its unit, such as "80 GB" or "80 GiB"."""


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Model(_Table, frozen=True, kw_only=True):
    """name: of the catalogue, or a config.json. bytes_per_*: measured or allocated on one rank, instead of the
    architecture's."""

    name: str | None = None
    dtype: str = "auto"
    tensor_parallel: int = 1
    bytes_per_token: Decimal | None = None
    bytes_per_session: Decimal | None = None


class Memory(_Table, frozen=True, kw_only=True):
    """Of one rank: kv, or what it is derived from. weights: one amount, or several by name. running: sessions that hold
    their fixed bytes at a time."""

    kv: Amount | None = None
    hbm: Amount | None = None
    weights: Amount | dict[str, Amount] | None = None
    activations: Amount | None = None
    reserve: Amount | None = None
    running: int | None = None


class Traffic(_Table, frozen=True, kw_only=True):
    """A trace, or a request in numbers. context: of a session at its end, the answer included. new_tokens: what a
    prompt has that no cache can have. turns: requests of a session. pause_s: before a request, on average.
    residence_s: how long a request holds its session, with its pause, but without it on a trace, whose hits count what
    is evicted then."""

    trace: str | None = None
    format: str | None = None
    context: int | None = None
    new_tokens: int | None = None
    output_tokens: int | None = None
    shared_tokens: int = 0
    turns: int | None = None
    pause_s: float | None = None
    residence_s: float | None = None


class Speed(_Table, frozen=True, kw_only=True):
    """attention_s_per_token2: what each pair of a computed token and one before it takes (b of the TTFT model)."""

    prefill_tokens_per_s: float | None = None
    attention_s_per_token2: float = 0.0
    decode_tokens_per_s: float | None = None
    tpot_s: float | None = None


class Replay(_Table, frozen=True, kw_only=True):
    """Tokens computed again where a session's window is gone, and how often it is: a share of requests, or all pauses
    above window_ttl_s."""

    tokens: int | None = None
    window_lost: float | None = None
    window_ttl_s: float | None = None


class Tier(_Table, frozen=True, kw_only=True):
    """Memory below HBM that holds what HBM evicts. bytes, bytes_per_s: one rank's share."""

    name: str
    bytes: Amount
    bytes_per_s: Amount
    latency_s: float = 0.0


class Prices(_Table, frozen=True, kw_only=True):
    """For a million tokens: miss, hit and output, or the row of a book that holds `at` a date. wanted: a price of input
    to find the hit rate for."""

    currency: str | None = None
    miss: Decimal | None = None
    hit: Decimal | None = None
    output: Decimal | None = None
    book: str | None = None
    model: str | None = None
    at: date | None = None
    wanted: Decimal | None = None


class Task(_Table, frozen=True, kw_only=True):
    """All requests of a piece of work together. hit_rate: of its input."""

    input_tokens: int
    output_tokens: int
    hit_rate: Decimal


class Profile(_Table, frozen=True, kw_only=True):
    name: str | None = None
    model: Model = Model()
    memory: Memory = Memory()
    traffic: Traffic = Traffic()
    speed: Speed = Speed()
    replay: Replay = Replay()
    tier: tuple[Tier, ...] = ()
    prices: Prices | None = None
    task: Task | None = None
