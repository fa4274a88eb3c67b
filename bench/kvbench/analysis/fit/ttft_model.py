"""The form of a TTFT and its fit to observations, as arrays.

TTFT = max(floor, t0 + a u + k c + b (u c + u^2 / 2) + t_chunk ceil(u / chunk) + sum of tiers (t_tier + s_tier c_tier))

over u uncached tokens, c cached ones, and c_tier those of them that came up from a tier below HBM. A replay of r tokens
counts as uncached: u + r and c - r where anything was hit. Residuals are of log(TTFT) with a soft L1 loss, so that a
few late answers do not bend the fit; all terms are at least 0. Terms beyond t0, a and b are taken in one by one, each
only where it pays for itself (AIC, with a margin for having looked).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SOFT_L1_SCALE = 0.1
AIC_MARGIN = 10.0
"""Beyond 2 a parameter: several terms and sizes of a chunk are tried, and the best of them is looked at."""
FEWEST_TIER_ROWS = 8
FLOOR_STARTS = (0.05, 0.2, 0.4)
DRAWS = 100


@dataclass(frozen=True)
class Rows:
    """Observations, one an entry. group: what is drawn together in a bootstrap (a probe's cell, a session tree).

    below: tokens that came up from a tier; tier: which one, 1 the nearest, 0 none.
    """

    group: NDArray[np.str_]
    uncached: Floats
    cached: Floats
    ttft_s: Floats
    below: Floats
    tier: Ints

    @classmethod
    def of(
        cls,
        group: Sequence[str],
        uncached: Sequence[float],
        cached: Sequence[float],
        ttft_s: Sequence[float],
        below: Sequence[float] | None = None,
        tier: Sequence[int] | None = None,
    ) -> Rows:
        n = len(ttft_s)
        return cls(
            np.array(group, str),
            np.array(uncached, float),
            np.array(cached, float),
            np.array(ttft_s, float),
            np.zeros(n) if below is None else np.array(below, float),
            np.zeros(n, np.int64) if tier is None else np.array(tier, np.int64),
        )

    def __len__(self) -> int:
        return len(self.ttft_s)

    def take(self, which: NDArray[np.bool_] | Ints) -> Rows:
        return Rows(
            self.group[which],
            self.uncached[which],
            self.cached[which],
            self.ttft_s[which],
            self.below[which],
            self.tier[which],
        )

    def replayed(self, tokens: int) -> Rows:
        """With so many of each hit's last tokens computed again."""
        again = np.where(self.cached > 0, np.minimum(tokens, self.cached), 0.0)
        return replace(self, uncached=self.uncached + again, cached=self.cached - again)


@dataclass(frozen=True)
class Form:
    """Which terms there are besides t0, a and b. chunk: tokens of a prefill step. tiers: numbers of those fitted."""

    cached: bool = False
    chunk: int | None = None
    tiers: tuple[int, ...] = ()
    floor: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns, in order."""
        return (
            "ttft_base_s",
            "prefill_s_per_token",
            "attention_s_per_token2",
            *(("prefill_s_per_cached_token",) if self.cached else ()),
            *(("prefill_s_per_chunk",) if self.chunk else ()),
            *(name for tier in self.tiers for name in tier_names(tier)),
        )

    def columns(self, rows: Rows) -> Floats:
        """Shape (requests, terms)."""
        u, c = rows.uncached, rows.cached
        found = [np.ones_like(u), u, u * c + u**2 / 2]
        if self.cached:
            found.append(c)
        if self.chunk:
            found.append(np.ceil(u / self.chunk))
        for tier in self.tiers:
            there = (rows.tier == tier) & (rows.below > 0)
            found += [there.astype(float), np.where(there, rows.below, 0.0)]
        return np.column_stack(found)


def tier_names(tier: int) -> tuple[str, str]:
    """Names of a tier's two terms; the nearest has no number."""
    number = "" if tier == 1 else str(tier)
    return f"tier{number}_latency_s", f"tier{number}_s_per_token"


@dataclass(frozen=True)
class Fitted:
    """A form with its coefficients. floor_s 0.0: none."""

    form: Form
    terms: Floats
    floor_s: float = 0.0

    def predict(self, rows: Rows) -> Floats:
        """TTFT of each row, seconds."""
        return np.asarray(np.maximum(self.form.columns(rows) @ self.terms, self.floor_s))

    def log_residuals(self, rows: Rows) -> Floats:
        return np.asarray(np.log(rows.ttft_s / self.predict(rows)))


def fit_form(form: Form, rows: Rows) -> Fitted:
    """Least soft L1 loss of log residuals; every coefficient at least 0."""
    columns = form.columns(rows)
    if not form.floor:
        return Fitted(form, least(columns, rows.ttft_s))
    tried = []
    for quantile in FLOOR_STARTS:
        level = float(np.quantile(rows.ttft_s, quantile))
        above = rows.ttft_s > level * 1.1
        first = least(columns[above], rows.ttft_s[above]) if above.sum() > columns.shape[1] else None
        tried.append(_least_floored(columns, rows.ttft_s, level, first))
    terms, floor = min(tried, key=lambda found: _loss(np.maximum(columns @ found[0], found[1]), rows.ttft_s))
    return Fitted(form, terms, floor)


def choose(
    rows: Rows,
    *,
    cached: bool,
    chunk: int | None,
    chunks: Sequence[int],
    tiers: Sequence[int],
) -> Fitted:
    """The form that the rows support, and its fit.

    cached: whether a cached token's own time may be a term. chunk: its known size; None: one of `chunks` may be found.
    tiers: those that rows came from.
    """
    best = fit_form(Form(), rows)
    loss = _loss(best.predict(rows), rows.ttft_s)
    while True:
        found = []
        for form, parameters in _larger(best.form, cached, chunk, chunks, tiers):
            fitted = fit_form(form, rows)
            other = _loss(fitted.predict(rows), rows.ttft_s)
            gain = len(rows) * float(np.log(loss / other)) - 2 * parameters
            found.append((gain, other, fitted))
        if not found:
            return best
        gain, other, fitted = max(found, key=lambda one: one[0])
        if gain <= AIC_MARGIN:
            return best
        best, loss = fitted, other


def with_other_chunks(fitted: Fitted, rows: Rows, chunks: Sequence[int]) -> list[Fitted]:
    """Fits with another size of a prefill step that explain the rows as well: few lengths are cut alike by several."""
    loss = _loss(fitted.predict(rows), rows.ttft_s)
    others = [fit_form(replace(fitted.form, chunk=size), rows) for size in chunks if size != fitted.form.chunk]
    return [o for o in others if len(rows) * float(np.log(_loss(o.predict(rows), rows.ttft_s) / loss)) <= AIC_MARGIN]


def intervals(fitted: Fitted, rows: Rows) -> tuple[Floats, Floats, list[Fitted]]:
    """(low, high) of each term and the floor, 90%, shape (terms + 1,), and the draws they come from.

    By drawing groups again; what they spread is widened by the parameters that the fit itself takes up, and as
    Student's t is wider than the normal distribution where groups are few.
    """
    from scipy.stats import norm, t

    rng = np.random.default_rng(0)
    names = np.unique(rows.group)
    of = [np.flatnonzero(rows.group == name) for name in names]
    drawn = []
    for _ in range(DRAWS):
        which = np.concatenate([of[i] for i in rng.integers(0, len(of), len(of))])
        drawn.append(fit_form(fitted.form, rows.take(which)))
    table = np.array([[*one.terms, one.floor_s] for one in drawn])
    value = np.array([*fitted.terms, fitted.floor_s])
    spare = max(1, len(rows) - len(value))
    wider = np.sqrt(len(rows) / spare) * np.sqrt(len(of) / max(1, len(of) - 1))
    wider *= t.ppf(0.95, max(2, len(of) - 1)) / norm.ppf(0.95)
    low = value - (value - np.quantile(table, 0.05, axis=0)) * wider
    high = value + (np.quantile(table, 0.95, axis=0) - value) * wider
    return np.maximum(0.0, np.minimum(low, value)), np.maximum(high, value), drawn


def _larger(
    form: Form, cached: bool, chunk: int | None, chunks: Sequence[int], tiers: Sequence[int]
) -> list[tuple[Form, int]]:
    """Forms with one thing more, and how many parameters that is."""
    more = []
    if cached and not form.cached:
        more.append((replace(form, cached=True), 1))
    if form.chunk is None:
        more += [(replace(form, chunk=chunk), 1)] if chunk else [(replace(form, chunk=size), 2) for size in chunks]
    more += [(replace(form, tiers=(*form.tiers, tier)), 2) for tier in tiers if tier not in form.tiers]
    if not form.floor:
        more.append((replace(form, floor=True), 1))
    return more


def _loss(predicted: Floats, ttft_s: Floats) -> float:
    """Mean soft L1 loss of log residuals."""
    off = np.log(predicted / ttft_s) / SOFT_L1_SCALE
    return float(np.mean(2 * (np.sqrt(1 + off**2) - 1))) + 1e-9


def least(columns: Floats, ttft_s: Floats) -> Floats:
    from scipy.optimize import least_squares

    scale, start = _start(columns, ttft_s)
    scaled = columns / scale

    def residuals(p: Floats) -> Floats:
        return np.asarray(np.log(np.maximum(scaled @ p, 1e-12) / ttft_s))

    def slopes(p: Floats) -> Floats:
        return np.asarray(scaled / np.maximum(scaled @ p, 1e-12)[:, None])

    done = least_squares(
        residuals, start, slopes, bounds=(0, np.inf), loss="soft_l1", f_scale=SOFT_L1_SCALE, x_scale=start
    )
    return np.asarray(done.x / scale)


def _least_floored(columns: Floats, ttft_s: Floats, level: float, first: Floats | None) -> tuple[Floats, float]:
    from scipy.optimize import least_squares

    scale, start = _start(columns, ttft_s)
    if first is not None:
        start = np.maximum(first * scale, 1e-6 * ttft_s.min())
    scaled = columns / scale
    start = np.append(start, level)

    def residuals(p: Floats) -> Floats:
        return np.asarray(np.log(np.maximum(np.maximum(scaled @ p[:-1], p[-1]), 1e-12) / ttft_s))

    def slopes(p: Floats) -> Floats:
        line = scaled @ p[:-1]
        above = line >= p[-1]
        by_term = np.where(above[:, None], scaled / np.maximum(line, 1e-12)[:, None], 0.0)
        return np.column_stack([by_term, np.where(above, 0.0, 1 / max(p[-1], 1e-12))])

    done = least_squares(
        residuals, start, slopes, bounds=(0, np.inf), loss="soft_l1", f_scale=SOFT_L1_SCALE, x_scale=start
    )
    return np.asarray(done.x[:-1] / scale), float(done.x[-1])


def _start(columns: Floats, ttft_s: Floats) -> tuple[Floats, Floats]:
    """(what columns are divided by, where to begin)."""
    from scipy.optimize import nnls

    scale = np.maximum(np.abs(columns).max(axis=0), 1e-300)
    weighted = columns / scale / ttft_s[:, None]
    first, _ = nnls(weighted, np.ones_like(ttft_s))
    return scale, np.maximum(first, 1e-3 * ttft_s.min())
