"""A run's attempts as requests to be billed: every one that was sent, warm-up and retries too."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

from kvbench.analysis.pricing.report import Source
from kvbench.model import Record
from kvbench.prices.priced import Billable
from kvbench.runs.reader import Run, status_text
from kvbench.usage import normalise

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNPREDICTED = ("no_expectation", "expectation_incomplete")


def run_source(run: Run) -> Source:
    notes = [f"{warning.message}" for warning in run.warnings]
    status = status_text(run.info, run.path)
    if status != "done":
        notes.append(f"the run is {status}: what was in flight at its end may be billed and is not in it")
    if run.info.zero_unix_ns is None:
        notes.append(
            "this run did not note when its clock began: its times count from when it was ready to send, and may be "
            "late by the seconds that finding the endpoint took"
        )
    unpredicted = [warning.message for warning in run.warnings if warning.code in _UNPREDICTED]
    unpredicted += [warning.message for warning in run.info.warnings if warning.code in _UNPREDICTED]
    return Source(
        kind="run",
        path=str(run.path),
        notes=tuple(notes),
        not_sent=sum(not _was_sent(record) for record in run.records),
        host=urlsplit(str(run.info.endpoint.get("url") or "")).hostname,
        unpredicted="; ".join(dict.fromkeys(unpredicted)) or "attempts that failed, or were made again, have none",
    )


def run_billables(run: Run, model: str | None = None) -> Iterator[Billable]:
    """In the order in which they ended. model: prices all as this one."""
    return (billable for _, billable in run_attempts(run, model))


def run_attempts(run: Run, model: str | None = None) -> Iterator[tuple[Record, Billable]]:
    """Each attempt that was sent, with what it comes to on a bill.

    The usage object is read again as it came, so that a run of an older kvbench has the kinds it did not know.
    """
    zero = _zero(run)
    default = run.info.server.get("model")
    ended = {(r.session_id, r.turn): r.clock.end for r in run.records if r.final}
    for record in run.records:
        if not _was_sent(record):
            continue
        clock, expected = record.clock, record.expectation
        sent_ns = next((ns for ns in (clock.upload_start, clock.sent, clock.due) if ns is not None), None)
        before_ns = ended.get((record.session_id, record.turn - 1))
        named = record.request_model or record.response_model or (str(default) if default else None)
        yield (
            record,
            Billable(
                request_id=record.request_id + (f"#{record.attempt}" if record.attempt else ""),
                model=model or named,
                usage=record.usage if record.usage_raw is None else normalise(record.usage_raw),
                start=None if sent_ns is None else zero + timedelta(microseconds=sent_ns / 1000),
                end=None if clock.end is None else zero + timedelta(microseconds=clock.end / 1000),
                failed=_was_refused(record),
                floor=None if expected is None else expected.floor,
                ceiling=None if expected is None else expected.ceiling,
                rule=None if expected is None else expected.rule,
                turn=record.turn,
                pause_s=None if sent_ns is None or before_ns is None else max(0, sent_ns - before_ns) / 1e9,
                sub_agent=record.session_id != record.root_id if record.root_id else None,
                response_model=None if model is not None else record.response_model,
                response_id=record.response_id,
            ),
        )


def _was_sent(record: Record) -> bool:
    """Or may have been: what a run's abortion cut off is recorded without the times that its connection knew."""
    aborted = record.error_class == "cancelled" and record.clock.end is not None
    return record.clock.upload_start is not None or record.clock.sent is not None or aborted


def _was_refused(record: Record) -> bool:
    """The endpoint said that it will not answer. What broke off, or never came back, may have been billed."""
    return not record.ok and record.http_status is not None and record.http_status >= 400


def _zero(run: Run) -> datetime:
    zero_ns = run.info.zero_unix_ns
    if zero_ns is not None:
        return _EPOCH + timedelta(microseconds=zero_ns / 1000)
    return datetime.fromisoformat(run.info.started_at)
