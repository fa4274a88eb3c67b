"""A probe's records by the names that its requests carry: SERIES/NUMBER.ROLE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvbench.model import Record
from kvbench.runs.reader import Run

MOST_EMPTY = 0.5
"""A token that is no whole character, or ends the text, comes as nothing: that is one answer now and then."""


class Step(NamedTuple):
    """One request of a probe. sent_tokens: as the endpoint counts them; ttft_s: None without a generated token."""

    series: str
    number: str
    role: str
    sent_tokens: int
    cached_tokens: int | None
    ttft_s: float | None
    record: Record

    @property
    def mostly_cached(self) -> bool:
        """Found, and not just what every prompt begins with: a chat template, say."""
        return 2 * (self.cached_tokens or 0) >= self.sent_tokens


def steps(run: Run) -> list[Step]:
    """The ok requests of a probe in the order of sending."""
    found = []
    for record in sorted(run.records, key=lambda r: r.clock.due):
        series, _, rest = record.request_id.partition("/")
        number, _, role = rest.partition(".")
        sent = record.usage.input_tokens or record.wanted_input_tokens
        if not record.ok or not role or sent is None:
            continue
        clock = record.clock
        ttft = None if clock.first_token is None or clock.sent is None else (clock.first_token - clock.sent) / 1e9
        found.append(Step(series, number, role.rstrip("0123456789"), sent, record.usage.cached_tokens, ttft, record))
    return found


def failure(run: Run) -> str | None:
    """Why a probe cannot be used: a request that failed (a trial may), or answers most of which had no token."""
    for record in run.records:
        if not record.ok and not (record.request_id.endswith(".trial") and record.http_status is not None):
            status = f"HTTP {record.http_status}, " if record.http_status is not None else ""
            return f"request {record.request_id} failed ({status}{record.error_class}: {record.error_message})"
    empty = sum(1 for record in run.records if record.clock.first_token is None)
    if empty > MOST_EMPTY * len(run.records):
        return f"{empty} of {len(run.records)} answers had no token in them (empty deltas)"
    return None


def stop_reason(run: Run) -> str | None:
    """Why a probe ended early, where it did."""
    reasons: Sequence[str] = [str(e.get("reason")) for e in run.events if e.get("kind") == "stopped"]
    if reasons:
        return reasons[-1]
    return None if run.info.status == "done" else f"the run is not complete (status {run.info.status})"
