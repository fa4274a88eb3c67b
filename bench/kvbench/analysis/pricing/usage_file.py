"""Usage files: JSONL of {time, model, usage} a request, the usage in any provider's shape; and the calls of a log.

Also read of a line where they are there: id (records of one id are one request), end (the time it ended, where `time`
is its start), batch (true: of a batch), finish_reason or stop_reason (null: the answer had not ended when it was
counted), place. A usage that is a list holds what one stream reported: the last that is not null counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from kvbench.analysis.pricing.log_hits import expected_of_log
from kvbench.analysis.pricing.report import Source
from kvbench.errors import InputError
from kvbench.model import Expectation
from kvbench.prices.priced import Billable, Unpriced
from kvbench.traces.formats.calls import time_s
from kvbench.traces.formats.sink import LoggedUsage
from kvbench.traces.formats.source import SourceFile
from kvbench.traces.import_report import count_of
from kvbench.traces.importing import LoggedCalls
from kvbench.traces.lines import LineError, decode_object
from kvbench.usage import normalise

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_2200_S = 7_258_118_400
_LOGS = {"body", "messages", "payload", "sessionId", "kvbench_trace", "standard_logging_object", "startTime", "type"}
CALLS_LEFT_OUT = ("several_calls", "broken", "no_usage_turn", "unfinished", "no_messages")
"""What a log's reader leaves out that may be calls somebody billed."""


def is_usage_file(path: Path) -> bool:
    """Whether its first object is a line of a usage file, and no log's."""
    head = SourceFile(path).head()
    if not head.text:
        raise InputError("empty: not one request in it", path=path)
    fields = head.fields()
    return "usage" in fields and not fields & _LOGS


def read_usage_file(path: Path, model: str | None = None) -> tuple[Source, list[Billable]]:
    """All requests of a usage file, in any order of its lines, those with one id once; lines that cannot be read are
    the source's `unreadable`. Raises InputError for a file that cannot be read."""
    kept: dict[str, tuple[tuple[Any, ...], Billable]] = {}
    found: list[Billable] = []
    unreadable: list[Unpriced] = []
    duplicates = local = 0
    for line, raw in SourceFile(path).values():
        place = f"{path.name}:{line}" if line else path.name
        try:
            name, billable, zoneless = _line(decode_object(raw), place, model)
            local += zoneless
        except LineError as error:
            why = f"{error.field}: {error.message}" if error.field else error.message
            unreadable.append(Unpriced(request_id=place, model=None, reason="unreadable", why=why, place=place))
            continue
        if name is None:
            found.append(billable)
            continue
        rank = _rank(billable)
        if name in kept:
            duplicates += 1
        if name not in kept or rank > kept[name][0]:
            kept[name] = rank, billable
    notes = []
    if local:
        notes.append(f"{local:,} times without an offset were taken as UTC")
    source = Source(
        kind="usage file",
        path=str(path),
        notes=tuple(notes),
        duplicates=duplicates,
        unreadable=tuple(unreadable),
        unpredicted="a usage file has no prompts, so what they had to hit is not known",
    )
    return source, [*found, *(billable for _, billable in kept.values())]


def _rank(billable: Billable) -> tuple[Any, ...]:
    """Of several records of a request the last one counts: the latest, then the one with the most output, as counts
    only grow while an answer comes. One without usage never counts before one with it."""
    usage, moment = billable.usage, billable.end or billable.start or _EPOCH
    return (usage.input_tokens is not None, moment, usage.output_tokens or 0, repr(usage))


def _line(obj: dict[str, Any], place: str, model: str | None) -> tuple[str | None, Billable, bool]:
    """(id, the request, whether a time lacks its offset)"""
    if "usage" not in obj:
        raise LineError("no usage in it; a line is {time, model, usage}", field="usage")
    start, end = _moment(obj, "time"), _moment(obj, "end")
    if start is None and end is None:
        raise LineError("no time in it; a line is {time, model, usage}", field="time")
    if start is not None and end is not None and end < start:
        raise LineError(f"{end.isoformat()} is before the request's time", field="end")
    if not isinstance(obj.get("batch"), bool | None):
        raise LineError("true or false, and nothing else", field="batch")
    named = model or obj.get("model")
    if not isinstance(named, str) or not named:
        raise LineError("no model in it; a line is {time, model, usage}", field="model")
    raw = obj["usage"]
    if isinstance(raw, list):
        raw = next((each for each in reversed(raw) if each is not None), None)
    name = obj.get("id", obj.get("request_id"))
    usage = normalise(raw)
    unended = any(field in obj and obj[field] is None for field in ("finish_reason", "stop_reason"))
    billable = Billable(
        request_id=str(name) if name is not None else place,
        model=named,
        usage=usage,
        start=start if start is not None else end,
        end=end,
        batch=obj.get("batch") is True,
        output_open=unended and usage.output_tokens is not None,
        place=place,
    )
    return None if name is None else str(name), billable, any(_zoneless(obj.get(field)) for field in ("time", "end"))


def _moment(obj: dict[str, Any], field: str) -> datetime | None:
    return utc(time_s(obj.get(field), field))


def _zoneless(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        return datetime.fromisoformat(value.strip()).tzinfo is None
    except ValueError:
        return False


def utc(unix_s: float | None) -> datetime | None:
    """Unix time as a moment, to the microsecond; LineError where no request can have been made."""
    if unix_s is None:
        return None
    if not 0 <= unix_s < _YEAR_2200_S:
        raise LineError(f"{unix_s:g} s of Unix time is no date of a request", field="time")
    return _EPOCH + timedelta(microseconds=round(unix_s * 1e6))


def _log_time(unix_s: float | None) -> datetime | None:
    """A log's time; one that is no date is none."""
    try:
        return utc(unix_s)
    except LineError:
        return None


def log_billables(path: Path, logged: LoggedCalls, model: str | None = None) -> tuple[Source, list[Billable]]:
    """The calls that a log tells of."""
    report = logged.report
    notes = [f"{report.format}: {count_of(report.units, report.unit)}, {count_of(len(logged.calls), 'call')}"]
    left_out = sum(report.dropped.get(code, 0) for code in CALLS_LEFT_OUT)
    if left_out:
        lost = "; ".join(report.left_out())
        notes.append(f"of what was left out, {left_out:,} may be of calls, and have no price here: {lost}")
    expected, unpredicted = expected_of_log(logged.calls)
    source = Source(kind=f"log ({report.format})", path=str(path), notes=tuple(notes), unpredicted=unpredicted)
    return source, list(_calls(path, logged.calls, model, expected))


def _calls(
    path: Path, calls: Iterable[LoggedUsage], model: str | None, expected: Mapping[int, Expectation]
) -> Iterator[Billable]:
    for number, call in enumerate(calls, 1):
        hits = expected.get(number - 1)
        file = Path(call.file).name if call.file else path.name
        place = f"{file}:{call.line}" if call.line else f"{file}, call {number}"
        yield Billable(
            request_id=place,
            model=model or call.model,
            usage=normalise(call.usage),
            start=_log_time(call.start_s),
            end=_log_time(call.end_s),
            output_open=call.output_most is not None,
            output_most=call.output_most,
            floor=None if hits is None else hits.floor,
            ceiling=None if hits is None else hits.ceiling,
            rule=None if hits is None else hits.rule,
            place=place,
        )
