"""How many sessions fit, how many requests a second go through, and what hit rate a price needs: pure arithmetic.

Tokens are counts, rates are tokens a second, money is Decimal in one currency. Every function raises UsageError for a
value that cannot be, naming it.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import msgspec

from kvbench.analysis.models import ModelBytes
from kvbench.errors import UsageError

REPLAY_TOKENS = 128
"""Tokens that are computed again where a session's window is gone (DeepSeek-V4.1)."""


class KvMemory(msgspec.Struct, frozen=True, kw_only=True):
    """HBM of one rank, in bytes, and what of it is left for KV: shown term by term, so that it can be argued with."""

    hbm: int
    weights: int
    activations: int
    reserve: int

    @property
    def kv(self) -> int:
        """What is left. Raises UsageError where nothing is.

        >>> KvMemory(hbm=80_000_000_000, weights=34_000_000_000, activations=4_000_000_000, reserve=2_000_000_000).kv
        40000000000
        """
        left = self.hbm - self.weights - self.activations - self.reserve
        if left <= 0:
            raise UsageError(
                f"no memory is left for KV: {self.hbm:,} B less weights {self.weights:,}, activations "
                f"{self.activations:,} and reserve {self.reserve:,} is {left:,} B"
            )
        return left


def sessions_per_rank(kv_bytes: int, rank: ModelBytes, tokens: int, shared_tokens: int = 0) -> int:
    """Running sessions of `tokens` tokens that fit into `kv_bytes` of one rank: floor((M - m s) / (bytes(n) - m s)).

    rank: the bytes on one rank (ModelBytes.per_rank). shared_tokens: a prefix that all of them begin with, held once.

    >>> from kvbench.analysis.models import bytes_model
    >>> names = ("deepseek-v4.1-flash", "deepseek-v4-flash", "deepseek-v3.2", "deepseek-v1", "kimi-k3")
    >>> [sessions_per_rank(40 * 10**9, bytes_model(name), 131_072) for name in names]
    [335, 86, 6, 0, 17]
    >>> [sessions_per_rank(40 * 10**9, bytes_model(name), 10**6) for name in names]
    [44, 11, 0, 0, 2]
    """
    _at_least("kv_bytes", kv_bytes, 0)
    _at_least("tokens", tokens, 1)
    if not 0 <= shared_tokens <= tokens:
        raise UsageError(f"shared_tokens {shared_tokens} is not allowed: from 0 to tokens, {tokens}")
    shared = rank.bytes_per_token * shared_tokens
    own = rank.at(tokens) - shared
    if own <= 0:
        raise UsageError("sessions that share all they hold take no memory of their own: their number has no limit")
    return max(0, int((kv_bytes - shared) // own))


def computed_tokens(new_tokens: float, window_lost: float, replay_tokens: int = REPLAY_TOKENS) -> float:
    """u' = u + P(pause > TTL) * r: tokens a request's prefill computes. window_lost: that probability, 0 to 1.

    >>> computed_tokens(2_000, 0.25)
    2032.0
    """
    _at_least("new_tokens", new_tokens, 0)
    if not 0 <= window_lost <= 1:
        raise UsageError(f"window_lost {window_lost} is not allowed: from 0 to 1")
    return new_tokens + window_lost * replay_tokens


def prefill_s(computed: float, cached: float, tokens_per_s: float, attention_s_per_token2: float = 0.0) -> float:
    """Time that a prefill takes of the machine: u / T + b (u c + u^2 / 2), u tokens computed behind c cached ones.

    A cold prompt of a million tokens, by what was measured of V4.1 (50.5 us a token, 1.34e-10 s a pair): 117 s.

    >>> round(prefill_s(1_000_000, 0, 1 / 50.5e-6, 1.34e-10), 1)
    117.5
    """
    _at_least("computed", computed, 0)
    _at_least("cached", cached, 0)
    _above("tokens_per_s", tokens_per_s)
    _at_least("attention_s_per_token2", attention_s_per_token2, 0)
    return computed / tokens_per_s + attention_s_per_token2 * (computed * cached + computed**2 / 2)


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A request's work: tokens that its prefill computes, tokens of its answer; and where known how many sessions are
    there and how long each of their requests takes them, pause included (residence_s): no more than S / R start."""

    computed_tokens: float
    output_tokens: float
    sessions: int | None = None
    residence_s: float | None = None


def requests_per_s_disaggregated(load: Load, prefill_tokens_per_s: float, decode_tokens_per_s: float) -> float:
    """Prefill and decode on machines of their own: the slower of the two, and no more than S / R.

    >>> round(requests_per_s_disaggregated(Load(computed_tokens=2_000, output_tokens=500), 18_700, 5_000), 2)
    9.35
    """
    prefill_s, decode_s = _work_s(load, prefill_tokens_per_s, decode_tokens_per_s)
    return min(_per_s(max(prefill_s, decode_s)), _started_per_s(load))


def requests_per_s_colocated(load: Load, prefill_tokens_per_s: float, decode_tokens_per_s: float) -> float:
    """Both on one machine, in turns: 1 / (u' / T_prefill + out / T_decode), and no more than S / R.

    >>> round(requests_per_s_colocated(Load(computed_tokens=2_000, output_tokens=500), 18_700, 5_000), 1)
    4.8
    """
    return min(_per_s(sum(_work_s(load, prefill_tokens_per_s, decode_tokens_per_s))), _started_per_s(load))


def restore_s(rank: ModelBytes, cached_tokens: int, bytes_per_s: float) -> float:
    """Time to bring a prefix back from a slower tier: m * c / BW.

    >>> from kvbench.analysis.models import bytes_model
    >>> round(restore_s(bytes_model("deepseek-v4.1-flash"), 131_072, 20e9) * 1000, 1)  # ms
    5.8
    """
    _at_least("cached_tokens", cached_tokens, 0)
    _above("bytes_per_s", bytes_per_s)
    return float(rank.bytes_per_token * cached_tokens / Fraction(bytes_per_s))


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """A price list's line, for a million tokens each."""

    miss: Decimal
    hit: Decimal
    output: Decimal


def task_cost(rates: Rates, input_tokens: int, output_tokens: int, hit_rate: Decimal) -> Decimal:
    """What a task costs, exactly: hits, misses and output at their rates.

    >>> k3 = Rates(miss=Decimal("3.00"), hit=Decimal("0.30"), output=Decimal("15.00"))
    >>> [round(task_cost(k3, 1_200_000, 15_000, Decimal(hits)), 3) for hits in ("0.96", "0")]
    [Decimal('0.715'), Decimal('3.825')]
    >>> v41 = Rates(miss=Decimal("0.15"), hit=Decimal("0.003"), output=Decimal("0.60"))
    >>> [round(task_cost(v41, 1_200_000, 15_000, Decimal(hits)), 3) for hits in ("0.96", "0")]
    [Decimal('0.020'), Decimal('0.189')]
    """
    _at_least("input_tokens", input_tokens, 0)
    _at_least("output_tokens", output_tokens, 0)
    if not 0 <= hit_rate <= 1:
        raise UsageError(f"hit_rate {hit_rate} is not allowed: from 0 to 1")
    hits = hit_rate * input_tokens
    return (hits * rates.hit + (input_tokens - hits) * rates.miss + output_tokens * rates.output) / 1_000_000


def input_price(rates: Rates, hit_rate: Decimal) -> Decimal:
    """What a million input tokens cost: h p_h + (1 - h) p_m.

    >>> k3 = Rates(miss=Decimal("3.00"), hit=Decimal("0.30"), output=Decimal("15.00"))
    >>> round(input_price(k3, Decimal("0.96")), 3)
    Decimal('0.408')
    """
    return task_cost(rates, 1_000_000, 0, hit_rate)


def hit_rate_for(price: Decimal, rates: Rates) -> Decimal:
    """Share of the input that must hit for a million input tokens to cost `price`: (p_m - p) / (p_m - p_h).

    >>> hit_rate_for(Decimal("0.408"), Rates(miss=Decimal("3.00"), hit=Decimal("0.30"), output=Decimal("15.00")))
    Decimal('0.96')
    """
    if rates.hit >= rates.miss:
        raise UsageError(
            f"a hit at {rates.hit} is not cheaper than a miss at {rates.miss}: no hit rate changes the price"
        )
    if not rates.hit <= price <= rates.miss:
        raise UsageError(f"price {price} is not reached by any hit rate: from {rates.hit} to {rates.miss}")
    return (rates.miss - price) / (rates.miss - rates.hit)


def _work_s(load: Load, prefill_tokens_per_s: float, decode_tokens_per_s: float) -> tuple[float, float]:
    _above("prefill_tokens_per_s", prefill_tokens_per_s)
    _above("decode_tokens_per_s", decode_tokens_per_s)
    _at_least("computed_tokens", load.computed_tokens, 0)
    _at_least("output_tokens", load.output_tokens, 0)
    return load.computed_tokens / prefill_tokens_per_s, load.output_tokens / decode_tokens_per_s


def _per_s(seconds: float) -> float:
    if not seconds:
        raise UsageError("computed_tokens and output_tokens are both 0: a request without work has no rate")
    return 1 / seconds


def _started_per_s(load: Load) -> float:
    """S / R: what the sessions there are can start; without them no limit."""
    if load.sessions is None or load.residence_s is None:
        return float("inf")
    _at_least("sessions", load.sessions, 0)
    _above("residence_s", load.residence_s)
    return load.sessions / load.residence_s


def _at_least(name: str, value: float, least: int) -> None:
    if not value >= least:
        raise UsageError(f"{name} {value} is not allowed: {least} or more")


def _above(name: str, value: float) -> None:
    if not value > 0:
        raise UsageError(f"{name} {value} is not allowed: above 0")
