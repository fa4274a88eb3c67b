"""One line of a native trace: bytes in, typed struct out; what is wrong names the field.

A line is decoded once, typed. JSON allows what a trace must not have (a key twice) and msgspec drops what a trace
must keep (unknown fields); both show as quotes that the bytes have and the struct, encoded again, has not, so only such
lines pay for a second look.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from kvbench.model import TRACE_VERSION, Message, Recorded, SharedPrompt, TraceHeader, Turn, TurnRef

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longer lines are refused: one line is held in memory whole."""

MAX_TURN = 2**31 - 1
MAX_TIME_S = 1e9
"""31 years; a larger value is a unit mistaken."""

_Id = Annotated[str, Meta(min_length=1)]
_TurnNumber = Annotated[int, Meta(ge=0, le=MAX_TURN)]
_Time = Annotated[float, Meta(ge=0, le=MAX_TIME_S)]
_Tokens = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Object = dict[str, Any]
_T = TypeVar("_T")


class LineError(Exception):
    """A line that cannot be used; `field` is the JSON path inside it, where it is known."""

    def __init__(self, message: str, *, field: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.hint = hint


class _HeaderLine(msgspec.Struct, omit_defaults=True):
    kvbench_trace: int
    name: str | None = None
    block_size: _Tokens | None = None
    source: str | None = None
    prefixes: Literal["unknown"] | None = None


class _PrefixLine(msgspec.Struct, omit_defaults=True):
    prefix: _Id
    messages: tuple[Message, ...] | None = None
    tools: tuple[_Object, ...] | None = None


class _ParentLine(msgspec.Struct, omit_defaults=True):
    session_id: _Id
    turn: _TurnNumber


class _RecordedLine(msgspec.Struct, omit_defaults=True):
    at_s: _Time | None = None
    ttft_s: _Time | None = None
    e2e_s: _Time | None = None
    cached_tokens: _Count | None = None
    usage: _Object | None = None


class _TurnLine(msgspec.Struct, omit_defaults=True):
    session_id: _Id | None = None
    turn: _TurnNumber | None = None
    parent: _ParentLine | None = None
    after: tuple[_Id, ...] | None = None
    start_s: _Time | None = None
    delay_s: _Time | None = None
    input_tokens: _Tokens | None = None
    output_tokens: _Tokens | None = None
    messages: tuple[Message, ...] | None = None
    append: tuple[Message, ...] | None = None
    hash_ids: tuple[int, ...] | None = None
    keep_blocks: _Count | None = None
    tools: tuple[_Object, ...] | None = None
    prefix: _Id | None = None
    model: _Id | None = None
    recorded: _RecordedLine | None = None


_NESTED: dict[str, type[msgspec.Struct]] = {"parent": _ParentLine, "recorded": _RecordedLine}
HEADER_FIELDS, TURN_FIELDS = _HeaderLine.__struct_fields__, _TurnLine.__struct_fields__
NESTED_FIELDS = {name: kind.__struct_fields__ for name, kind in _NESTED.items()}
"""Known fields of the objects inside a turn."""
_decode_header = msgspec.json.Decoder(_HeaderLine).decode
_decode_prefix = msgspec.json.Decoder(_PrefixLine).decode
_decode_turn = msgspec.json.Decoder(_TurnLine).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode

_WHERE = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<field>.*)`)?$", re.DOTALL)
_AT_BYTE = re.compile(r"\(byte (\d+)\)")
_NOT_A_NUMBER = re.compile(rb"[:\[,]\s*(-?(?:NaN|Infinity|nan|inf))\b")
_ESCAPED_QUOTE = rb"\u0022"
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


# ------------------------------------------------------------------------------------------------------- public


def decode_header(raw: bytes) -> TraceHeader:
    """First line of a native trace. Raises LineError: no header, or a version this kvbench does not know."""
    obj = _object(raw)
    if "kvbench_trace" not in obj:
        raise LineError("not a native kvbench trace: its first line must be a header")
    version = obj["kvbench_trace"]
    if type(version) is int and version > TRACE_VERSION:
        raise LineError(
            f"trace version {version} is newer than this kvbench reads (up to {TRACE_VERSION})",
            field="kvbench_trace",
            hint="upgrade kvbench, or write the trace again as an older version",
        )
    if type(version) is not int or version < 1:
        raise LineError(f"must be a version number from 1 to {TRACE_VERSION}", field="kvbench_trace")
    line = _typed(_decode_header, raw)
    return TraceHeader(
        version=version,
        name=line.name or "",
        block_size=line.block_size,
        source=line.source,
        prefixes=line.prefixes,
        extra=_extra(raw, line),
    )


def decode_line(raw: bytes, number: int) -> Turn | SharedPrompt:
    """Any line after the header; `number` (from 1) becomes Turn.line. Raises LineError."""
    try:
        line = _decode_turn(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _line_error(raw, error) from None
    if line.session_id is None:
        return _shared_prompt(raw)
    if line.turn is None:
        raise LineError("missing; every turn is numbered, from 0 in each session", field="turn")
    parent, recorded = line.parent, line.recorded
    extra = {} if _quotes_agree(raw, line) else _extra(raw, line)
    return Turn(
        session_id=line.session_id,
        turn=line.turn,
        line=number,
        parent=TurnRef(parent.session_id, parent.turn) if parent else None,
        after=line.after or (),
        start_s=line.start_s,
        delay_s=line.delay_s or 0.0,
        input_tokens=line.input_tokens,
        output_tokens=line.output_tokens,
        messages=line.messages,
        append=line.append,
        hash_ids=line.hash_ids,
        keep_blocks=line.keep_blocks,
        tools=line.tools,
        prefix=line.prefix,
        model=line.model,
        recorded=_recorded(recorded) if recorded else None,
        extra=extra,
    )


def decode_repaired(raw: bytes, number: int) -> tuple[Turn | SharedPrompt, int]:
    """As decode_line, but lone surrogates are replaced; also how many there were."""
    try:
        return decode_line(raw, number), 0
    except LineError:
        repaired, count = repair_surrogates(raw)
        if not count:
            raise
        return decode_line(repaired, number), count


def repair_surrogates(raw: bytes) -> tuple[bytes, int]:
    r"""Replace each escaped half of a surrogate pair that stands alone by \ufffd; also how many there were.

    Such halves come from text cut by UTF-16 length; they are no text, and no UTF-8 request can carry them.
    """
    count = 0

    def replace(match: re.Match[bytes]) -> bytes:
        nonlocal count
        if match["lone"] is None:
            return match[0]
        count += 1
        return b"\\ufffd"

    return _ESCAPE.sub(replace, raw), count


def decode_object(raw: bytes) -> dict[str, Any]:
    """Any JSON object, of another format too. Raises LineError for what is no JSON object, or has a key twice."""
    obj = _object(raw)
    if not _quotes_agree(raw, obj):
        _refuse_duplicates(raw)
    return obj


def convert_object(obj: dict[str, Any], kind: type[_T]) -> _T:
    """`obj` as a struct; fields the struct does not know are left out. Raises LineError naming the field."""
    try:
        return msgspec.convert(obj, kind)
    except msgspec.ValidationError as error:
        raise _line_error(b"", error) from None


# ------------------------------------------------------------------------------------------------------ details


def _shared_prompt(raw: bytes) -> SharedPrompt:
    if "prefix" not in _object(raw):
        raise LineError(
            'neither a turn nor a shared prompt: a turn has "session_id" and "turn", a shared prompt has "prefix"'
        )
    line = _typed(_decode_prefix, raw)
    return SharedPrompt(name=line.prefix, messages=line.messages or (), tools=line.tools or (), extra=_extra(raw, line))


def _recorded(line: _RecordedLine) -> Recorded:
    return Recorded(
        at_s=line.at_s,
        ttft_s=line.ttft_s,
        e2e_s=line.e2e_s,
        cached_tokens=line.cached_tokens,
        usage=line.usage,
    )


def _typed(decode: Callable[[bytes], _T], raw: bytes) -> _T:
    try:
        return decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _line_error(raw, error) from None


def _object(raw: bytes) -> _Object:
    obj = _typed(_decode_any, raw)
    if not isinstance(obj, dict):
        raise LineError(f"expected a JSON object, got {_json_type(obj)}")
    return obj


def _line_error(raw: bytes, error: Exception) -> LineError:
    """Say in the trace's words what the decoder found; the decoder knows no NaN, no UTF-8 offset, no torn line."""
    if isinstance(error, RecursionError):
        return LineError("JSON nested too deeply to be read", hint="nothing in a trace needs more than 100 levels")
    try:
        raw.decode()
    except UnicodeDecodeError as bad:
        return LineError(f"not UTF-8 (byte {bad.start} of the line)", hint="convert the file to UTF-8 (iconv)")
    match = _WHERE.match(str(error))
    what, field = (match["what"], match["field"]) if match else (str(error), None)
    if isinstance(error, msgspec.ValidationError):
        what = what.replace("`", "").replace("Expected", "expected", 1)
        # A path of the untyped decoder has no names in it: [...][0].
        return LineError(what, field=field if field and not field.startswith("[...]") else None)
    if number := _NOT_A_NUMBER.search(raw):
        return LineError(f"{number[1].decode()} is no JSON number", hint="leave the field out, or write null")
    at = _AT_BYTE.search(what)
    if "truncated" in what or (at and int(at[1]) >= len(raw.rstrip())):
        return LineError(
            "the line ends inside its JSON", hint="was the file cut off? copy it again, or delete the line"
        )
    return LineError(f"invalid JSON: {what.removeprefix('JSON is malformed: ')}")


def _json_type(value: object) -> str:
    names = {type(None): "null", bool: "bool", int: "int", float: "float", str: "str", list: "array", dict: "object"}
    return names.get(type(value), "value")


def _extra(raw: bytes, line: msgspec.Struct) -> _Object:
    """Fields of the line that its struct does not know; raises LineError for a key given twice."""
    obj = _object(raw)
    if not _quotes_agree(raw, obj):
        _refuse_duplicates(raw)
    known = line.__struct_fields__
    extra = {key: value for key, value in obj.items() if key not in known}
    for name, struct in _NESTED.items():
        inner = obj.get(name)
        if name in known and isinstance(inner, dict) and (rest := inner.keys() - set(struct.__struct_fields__)):
            extra[name] = {key: value for key, value in inner.items() if key in rest}
    return extra


def _refuse_duplicates(raw: bytes) -> None:
    def pairs(items: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for key, _ in items:
            if key in seen:
                raise LineError("given twice in the same object", field=key)
            seen.add(key)

    try:
        json.loads(raw, object_pairs_hook=pairs)
    except RecursionError as error:
        raise _line_error(raw, error) from None


def _quotes_agree(raw: bytes, obj: object) -> bool:
    """Whether everything in `raw` is in `obj`: a field more, or a key twice, is at least two quotes more.

    A string has two quotes, and one for each quote in it, which the encoder escapes as \\" and `raw` may as \\u0022.
    """
    return raw.count(b'"') == _encode(obj).count(b'"') and _ESCAPED_QUOTE not in raw
