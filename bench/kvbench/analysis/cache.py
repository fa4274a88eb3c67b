"""Prefix-cache figures: hit rates, classes of hits, and what was hit against what was expected. Token-weighted."""

from __future__ import annotations

import pandas as pd

from kvbench.model import ExpectedHits

HIT_CLASSES = ("none", "part", "full")


def reported(ok: pd.DataFrame) -> pd.DataFrame:
    """The turns that report both input and cached tokens: all that a hit rate can be taken over."""
    return ok[ok["input_tokens"].notna() & ok["cached_tokens"].notna()]


def hit_rate(ok: pd.DataFrame) -> float | None:
    """sum(cached) / sum(input) over the turns that report both; None where there are none."""
    told = reported(ok)
    return _ratio(told["cached_tokens"], told["input_tokens"])


def eligible_hit_rate(ok: pd.DataFrame) -> float | None:
    """sum(cached) / sum(input + output of the session's previous turn): of what the session itself had put into the
    cache, how much was hit. Over turns whose previous turn was ok and reports its tokens. Above 1 where sessions also
    hit each other's prefixes; low where a turn replaces its context.
    """
    told = reported(ok)
    previous = told[["session_id", "turn", "input_tokens", "output_tokens"]].assign(turn=told["turn"] + 1)
    pairs = told.merge(previous, on=["session_id", "turn"], suffixes=("", "_before"))
    pairs = pairs[pairs["output_tokens_before"].notna()]
    return _ratio(pairs["cached_tokens"], pairs["input_tokens_before"] + pairs["output_tokens_before"])


def hit_classes(ok: pd.DataFrame) -> pd.Series:
    """Each reporting turn's class: none (no cached token), full (all that the rule allows), part (the rest).

    The rule allows the expectation's ceiling. Turns without an expectation are left out: what they could have hit is
    not known, and a class that means something else for them would be compared with the real one.
    """
    told = reported(ok)
    told = told[told["expected_ceiling_tokens"].notna()]
    full = told["cached_tokens"] >= told["expected_ceiling_tokens"]
    classes = pd.Series("part", index=told.index, dtype=object)
    classes[full] = "full"
    classes[told["cached_tokens"] == 0] = "none"
    return classes


def expected_hits(ok: pd.DataFrame) -> ExpectedHits | None:
    """Reported against expected, over the turns that have both; None where there are none."""
    told = reported(ok)
    told = told[told["expected_floor_tokens"].notna() & told["expected_ceiling_tokens"].notna()]
    if told.empty:
        return None
    cached, floor, ceiling = (told[f"{name}_tokens"] for name in ("cached", "expected_floor", "expected_ceiling"))
    return ExpectedHits(
        rule=", ".join(sorted({str(rule) for rule in told["rule"]})),
        turns=len(told),
        floor=_ratio(floor, told["input_tokens"]),
        ceiling=_ratio(ceiling, told["input_tokens"]),
        below=int((cached < floor).sum()),
        above=int((cached > ceiling).sum()),
        exact=int(((floor == ceiling) & (cached == floor)).sum()),
    )


def _ratio(part: pd.Series, whole: pd.Series) -> float | None:
    total = int(whole.sum())
    return int(part.sum()) / total if total > 0 else None
