"""A request's work, by tier: what is found, what is computed (the replayed window with it), and the time of each."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from kvbench.analysis.plan import prefill_s
from kvbench.analysis.planning.fields import Replay, Speed
from kvbench.analysis.planning.traffic import Floats, Ints, Observed


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Input tokens found in a tier, over all requests, and in how many of them; 0 where there is no trace.
    seconds: what restoring takes, on average over all requests; transfer_s without the latency."""

    name: str
    tokens: int
    requests: int
    seconds: float
    transfer_s: float


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Means over requests. computed: u', the replayed tokens in it. prefill_s: None where no speed is given.
    input_tokens: None where what the new tokens stand behind is not said."""

    requests: int
    input_tokens: float | None
    new_tokens: float
    replayed_tokens: float
    replaying: float
    output_tokens: float
    pause_s: float | None
    prefill_s: float | None
    prefill_without_replay_s: float | None
    shares: tuple[Share, ...]

    @property
    def computed_tokens(self) -> float:
        return self.new_tokens + self.replayed_tokens

    @property
    def restore_s(self) -> float:
        return sum(share.seconds for share in self.shares)


class Tiering(msgspec.Struct, frozen=True, kw_only=True):
    """A tier as a request meets it: blocks that it and those above it keep (None: all); what a token's return takes."""

    name: str
    blocks: int | None
    s_per_token: float
    latency_s: float


def trace_work(observed: Observed, tiers: Sequence[Tiering], speed: Speed, replay: Replay, replay_tokens: int) -> Work:
    """What the requests of a trace find in tiers whose capacities add up, and what is left to compute."""
    above: Ints = np.zeros(observed.requests, np.int64)
    shares = []
    for tier in tiers:
        found = observed.hit_tokens(tier.blocks)
        here = found - above
        transfer = here * tier.s_per_token
        seconds = transfer + tier.latency_s * (here > 0)
        shares.append(
            Share(
                name=tier.name,
                tokens=int(here.sum()),
                requests=int((here > 0).sum()),
                seconds=float(seconds.mean()),
                transfer_s=float(transfer.mean()),
            )
        )
        above = found
    new = observed.input_tokens - above
    lost = window_lost(observed, replay) * (above > 0)
    replayed = np.minimum(lost * replay_tokens, above)
    return Work(
        requests=observed.requests,
        input_tokens=float(observed.input_tokens.mean()),
        new_tokens=float(new.mean()),
        replayed_tokens=float(replayed.mean()),
        replaying=float(lost.mean()),
        output_tokens=float(observed.output_tokens.mean()),
        pause_s=float(np.nansum(observed.pause_s) / observed.requests),
        prefill_s=_mean_prefill_s(new + replayed, above - replayed, speed),
        prefill_without_replay_s=_mean_prefill_s(new, above, speed),
        shares=tuple(shares),
    )


def window_lost(observed: Observed, replay: Replay) -> Floats:
    """How likely each request has to compute its window again: as said, or after a pause above the TTL; a session's
    first request, whose shared prefix nobody may have kept a window for, counts with them."""
    if replay.window_ttl_s is not None:
        pauses = observed.pause_s
        return (np.isnan(pauses) | (pauses > replay.window_ttl_s)).astype(np.float64)
    return np.full(observed.requests, 1.0 if replay.window_lost is None else replay.window_lost)


def _mean_prefill_s(computed: Floats | Ints, cached: Floats | Ints, speed: Speed) -> float | None:
    if speed.prefill_tokens_per_s is None:
        return None
    u, c = computed.astype(np.float64), cached.astype(np.float64)
    seconds = u / speed.prefill_tokens_per_s + speed.attention_s_per_token2 * (u * c + u * u / 2)
    return float(seconds.mean())


def given_work(
    *,
    input_tokens: int | None,
    new_tokens: int,
    output_tokens: int,
    pause_s: float | None,
    speed: Speed,
    replay: Replay,
    replay_tokens: int,
    shares: tuple[Share, ...] = (),
) -> Work:
    """One request in numbers, all of its prefix found, in HBM but for the `shares` of tiers below.

    Where its length is not said it is taken for long enough to be replayed, and attention's part cannot be had.
    """
    cached = None if input_tokens is None else input_tokens - new_tokens
    lost = 1.0 if replay.window_lost is None else replay.window_lost
    replayed = lost * replay_tokens
    if cached is not None:
        lost, replayed = lost * (cached > 0), min(replayed, cached)

    def seconds(more: float) -> float | None:
        rate, attention = speed.prefill_tokens_per_s, speed.attention_s_per_token2
        if rate is None or (cached is None and attention):
            return None
        return prefill_s(new_tokens + more, (cached or more) - more, rate, attention)

    return Work(
        requests=1,
        input_tokens=input_tokens,
        new_tokens=new_tokens,
        replayed_tokens=replayed,
        replaying=float(lost),
        output_tokens=output_tokens,
        pause_s=pause_s,
        prefill_s=seconds(replayed),
        prefill_without_replay_s=seconds(0),
        shares=shares,
    )
