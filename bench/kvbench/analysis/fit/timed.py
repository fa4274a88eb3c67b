"""Capacity where no cached tokens are reported: TTFT tells hits from misses, where controls show that it does.

Controls are prompts sent twice at once, the first time a miss, the second a hit. log(TTFT) of each group is taken for
normal; what another one of the group would be is then a Student t with the group's n - 1 degrees of freedom, and the
share that would fall on the wrong side of the best border between the two is the misclassification. Of prompts read
latest first n are hits, one may be there in part, and the rest are misses: n has a probability by these densities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
)
from kvbench.analysis.fit.steps import Step
from kvbench.model import Estimate, FitReport, Refusal

FEWEST_CONTROLS = 5
MOST_MISTAKEN = 0.01
STRAY = 0.01
"""Share of answers whose time has nothing to do with the cache."""
MOST_BLOCK = 256
SURE = 0.95
CLEAR = 100.0
"""How many times likelier a time is of one group than of the other, where no doubt is left."""
REPORTING = "an endpoint that reports cached tokens (vLLM: --enable-prompt-tokens-details)"

Floats = NDArray[np.float64]


class _Held(NamedTuple):
    """Tokens that the cache holds."""

    low: int
    value: float
    high: int
    prompts: int


class Times:
    """log(TTFT) of a group of controls, and what another one would be."""

    def __init__(self, seconds: Sequence[float]) -> None:
        logs = np.log(np.array(seconds))
        self.n = len(logs)
        self.middle = float(logs.mean())
        # two times that happen to be equal do not make all others equal
        self.scale = max(float(logs.std(ddof=1)), 0.01) * math.sqrt(1 + 1 / self.n)

    def density(self, logs: Floats) -> Floats:
        from scipy.stats import t

        return np.asarray(t.pdf((logs - self.middle) / self.scale, self.n - 1) / self.scale)

    def likelier(self, other: Times, seconds: Floats) -> Floats:
        """Density of one more of this group over that of one more of the other."""
        logs = np.log(seconds)
        with np.errstate(divide="ignore"):
            return np.asarray(np.divide(self.density(logs), other.density(logs)))

    def below(self, logs: Floats) -> Floats:
        """Share of others that would be faster."""
        from scipy.stats import t

        return np.asarray(t.cdf((logs - self.middle) / self.scale, self.n - 1))


def misclassified(hits: Times, misses: Times) -> float:
    """Share of hits and misses, one as frequent as the other, on the wrong side of the best border; 0.5 where hits are
    not the faster ones."""
    if hits.middle >= misses.middle:
        return 0.5
    borders = np.linspace(hits.middle, misses.middle, 201)
    return float(((1 - hits.below(borders) + misses.below(borders)) / 2).min())


def fit_timed(
    name: str, found: Sequence[Step], memory: int | None, stop: str | None, assumed: tuple[str, ...]
) -> FitReport:
    """capacity_tokens, and bytes_per_token where the memory is known; refused where the controls are too few or
    overlap. stop: why the probe ended early, if it did."""

    def no(reason: str, experiment: str) -> FitReport:
        return FitReport(runs=(name,), refusals=(refused(reason, experiment),))

    controls = [s for s in found if s.series.startswith("control") and s.ttft_s]
    series = controls[-1].series if controls else ""
    again = [s.ttft_s or 0.0 for s in controls if s.series == series and s.role == "again"]
    first = [s.ttft_s or 0.0 for s in controls if s.series == series and s.role == "prime"]
    told = "the endpoint reports no cached tokens"
    if min(len(again), len(first)) < FEWEST_CONTROLS:
        return no(
            f"{told}, and {len(again)} hits and {len(first)} misses that are known to be some are too few to go by "
            f"times: at least {FEWEST_CONTROLS} of each",
            REPORTING,
        )
    hits, misses = Times(again), Times(first)
    mistaken = misclassified(hits, misses)
    if mistaken >= MOST_MISTAKEN:
        return no(
            f"{told}, and TTFT does not tell: of {len(first)} prompts of {series.removeprefix('control')} tokens, "
            f"{math.exp(misses.middle):.3g} s the first time and {math.exp(hits.middle):.3g} s when sent again, "
            f"{mistaken * 100:.2g}% would be mistaken for the other (limit {MOST_MISTAKEN * 100:g}%)",
            f"{REPORTING}; or {REPEAT} --input-tokens with a longer prompt, if prefix caching is on",
        )
    for each in _series(found):
        if older := _found_after(each, found, hits, misses):
            return no(
                f"{told}; by TTFT {older} prompts older than one that was lost were still found (series {each}): not "
                "one cache whose least recently used go first, or an answer that something else held up",
                f"{REPEAT} again; one replica, with nothing else on it",
            )
    aged = np.array([s.ttft_s for s in found if s.role == AGED and s.ttft_s])
    if (misses.likelier(hits, aged) > 1).any():
        return FitReport(runs=(name,), refusals=(by_age(),), misfit=AGE)
    counted = [c for c in (_count(name_of, found, hits, misses) for name_of in _series(found)) if c is not None]
    if not counted:
        why = f": {stop}" if stop else ""
        return no(
            f"the cache did not overflow, as far as TTFT tells{why}",
            "a larger budget, or --input-tokens with a longer prompt",
        )
    again_found = _more_once_more(found, hits, misses)
    if again_found is not None:
        return FitReport(runs=(name,), refusals=(again_found,), misfit=OTHERS)
    low, value, high = max(c.low for c in counted), counted[-1].value, min(c.high for c in counted)
    if low > high:
        return no(f"{told}, and by TTFT the readings do not agree", f"{REPEAT} again with nothing else on the endpoint")
    requests = sum(1 for s in found if s.role in ("prime", "read", "again"))
    method = (
        f"prompts found by their TTFT, latest first; {len(again)} hits and {len(first)} misses known to be some, "
        f"{mistaken * 100:.2g}% mistaken"
    )
    estimates = [
        Estimate(
            name="capacity_tokens",
            value=min(max(value, low), high),
            low=low,
            high=high,
            unit="tokens",
            method=method,
            n=requests,
        )
    ]
    refusals: tuple[Refusal, ...] = (no_memory(),)
    if memory is not None:
        refusals = ()
        estimates.append(
            Estimate(
                name="bytes_per_token",
                value=memory / min(max(value, low), high),
                low=memory / high,
                high=memory / low,
                unit="bytes/token",
                method="memory over capacity: as allocated",
                n=requests,
            )
        )
    assumed += (
        f"blocks of at most {MOST_BLOCK} tokens in layers that keep all of them: times show neither",
        "a prompt sent again at once is found: the controls rest on it",
        *not_asked(found),
    )
    return FitReport(runs=(name,), estimates=tuple(estimates), refusals=refusals, assumed=assumed)


def _series(found: Sequence[Step]) -> list[str]:
    return list(dict.fromkeys(s.series for s in found if s.role == "read"))


def _found_after(series: str, found: Sequence[Step], hits: Times, misses: Times) -> int:
    """Prompts surely found after one that surely was not, in one reading: under LRU none are."""
    ratio = hits.likelier(misses, _seconds(series, found, "read"))
    lost = np.flatnonzero(ratio < 1 / CLEAR)
    return int((ratio[lost[0] :] > CLEAR).sum()) if len(lost) else 0


def _more_once_more(found: Sequence[Step], hits: Times, misses: Times) -> Refusal | None:
    """What reading a series once more says of others who write: hits take no room."""
    for series in dict.fromkeys(s.series for s in found if s.role == REREAD):
        first = _count(series, found, hits, misses)
        again = int((hits.likelier(misses, _seconds(series, found, REREAD)) > 1).sum())
        if first is not None and (more := found_more(first.prompts, again)) is not None:
            return more
    return None


def _seconds(series: str, found: Sequence[Step], role: str) -> Floats:
    return np.array([s.ttft_s for s in found if s.series == series and s.role == role and s.ttft_s])


def _count(series: str, found: Sequence[Step], hits: Times, misses: Times) -> _Held | None:
    """By one reading; None where no miss was certain."""
    read = [s for s in found if s.series == series and s.role == "read" and s.ttft_s]
    logs = np.log(np.array([s.ttft_s for s in read]))
    span = 2 * (misses.middle - hits.middle)
    hit, miss = ((1 - STRAY) * group.density(logs) + STRAY / span for group in (hits, misses))
    part = np.full(len(logs), 1 / span)
    # n hits, then one that may be there in part, then misses; n = all of them: nothing was lost
    weights = []
    for n in range(len(logs) + 1):
        rest = 0.0 if n == len(logs) else math.log((part[n] + miss[n]) / 2) + float(np.log(miss[n + 1 :]).sum())
        weights.append(float(np.log(hit[:n]).sum()) + rest)
    chance = np.exp(np.array(weights) - max(weights))
    chance /= chance.sum()
    if chance[-1] > (1 - SURE) / 2:
        return None
    heaped = np.cumsum(chance)
    least = int(np.searchsorted(heaped, (1 - SURE) / 2))
    most = int(np.searchsorted(heaped, 1 - (1 - SURE) / 2))
    shortest, longest = min(s.sent_tokens for s in read), max(s.sent_tokens for s in read)
    # the last one that is as fast as a hit may lack its end; the first that is not may have been there in part
    return _Held(
        low=max(0, least - 1) * ((shortest - 1) // MOST_BLOCK * MOST_BLOCK),
        value=(int(np.argmax(chance)) + 0.5) * (longest - 1),
        high=(most + 1) * (longest - 1 + MOST_BLOCK),
        prompts=int(np.argmax(chance)),
    )
