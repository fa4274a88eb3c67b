"""Requests of a log as they are found, put in the order of their times outside memory."""

from __future__ import annotations

import hashlib
import tempfile
from array import array
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, BinaryIO, cast

import msgspec

from kvbench.model import Message
from kvbench.traces.formats.sink import temporary_file_failed
from kvbench.traces.lines import LineError


class Call(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One request to a model. start_s and end_s: of any one time base (Unix time, say); None: not known.

    messages: its full prompt in OpenAI's shape (None: the source has no text). answer: what it was answered.
    session: the source's own name of the conversation; None: to be found by content. A `weak` name groups requests
    but other requests may go on with what they began (a trace id of each user turn). parent: the session whose
    request called the session this one belongs to. agent: who made it,
    where several share a session's name. nested: another request is its parent, so where it does not go on from one it
    is a sub-agent's. input_tokens includes cached ones.
    """

    line: int
    messages: list[Message] | None = None
    tools: list[dict[str, Any]] | None = None
    answer: Message | None = None
    session: str | None = None
    weak: bool = False
    parent: str | None = None
    agent: str | None = None
    nested: bool = False
    model: str | None = None
    start_s: float | None = None
    end_s: float | None = None
    ttft_s: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    usage: dict[str, Any] | None = None
    counted: dict[str, Any] | None = None
    """`usage` in OpenAI's shape, where the source's own is none that an API sends."""
    extra: dict[str, Any] = {}


class CallSpool:
    """Calls in a temporary file, read back by time; some 40 bytes each in memory.

    Calls of one moment are ordered by what they hold, so that the order of a log's records does not matter.
    """

    def __init__(self) -> None:
        try:
            self._stream = cast(BinaryIO, tempfile.TemporaryFile(buffering=1 << 20))  # noqa: SIM115
        except OSError as error:
            raise temporary_file_failed(error) from error
        # JSON, which has integers of any length.
        self._encode = msgspec.json.Encoder().encode
        self._encode_sorted = msgspec.json.Encoder(order="deterministic").encode
        self._offsets = array("Q", [0])
        self._start_s = array("d")
        self._ties = array("Q")
        self.out_of_order = 0
        self.without_time = 0
        self._latest_s = float("-inf")

    def __len__(self) -> int:
        return len(self._start_s)

    @property
    def first_s(self) -> float | None:
        """The earliest start; None where no call has one."""
        return min((start_s for start_s in self._start_s if start_s != float("-inf")), default=None)

    def close(self) -> None:
        self._stream.close()

    def add(self, call: Call) -> None:
        """A call without a time goes with the one before it in the source."""
        raw = self._encode(call)
        if call.start_s is None:
            self.without_time += 1
            start_s, tie = (self._start_s[-1], self._ties[-1]) if len(self) else (float("-inf"), 0)
        else:
            start_s, tie = call.start_s, self._tie(call)
            self.out_of_order += start_s < self._latest_s
            self._latest_s = max(self._latest_s, start_s)
        try:
            self._stream.write(raw)
        except OSError as error:
            raise temporary_file_failed(error) from error
        self._offsets.append(self._offsets[-1] + len(raw))
        self._start_s.append(start_s)
        self._ties.append(tie)

    def ordered(self) -> Iterator[Call]:
        """By start; the spool is gone afterwards."""
        decode = msgspec.json.Decoder(Call).decode
        order = sorted(range(len(self)), key=lambda at: (self._start_s[at], self._ties[at]))
        with self._stream as stream:
            try:
                stream.flush()
            except OSError as error:
                raise temporary_file_failed(error) from error
            for at in order:
                stream.seek(self._offsets[at])
                yield decode(stream.read(self._offsets[at + 1] - self._offsets[at]))

    def _tie(self, call: Call) -> int:
        """Shorter prompts first, then by content; where a call stands in its source does not count."""
        content = self._encode_sorted(msgspec.structs.replace(call, line=0))
        digest = hashlib.blake2b(content, digest_size=6).digest()
        return min(len(call.messages or ()), 0xFFFF) << 48 | int.from_bytes(digest, "big")


def time_s(value: Any, field: str) -> float | None:
    """Seconds of Unix time: from a number (seconds; above 1e11 ms, 1e14 us, 1e17 ns) or ISO 8601 text.

    Text without an offset is taken as UTC. None where there is none. Raises LineError.
    """
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return _iso_s(value, field)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise LineError("expected a time: a number, or text like 2026-01-31T09:30:00Z", field=field)
    if not 0 <= value < 1e20:
        raise LineError(f"{value} is no time", field=field)
    for limit in (1e17, 1e14, 1e11):
        if value >= limit:
            return value / {1e17: 1e9, 1e14: 1e6, 1e11: 1e3}[limit]
    return float(value)


def _iso_s(text: str, field: str) -> float:
    try:
        # Python takes at most six digits of a second.
        head, point, tail = text.strip().partition(".")
        digits = len(tail) - len(tail.lstrip("0123456789"))
        moment = datetime.fromisoformat(head + point + tail[:digits][:6] + tail[digits:])
    except ValueError:
        raise LineError(
            f'"{text[:40]}" is no time; expected a number, or text like 2026-01-31T09:30:00Z', field=field
        ) from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


class TimeUnits:
    """Times of a source in seconds (time_s), and which units its numbers were taken for."""

    def __init__(self) -> None:
        self._units: dict[str, None] = {}

    def seconds(self, value: Any, field: str) -> float | None:
        seconds = time_s(value, field)
        if seconds is not None:
            self._units[_unit(value)] = None
        return seconds

    def said(self) -> str:
        """For the report; empty where there was no time."""
        return " and ".join(self._units)


def _unit(value: Any) -> str:
    try:
        number = float(value)
    except ValueError:
        return "text (UTC where it names no offset)"
    for limit, name in ((1e17, "nanoseconds"), (1e14, "microseconds"), (1e11, "milliseconds")):
        if number >= limit:
            return f"numbers as {name}"
    return "numbers as seconds"


class Seen:
    """Which ids were met before; some 70 bytes each."""

    def __init__(self) -> None:
        self._ids: set[bytes] = set()

    def again(self, *parts: str) -> bool:
        """Whether this id was asked about before."""
        key = hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=12).digest()
        if key in self._ids:
            return True
        self._ids.add(key)
        return False
