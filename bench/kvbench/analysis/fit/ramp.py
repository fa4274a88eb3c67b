"""Capacity from a capacity probe: what was still there when prompts were read back, latest first.

With C the tokens that a cache holds and S the sum of cached tokens over one reading, S <= C <= S + 2 g in a cache of
blocks of g tokens that evicts tails first: the block of the running request and the one that is partly full are not
seen. Some engines keep the partly full block of an ended request, and that of its second reading, until their turn to
go comes: C is then larger by one or two g a prompt, which several lengths tell apart. Where hits are whole or nothing
(sliding windows, state layers), see sessions.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from kvbench.analysis.fit.refused import (
    AGE,
    AGED,
    OTHERS,
    REPEAT,
    REREAD,
    by_age,
    found_more,
    no_memory,
    not_asked,
    refused,
    without_bytes,
)
from kvbench.analysis.fit.server_counts import other_claim, other_traffic, tokens_from_below
from kvbench.analysis.fit.sessions import Held, Window, by_session, heads_first, kept_window
from kvbench.analysis.fit.steps import Step, failure, steps, stop_reason
from kvbench.analysis.fit.timed import fit_timed
from kvbench.model import Estimate, FitReport, Misfit, Refusal
from kvbench.runs.reader import Run

MOST_UNSEEN_GRAINS = 2
ROLES = ("read", REREAD)
ASSUMED = (
    "one server with one cache, hardly any other traffic, least recently used goes first: replicas that always get the "
    "same prompts look like one, and others who write one or two of a hundred blocks make it look as much smaller",
    "one running request takes up no more than its tokens: what it takes besides is missing from the capacity, which "
    "matters only where a pool was made small; two pool sizes show it",
)


class Reading(NamedTuple):
    """One series, read back. whole: prompts found whole; tokens: cached ones, the part of the first that was not
    whole included; part: cached tokens of that one; lacking: what it lacked, tokens; length: of its longest prompt."""

    series: str
    whole: int
    tokens: int
    part: int
    lacking: int
    length: int
    requests: int
    after: int
    """Cached tokens found after the first prompt that was not whole."""
    sent_whole: int
    """Tokens of the prompts found whole, cached or not."""
    aligned: int
    """Prompts found whole whose length is a multiple of the grain: each takes up to two more blocks."""


def fit_capacity(run: Run, kv_memory_bytes: int | None = None) -> FitReport:
    """capacity_tokens, and bytes_per_token and bytes_per_session where the memory is known (from the probe's own
    settings unless given). Refuses rather than guess; see docs/probe.md."""
    memory = kv_memory_bytes if kv_memory_bytes is not None else _stated_memory(run)
    name = str(run.path)
    found = steps(run)
    if (refusal := _unusable(run, found)) is None and all(s.cached_tokens is None for s in found):
        if (foreign := other_traffic(run, found)) is not None:
            return FitReport(runs=(name,), refusals=(refused(foreign, "the same probe with no other client"),))
        return fit_timed(name, found, memory, stop_reason(run), ASSUMED)
    if refusal is not None:
        return FitReport(runs=(name,), refusals=(refusal,))
    grain = _grain(found)
    all_series = dict.fromkeys(s.series for s in found)
    readings = [r for role in ROLES for series in all_series if (r := _read(series, found, grain, role))]
    if not readings:
        why = stop_reason(run) or "no reading came to a prompt that was not all there"
        sent = max((int(e["tokens"]) for e in run.events if e.get("kind") == "no_overflow"), default=None)
        told = f": all of {sent:,} tokens sent were still found" if sent is not None else ""
        return FitReport(
            runs=(name,),
            refusals=(
                refused(
                    f"the cache did not overflow{told}; {why}",
                    "a larger budget (--max-requests, --max-hours, --max-tokens), or a pool made small",
                ),
            ),
        )
    after = [r for r in readings if r.after > grain]
    if after or any(r.whole == 0 for r in readings):
        return FitReport(runs=(name,), refusals=(refused(_disorder(after), "one replica, with nothing else on it"),))
    if (foreign := other_traffic(run, found)) is not None:
        return FitReport(runs=(name,), refusals=(refused(foreign, "the same probe with no other client"),))
    whole = _never_lost(found, grain)
    if any(r.part for r in readings) and whole > max(_bounds(r, grain, MOST_UNSEEN_GRAINS)[1] for r in readings):
        why = f"prompts of {whole:,} tokens together were all still found in one reading, and lost in another"
        more = refused(f"{why}: not one cache", "one replica, with nothing else on it")
        return FitReport(runs=(name,), refusals=(more,))
    notes = tuple(
        f"prompts of {event['input_tokens']:,} tokens were left out: they would have gone beyond the budget"
        for event in run.events
        if event.get("kind") == "series_left_out"
    )
    if (stop := stop_reason(run)) is not None:
        notes += (f"stopped early: {stop}",)
    if (refusal := heads_first(found)) is not None:
        misfit = Misfit(share=0.0, limit=0.0, causes=("eviction of heads before tails",))
        return FitReport(runs=(name,), refusals=(refusal,), misfit=misfit, notes=notes)
    gone = [s for s in found if s.role == AGED and s.sent_tokens - (s.cached_tokens or 0) > _loss(found, grain)]
    if gone:
        return FitReport(runs=(name,), refusals=(by_age(),), misfit=AGE, notes=notes)
    report = _estimates(
        name, readings, grain, memory, kept_window(found, grain), notes, not_asked(found), _more(found, grain)
    )
    report = replace(report, notes=(*report.notes, *other_claim(run, report)))
    below = tokens_from_below(run)
    return report if below is None or memory is None else without_bytes(report, below)


def _estimates(
    name: str,
    readings: Sequence[Reading],
    grain: int,
    memory: int | None,
    window: Window | None,
    notes: tuple[str, ...],
    unasked: tuple[str, ...],
    more: Refusal | None,
) -> FitReport:
    requests = sum(r.requests for r in readings)
    residuals = tuple(
        {"series": r.series, "input_tokens": r.length, "whole": r.whole, "tokens": r.tokens, "part": r.part}
        for r in readings
    )
    found = _capacity(readings, grain)
    if found is None and any(r.part for r in readings):
        return _disagreeing(name, readings, notes, residuals)
    if more is not None:
        return FitReport(runs=(name,), refusals=(more,), misfit=OTHERS, notes=notes, residuals=residuals)
    if found is None:
        even = [r for r in readings if r.series != "scout"]
        return by_session(
            name,
            [Held(r.whole, r.tokens // max(1, r.whole), r.part, r.length, grain) for r in even],
            window,
            memory=memory,
            requests=requests,
            assumed=ASSUMED + unasked,
            notes=notes,
            residuals=residuals,
        )
    low, high, unseen = found
    if unseen:
        notes += (
            f"each prompt took {unseen} grains more than can be hit: blocks that are partly full keep their room",
        )
    value = low + min(grain, (high - low) / 2)
    method = f"{len(readings)} readings, latest first, to the first prompt that was not whole; grain {grain:,} tokens"
    estimates = [
        Estimate(name="capacity_tokens", value=value, low=low, high=high, unit="tokens", method=method, n=requests)
    ]
    if memory is not None:
        estimates.append(
            Estimate(
                name="bytes_per_token",
                value=memory / value,
                low=memory / high,
                high=memory / low,
                unit="bytes/token",
                method="memory over capacity: as allocated",
                n=requests,
            )
        )
    estimates.append(
        Estimate(
            name="granularity_tokens",
            value=grain,
            low=None,
            high=grain,
            unit="tokens",
            method="greatest common divisor of all cached counts, which the grain divides",
            n=requests,
        )
    )
    return FitReport(
        runs=(name,),
        estimates=tuple(estimates),
        refusals=() if memory is not None else (no_memory(),),
        assumed=ASSUMED,
        notes=notes,
        residuals=residuals,
    )


def _capacity(readings: Sequence[Reading], grain: int) -> tuple[int, int, int] | None:
    """(tokens held at least, at most, grains that a prompt takes and cannot hit), or None where no number of them
    makes all readings agree: then capacity hangs on the length of sessions, or hits are whole.

    Of several numbers that fit the least one's interval is widened to hold them all.
    """
    if len(readings) > 1 and all(r.part == 0 for r in readings):
        return None  # a part of some prompt is left nearly always where blocks go one by one
    fitting = []
    for unseen in range(MOST_UNSEEN_GRAINS + 1):
        bounds = [_bounds(r, grain, unseen) for r in readings]
        low, high = max(b[0] for b in bounds), min(b[1] for b in bounds)
        if low <= high:
            fitting.append((low, high, unseen))
    if not fitting:
        return None
    return min(f[0] for f in fitting), max(f[1] for f in fitting), fitting[0][2]


def _disagreeing(
    name: str, readings: Sequence[Reading], notes: tuple[str, ...], residuals: tuple[dict[str, object], ...]
) -> FitReport:
    sums = [r.tokens for r in readings]
    share = (max(sums) - min(sums)) / max(sums)
    told = ", ".join(f"{r.tokens:,} ({r.series})" for r in readings)
    causes = ("other traffic", "several replicas", "a cache that gives things up by age or at random")
    reason = (
        f"the readings found {told} tokens, and no one capacity explains all of them, though blocks went one by one: "
        "something else changed what was held between them"
    )
    return FitReport(
        runs=(name,),
        refusals=(refused(reason, f"{REPEAT} again with nothing else on the endpoint, one replica"),),
        misfit=Misfit(share=share, limit=0.0, causes=causes),
        notes=notes,
        residuals=residuals,
    )


def _bounds(reading: Reading, grain: int, unseen: int) -> tuple[int, int]:
    """Tokens that the cache holds at least and at most, by one reading, if a prompt takes `unseen` grains that cannot
    be hit. A whole prompt of aligned length always does: its last block is computed again, into another place."""
    low = reading.tokens + unseen * grain * reading.whole
    high = low + 2 * grain * (1 + (reading.aligned if not unseen else 0))
    # nothing left of the first lost prompt: its head alone may have been lost, or all but less than a grain
    return low, high if reading.part else high + reading.lacking


def _read(series: str, found: Sequence[Step], grain: int, role: str = "read") -> Reading | None:
    """None where the series was not read down to a prompt that was not all there."""
    read = [s for s in found if s.series == series and s.role == role]
    loss = _loss(found, grain)
    whole = tokens = sent_whole = aligned = 0
    for i, step in enumerate(read):
        cached = step.cached_tokens or 0
        if step.sent_tokens - cached <= loss:
            whole, tokens, sent_whole = whole + 1, tokens + cached, sent_whole + step.sent_tokens
            aligned += grain > 1 and step.sent_tokens % grain == 0
            continue
        return Reading(
            series=series if role == "read" else f"{series}, once more",
            whole=whole,
            tokens=tokens + cached,
            part=cached,
            lacking=step.sent_tokens - cached,
            length=max(s.sent_tokens for s in read),
            requests=sum(1 for s in found if s.series == series and (s.role == REREAD) == (role == REREAD)),
            after=sum(s.cached_tokens or 0 for s in read[i + 1 :]),
            sent_whole=sent_whole,
            aligned=aligned,
        )
    return None


def _more(found: Sequence[Step], grain: int) -> Refusal | None:
    """What the series that was read once more says of others who write."""
    series = next((s.series for s in found if s.role == REREAD), None)
    first = None if series is None else _read(series, found, grain)
    if first is None:
        return None
    loss = _loss(found, grain)
    again = [s.sent_tokens - (s.cached_tokens or 0) <= loss for s in found if s.role == REREAD]
    return found_more(first.whole, again.index(False) if False in again else len(again))


def _never_lost(found: Sequence[Step], grain: int) -> int:
    """Cached tokens of the largest series that was read to its end without a loss."""
    sums = [0]
    for series in dict.fromkeys(s.series for s in found if s.role == "read"):
        if _read(series, found, grain) is None:
            sums.append(sum(s.cached_tokens or 0 for s in found if s.series == series and s.role == "read"))
    return max(sums)


def _loss(found: Sequence[Step], grain: int) -> int:
    """What a prompt that is all there may lack at most: what it lacked when it was sent again at once."""
    again = [s.sent_tokens - (s.cached_tokens or 0) for s in found if s.role == "again"]
    return max([grain, *again])


def _grain(found: Sequence[Step]) -> int:
    return math.gcd(*(s.cached_tokens or 0 for s in found)) or 1


def _unusable(run: Run, found: Sequence[Step]) -> Refusal | None:
    if (why := failure(run)) is not None:
        return refused(why, f"{REPEAT} again once the endpoint answers such a request")
    if (run.info.server or {}).get("dialect") == "deepseek":
        return refused(
            "DeepSeek's API caches whole prefix units on disk, not blocks in a pool of one size",
            "kvbench probe granularity, ttl and latency: what its API can show",
        )
    again = [s for s in found if s.role == "again"]
    if not again:
        return refused(stop_reason(run) or "nothing was sent twice", REPEAT)
    if all(s.cached_tokens is None for s in found):
        return None  # timed.py
    hits = sum(1 for s in again if s.cached_tokens)
    if not hits:
        return refused(
            f"nothing was cached when a prompt was sent again at once ({len(again)} times): prefix caching is off, or "
            "begins with longer prompts",
            "start the server with prefix caching, or kvbench probe granularity",
        )
    if hits < len(again):
        return refused(
            f"of {len(again)} prompts sent again at once {len(again) - hits} were not cached: several replicas, or a "
            "cache that gives things up",
            "address one replica by its own URL",
        )
    return None


def _disorder(after: Sequence[Reading]) -> str:
    if not after:
        return "the prompt sent last was not all there when it was asked for at once: replicas, or lapses"
    worst = max(after, key=lambda r: r.after)
    return (
        f"after the first prompt that was lost, older ones were still found ({worst.after:,} tokens, series "
        f"{worst.series}): not one cache whose least recently used go first. Several replicas, lapses, or a policy "
        "that does not evict by age"
    )


def _stated_memory(run: Run) -> int | None:
    value = run.info.settings.get("kv_memory_bytes")
    return value if isinstance(value, int) and value > 0 else None
