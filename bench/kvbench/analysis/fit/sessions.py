"""Bytes a token and bytes a session, where hits are whole or nothing: sliding windows, state layers.

n sessions of L tokens were held and no more. With M the memory, m bytes a token in layers that keep all of them, and F
bytes a session in those that do not, once it is longer than their window of w tokens:

    n (F min(1, L / w) + m L) <= M < (n + 1) (F min(1, L / w) + m L) + F / w max(0, L - w)

The last term is what the prompt sent last took while it was computed: a window layer holds all tokens of a prefill, and
gives back those outside of the window when it is done, too late for those it has pushed out. Both unknowns are bounded
by a linear program over all lengths. Layers with a state (Mamba, linear attention) have no window and no such term.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvbench.analysis.fit.refused import REPEAT, no_memory, refused
from kvbench.analysis.fit.steps import Step
from kvbench.model import Estimate, FitReport, Misfit, Refusal

LENGTHS = 3


class Held(NamedTuple):
    """One length's reading: whole sessions, cached tokens of one, cached tokens of the first that was not whole, tokens
    sent, and the grain of hits."""

    whole: int
    hit: int
    part: int
    length: int
    grain: int


class Window(NamedTuple):
    """Tokens that window layers keep: at least, at most. (0, 0): no prompt was kept whole, as with a state."""

    low: int
    high: int


def kept_window(found: Sequence[Step], grain: int) -> Window | None:
    """From prompts of which half was asked for: found where all blocks of the window layers had been kept, so where the
    prompt was no longer than the window. None: not asked, or no length parts the two."""
    sent = {s.series: s.sent_tokens for s in found if s.series.startswith("window") and s.role == "prime"}
    halves = [(sent[s.series], bool(s.cached_tokens)) for s in found if s.role == "half" and s.series in sent]
    kept = max((length for length, hit in halves if hit), default=0)
    lost = min((length for length, hit in halves if not hit), default=0)
    if not lost or kept > lost:
        return None
    return Window(max(0, kept - grain), lost) if kept else Window(0, 0)


def heads_first(found: Sequence[Step]) -> Refusal | None:
    """Where half of each prompt was found: its blocks are kept one by one, as in a cache of blocks."""
    halves = [s for s in found if s.role == "half"]
    if not halves or not all(s.cached_tokens for s in halves):
        return None
    longest = max(s.sent_tokens for s in found if s.series in {half.series for half in halves})
    return refused(
        "what was lost left no part, and yet half of a prompt can be hit: blocks are kept one by one and "
        f"a prompt's head goes before its tail, or layers keep a window of more than {longest:,} tokens",
        f"{REPEAT} --input-tokens with longer prompts, or the server's own word on what it evicts first",
    )


def by_session(
    name: str,
    held: Sequence[Held],
    window: Window | None,
    *,
    memory: int | None,
    requests: int,
    assumed: tuple[str, ...],
    notes: tuple[str, ...],
    residuals: tuple[dict[str, object], ...],
) -> FitReport:
    """bytes_per_token and bytes_per_session, or why not. memory None: as shares of it."""

    def no(reason: str, experiment: str, misfit: Misfit | None = None) -> FitReport:
        refusals = (refused(reason, experiment),)
        return FitReport(runs=(name,), refusals=refusals, misfit=misfit, notes=notes, residuals=residuals)

    told = "what is held depends on the length of prompts, so a session takes bytes besides its tokens"
    if window is None:
        return no(
            f"{told}; from which length on was not found, so the two cannot be told apart",
            f"{REPEAT} with a larger --max-requests",
        )
    usable = [h for h in held if h.length > window.high]
    if len({h.length for h in usable}) < LENGTHS:
        beyond = f" beyond the window of {window.high:,} tokens" if window.high else ""
        return no(
            f"{told}; {len({h.length for h in usable})} lengths{beyond} were read, and at least {LENGTHS} are needed",
            f"{REPEAT} --input-tokens L1,L2,L3 with lengths{beyond} a factor of two apart",
        )
    region = session_bounds(held, window)
    if region is None:
        return no(
            "no bytes a token and bytes a session fit what was held at all lengths",
            f"{REPEAT} again with nothing else on the endpoint",
            Misfit(share=1.0, limit=0.0, causes=("other traffic", "replicas", "another policy of eviction")),
        )
    scale, suffix, of = (1.0, " as shares of the memory", "memory") if memory is None else (float(memory), "", "bytes")
    method = f"linear program over {len(held)} lengths; hits are whole sessions{suffix}"
    (m_low, m_high), (f_low, f_high) = region
    made = [
        Estimate(
            name=what,
            value=scale * (low + high) / 2,
            low=scale * low,
            high=scale * high,
            unit=unit,
            method=method,
            n=requests,
        )
        for what, unit, low, high in (
            ("bytes_per_token", f"{of}/token", m_low, m_high),
            ("bytes_per_session", f"{of}/session", f_low, f_high),
        )
    ]
    if window.high:
        made.append(
            Estimate(
                name="window_tokens",
                value=(window.low + window.high) / 2,
                low=window.low,
                high=window.high,
                unit="tokens",
                method="half of a prompt can be hit only where all of it was kept, so where it is no longer than that",
                n=requests,
            )
        )
    else:
        assumed += ("no window was found, so these are layers with a state: a prefill takes no more of it than one",)
    whole = Refusal(
        name="capacity_tokens",
        reason="one number would be wrong: how many tokens are held depends on how long sessions are",
        experiment="sessions of length n that fit: memory / (bytes_per_session + bytes_per_token * n)",
    )
    refusals = (whole,) if memory is not None else (whole, no_memory())
    return FitReport(
        runs=(name,), estimates=tuple(made), refusals=refusals, assumed=assumed, notes=notes, residuals=residuals
    )


def session_bounds(held: Sequence[Held], window: Window) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """((low, high) of m, (low, high) of F), as shares of the memory, or None where nothing fits.

    A session found whole takes at least its hit tokens, and at most a grain more than it was sent; of the first one
    lost, a part may have been left.
    """
    from scipy.optimize import linprog

    above, limits = [], []
    for whole, hit, part, length, grain in held:
        most = length + grain
        state = min(1.0, hit / window.high) if window.high else 1.0
        above.append([whole * hit + part, whole * state])
        limits.append(1.0)
        state, prefill = 1.0, 0.0
        if window.high:
            least = max(1, window.low)
            state, prefill = min(1.0, most / least), max(0.0, most / least - 1)
        above.append([-(whole + 1) * most, -(whole + 1) * state - prefill])
        limits.append(-1.0)
    # in units of the first length, so that both unknowns are of one size
    size = held[0].length
    rows = [[row[0] / size, row[1]] for row in above]
    ends = []
    for cost in ([1, 0], [-1, 0], [0, 1], [0, -1]):
        done = linprog(cost, A_ub=rows, b_ub=limits, bounds=[(0, None), (0, None)], method="highs")
        if done.status != 0:
            return None
        ends.append(float(done.fun))
    return (ends[0] / size, -ends[1] / size), (ends[2], -ends[3])
