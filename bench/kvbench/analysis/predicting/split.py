"""A run held against itself: fitted on half of its session trees, predicted on the other half, in the order it had."""

from __future__ import annotations

import random

import numpy as np
from msgspec.structs import replace

from kvbench.analysis.fit.given import NOTHING_GIVEN, Given
from kvbench.analysis.fit.inversion import Prediction
from kvbench.analysis.fit.latency_rows import timed_of
from kvbench.analysis.fit.served import served
from kvbench.analysis.fit.trace import fit_trace
from kvbench.analysis.fit.ttft import latency_of
from kvbench.analysis.predicting.predict import rows_of, ttft_figures
from kvbench.errors import RefusedError
from kvbench.model import Figure, FitReport, Predicted, Record, Refusal
from kvbench.runs.blocks import read_blocks
from kvbench.runs.reader import Run

FEWEST_TREES = 4


def split(run: Run, given: Given = NOTHING_GIVEN) -> Predicted:
    """RefusedError for fewer than four session trees. Which trees are fitted on is drawn, the same ones each time."""
    roots = sorted({_root(r) for r in run.records})
    if len(roots) < FEWEST_TREES:
        raise RefusedError(
            f"{run.path}: {len(roots)} session trees cannot be split: at least {FEWEST_TREES} are needed",
            hint="name another run to predict",
        )
    random.Random(0).shuffle(roots)
    half = roots[: len(roots) // 2]
    fitted_on = set(half)
    masked = [
        r if _root(r) in fitted_on else replace(r, usage=replace(r.usage, cached_tokens=None)) for r in run.records
    ]
    capacity = fit_trace(Run(info=run.info, records=masked, events=run.events, warnings=run.warnings, path=run.path))
    found = capacity.named("capacity_tokens")
    refusals = [
        Refusal(name="hit_rate", reason=r.reason, experiment=r.experiment)
        for r in capacity.refusals
        if r.name == "capacity_tokens"
    ]
    figures: list[Figure] = []
    if found is not None:
        least = found.low or 0.0
        several = [found.low or least, found.value or least, found.high or least]
        hits = [_hits(run, tokens) for tokens in several]
        counted = [r for r in run.records if r.request_id in hits[0] and _root(r) not in fitted_on and _counts(r)]
        asked = sum(r.usage.input_tokens or 0 for r in counted)
        rates = [sum(h[r.request_id] for r in counted) / max(1, asked) for h in hits]
        seen = sum(r.usage.cached_tokens or 0 for r in counted) / max(1, asked)
        figures.append(
            Figure(
                name="hit_rate", value=rates[1], low=min(rates), high=max(rates), unit="share of input tokens",
                observed=seen, error=rates[1] - seen,
            )
        )  # fmt: skip
        latency = latency_of(run, given, only=half)
        if isinstance(latency, FitReport):
            refusals += [Refusal(name="ttft_p50_s", reason=r.reason, experiment=r.experiment) for r in latency.refusals]
        else:
            alone = [r for r in timed_of(run).records if _root(r) not in fitted_on and r.request_id in hits[0]]
            lengths = np.array([r.usage.input_tokens or 0 for r in alone], np.int64)
            rows = [rows_of(latency, lengths, np.array([h[r.request_id] for r in alone], float)) for h in hits]
            made = ttft_figures(latency, rows, [_ttft_s(r) for r in alone]) if alone else []
            figures += made if isinstance(made, list) else []
            refusals += [made] if isinstance(made, Refusal) else []
    return Predicted(
        fitted_on=f"{len(half)} of {len(roots)} session trees of {run.path}",
        target=f"the other {len(roots) - len(half)}",
        how="in the order that the run had",
        capacity_tokens=None if found is None else found.value,
        requests=sum(1 for r in run.records if _root(r) not in fitted_on and r.ok and r.final),
        figures=tuple(figures),
        refusals=tuple(refusals),
        cliff=None,
        notes=("times are of requests that no other was in flight beside",),
    )


def _hits(run: Run, capacity_tokens: float) -> dict[str, float]:
    """Predicted tokens of every request that was sent, by request_id, in the order that the run had."""
    what = served(run)
    if what is None:
        return {}
    records = {(r.request_id, r.attempt): r for r in run.records}
    sent = [
        records[row.request_id, row.attempt]
        for row in read_blocks(run.path)
        if (row.request_id, row.attempt) in records
    ]
    order = sorted(range(len(sent)), key=lambda i: (_at(sent[i]), i))
    ids = [sent[i].request_id for i in order if sent[i].ok and sent[i].usage.cached_tokens is not None]
    blocks = Prediction(what).blocks(capacity_tokens / what.block_size)[what.known]
    return dict(zip(ids, (blocks * what.block_size).tolist(), strict=True))


def _root(record: Record) -> str:
    return record.root_id or record.session_id


def _counts(record: Record) -> bool:
    return record.ok and record.final and record.phase == "measure" and record.usage.cached_tokens is not None


def _at(record: Record) -> int:
    return record.clock.sent if record.clock.sent is not None else record.clock.due


def _ttft_s(record: Record) -> float:
    assert record.clock.first_token is not None
    assert record.clock.sent is not None
    return (record.clock.first_token - record.clock.sent) / 1e9
