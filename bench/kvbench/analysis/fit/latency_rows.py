"""What a run says of time: requests that had the server to themselves, as the rows of a fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvbench.analysis.fit.steps import steps
from kvbench.analysis.fit.ttft_model import Rows
from kvbench.model import Record
from kvbench.runs.reader import Run

MOST_BOUND = 0.05
"""Of its TTFT: in a run whose client was late at times, an arrival that may be dated later than by this is left out."""
RESTORED = "restored"
"""Event of a probe: what the server's counters said of one request. request_id, tokens (from below HBM)."""
EXTERNAL = "external_kv_transfer"


@dataclass(frozen=True)
class Timed:
    """rows, and the records they are of. told: the server says which hits came from below HBM; some_below: it says only
    that some did (None: it says nothing). left_out: requests that others ran beside; late: those whose arrival may be
    dated too late."""

    rows: Rows
    records: tuple[Record, ...]
    told: bool
    some_below: bool | None
    left_out: int = 0
    late: int = 0


def timed_of(run: Run) -> Timed:
    """Of a latency probe its reads; of an ordinary run the requests that no other was in flight beside.

    Where the client's own error was too large over the run, only arrivals that are dated well enough, each by its own
    bound: how late a client reads does not depend on what the server took.
    """
    timed = _timed_of(run)
    if run.info.trust is None or run.info.trust.verdict == "ok":
        return timed
    good = np.array([_well_dated(r) for r in timed.records], bool)
    return replace(
        timed,
        rows=timed.rows.take(good),
        records=tuple(r for r, kept in zip(timed.records, good, strict=True) if kept),
        late=int((~good).sum()),
    )


def _timed_of(run: Run) -> Timed:
    restored = {
        str(e["request_id"]): float(e["tokens"])
        for e in run.events
        if e.get("kind") == RESTORED and e.get("tokens") is not None
    }
    if run.info.settings.get("probe") is not None:
        return _of_probe(run, restored)
    records = _final(run)
    alone = alone_of(run.records)
    kept = [r for r in records if r.request_id in alone and r.usage.cached_tokens is not None]
    rows = Rows.of(
        [r.root_id or r.session_id for r in kept],
        [(r.usage.input_tokens or 0) - (r.usage.cached_tokens or 0) for r in kept],
        [r.usage.cached_tokens or 0 for r in kept],
        [_ttft_s(r) for r in kept],
    )
    return Timed(
        rows,
        tuple(kept),
        told=False,
        some_below=_some_below(run),
        left_out=sum(1 for r in records if r.request_id not in alone),
    )


def alone_of(records: Iterable[Record]) -> set[str]:
    """request_ids of those that were answered while no other request was in flight, from sending to the end."""
    spans = sorted(
        (r.clock.sent, r.clock.end if r.clock.end is not None else r.clock.sent, r.request_id)
        for r in records
        if r.clock.sent is not None
    )
    found: set[str] = set()
    latest = -1
    for i, (sent, end, name) in enumerate(spans):
        following = spans[i + 1][0] if i + 1 < len(spans) else None
        if sent >= latest and (following is None or following >= end):
            found.add(name)
        latest = max(latest, end)
    return found


def _of_probe(run: Run, restored: dict[str, float]) -> Timed:
    """Its reads, and what was sent before each so that it is there: the first of them are misses, and the others hits
    where the server counts nothing from below HBM."""
    every = steps(run)
    designed_rows = any(s.series.startswith("tier") for s in every)
    in_hbm = not designed_rows and _some_below(run) is False
    found = [
        s
        for s in every
        if s.ttft_s is not None
        and s.cached_tokens is not None
        and (s.role == "read" or (s.role == "again" and not designed_rows and (in_hbm or not s.cached_tokens)))
    ]
    below, tier = [], []
    for s in found:
        designed = int(s.series[4 : s.series.index("cell")]) if s.series.startswith("tier") else 0
        tokens = restored.get(s.record.request_id, float(s.cached_tokens or 0) if designed else 0.0)
        below.append(tokens)
        tier.append(designed if tokens else 0)
    rows = Rows.of(
        [s.series for s in found],
        [s.sent_tokens - (s.cached_tokens or 0) for s in found],
        [s.cached_tokens or 0 for s in found],
        [s.ttft_s or 0.0 for s in found],
        below,
        tier,
    )
    return Timed(
        rows,
        tuple(s.record for s in found),
        told=bool(restored) or not designed_rows,
        some_below=bool(np.any(rows.below > 0)) if restored or not designed_rows else None,
    )


def _final(run: Run) -> list[Record]:
    return [
        r
        for r in run.records
        if r.ok
        and r.final
        and r.clock.sent is not None
        and r.clock.first_token is not None
        and r.usage.input_tokens is not None
    ]


def _ttft_s(record: Record) -> float:
    assert record.clock.first_token is not None
    assert record.clock.sent is not None
    return (record.clock.first_token - record.clock.sent) / 1e9


def _well_dated(record: Record) -> bool:
    bound = record.clock.first_token_bound_ns
    return bound is not None and bound / 1e9 <= MOST_BOUND * _ttft_s(record)


def _some_below(run: Run) -> bool | None:
    """Whether the server's counters say that some tokens of the run came from below HBM."""
    seen = [
        _external(e["metrics"].get("prompt_tokens_by_source"))
        for e in run.events
        if e.get("kind") == "metrics" and isinstance(e.get("metrics"), dict)
    ]
    known: Sequence[float] = [value for value in seen if value is not None]
    return None if len(known) < 2 else known[-1] > known[0]


def _external(by_source: object) -> float | None:
    return float(by_source[EXTERNAL]) if isinstance(by_source, dict) and EXTERNAL in by_source else None
