"""The files of a source, read as they are asked for: plain, gzip or zstd, lines or whole JSON values or CSV rows.

Nothing is held in memory but the object at hand. What was read is hashed as it goes by, decompressed.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

import msgspec

from kvbench.errors import InputError
from kvbench.traces.native import open_file

if TYPE_CHECKING:
    from zstandard import ZstdDecompressionObj

MAX_OBJECT_BYTES = 512 * 2**20
"""One object, or line, is held in memory whole; decoded it takes several times its text."""

HEAD_BYTES = 1 << 16
MAX_FIRST_BYTES = 1 << 24
_BOM = b"\xef\xbb\xbf"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_SUFFIXES = (".json", ".jsonl", ".ndjson", ".csv", ".traj")
_PACKED = (".gz", ".zst", ".zstd")

_T = TypeVar("_T")


class Head(msgspec.Struct, frozen=True):
    """What formats are told apart by. text: the beginning of the file, decompressed, without what precedes its first
    character. value: its first line as JSON, or the whole file where it is short and one value; else None."""

    text: bytes
    value: Any

    def fields(self) -> set[str]:
        """Names of the first object's fields (of an array's first object), as far as the beginning shows them."""
        value = self.value[0] if isinstance(self.value, list) and self.value else self.value
        if isinstance(value, dict):
            return set(value)
        return _leading_fields(self.text) if value is None else set()


class SourceFile:
    """One file. `sha256` and `size_bytes` are of its decompressed bytes, once it was read to its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size_bytes = 0
        self._sha256 = hashlib.sha256()
        with open_file(path) as stream:
            start = stream.read(4)
        self.packed = start.startswith(_GZIP) or start.startswith(_ZSTD)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    def open(self) -> BinaryIO:
        """From its beginning, decompressed. Raises InputError."""
        stream = open_file(self.path)
        start = stream.read(4)
        stream.seek(0)
        if start.startswith(_GZIP):
            return cast(BinaryIO, _Both(gzip.GzipFile(fileobj=stream), stream))
        if start.startswith(_ZSTD):
            return cast(BinaryIO, _Both(cast(io.BufferedIOBase, _Zstd(stream)), stream))
        return stream

    def head(self) -> Head:
        with self.open() as stream:
            text = self._guarded(lambda: stream.read(HEAD_BYTES)).removeprefix(_BOM).lstrip()
            whole = len(text) < HEAD_BYTES
            first, end, _ = text.partition(b"\n")
            if not end and not whole:  # What tells a log may stand behind a long prompt.
                first += self._guarded(lambda: stream.readline(MAX_FIRST_BYTES))
        value = _decoded(first)
        if value is None and whole:
            value = _decoded(text)
        return Head(text, value)

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """(number from 1, line with its end). Raises InputError for a line that is too long."""
        self._again()
        number = 0
        with self.open() as stream:
            while raw := self._guarded(lambda: stream.readline(MAX_OBJECT_BYTES + 1)):
                number += 1
                self._read(raw)
                if len(raw) > MAX_OBJECT_BYTES:
                    raise self._too_long(number)
                yield number, raw.removeprefix(_BOM) if number == 1 else raw

    def values(self) -> Iterator[tuple[int, bytes]]:
        """(line, JSON text): an array's elements, a value a line, or the whole file (line 0) where that is one value.

        The text is not checked: what is no JSON is for its decoder to name.
        """
        first = next((raw for _, raw in self.lines() if raw.strip()), b"")
        if first.lstrip().startswith(b"["):
            yield from self._elements()
            return
        if not _is_json(first):
            whole = self._whole()
            if whole is not None and (_is_json(whole) or not _is_lines(whole)):
                yield 0, whole
                return
        for number, raw in self.lines():
            if raw.strip():
                yield number, raw

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """CSV rows with the line each ends on; blank lines are left out. UTF-8, else InputError."""
        numbers: list[int] = [0]

        def text() -> Iterator[str]:
            for number, raw in self.lines():
                numbers[0] = number
                try:
                    yield raw.decode()
                except UnicodeDecodeError as error:
                    raise InputError(
                        f"not UTF-8 (byte {error.start} of the line)",
                        path=self.path,
                        line=number,
                        hint="convert the file to UTF-8 (iconv)",
                    ) from None

        reader = csv.reader(text(), strict=True)
        while True:
            try:
                row = next(reader, None)
            except csv.Error as error:
                raise InputError(f"not CSV: {error}", path=self.path, line=numbers[0]) from None
            if row is None:
                return
            if row:
                yield numbers[0], row

    def _whole(self) -> bytes | None:
        self._again()
        with self.open() as stream:
            whole = self._guarded(lambda: stream.read(MAX_OBJECT_BYTES + 1))
        if len(whole) > MAX_OBJECT_BYTES:
            return None
        self._read(whole)
        return whole.removeprefix(_BOM)

    def _elements(self) -> Iterator[tuple[int, bytes]]:
        """The elements of a JSON array, one in memory at a time."""
        self._again()
        decode = json.JSONDecoder().raw_decode
        with self.open() as stream:
            decoder = io.TextIOWrapper(io.BufferedReader(_Tee(stream, self)), encoding="utf-8-sig", newline="")
            text, at, line, chunk = "", 0, 1, 1 << 16
            opened = False
            while True:
                while at < len(text) and text[at] in " \t\r\n,[" and not (opened and text[at] == "["):
                    opened = opened or text[at] == "["
                    line += text[at] == "\n"
                    at += 1
                if at < len(text) and text[at] == "]":
                    rest = text[at + 1 :] + self._text(decoder)
                    if rest.strip():
                        raise InputError("more text after the array's end", path=self.path, line=line)
                    return
                try:
                    if at >= len(text) - 1:
                        raise StopIteration
                    _, end = decode(text, at)
                    if end >= len(text):
                        raise StopIteration
                except (StopIteration, json.JSONDecodeError, RecursionError) as error:
                    more = self._text(decoder, chunk)
                    if not more:
                        self._broken(text[at:], line, error)
                    text, at, chunk = text[at:] + more, 0, min(chunk * 2, MAX_OBJECT_BYTES)
                    if len(text) > MAX_OBJECT_BYTES:
                        raise self._too_long(line) from None
                    continue
                yield line, text[at:end].encode("utf-8", "surrogatepass")
                line += text.count("\n", at, end)
                at = end

    def _broken(self, rest: str, line: int, error: Exception) -> None:
        what = "the file ends inside its JSON array"
        if isinstance(error, RecursionError):
            what = "JSON nested too deeply to be read"
        elif isinstance(error, json.JSONDecodeError):
            line += rest.count("\n", 0, error.pos)
            if error.pos < len(rest.rstrip()) and not error.msg.startswith("Unterminated"):
                what = f"invalid JSON: {error.msg}"
        raise InputError(what, path=self.path, line=line, hint="was the file cut off? copy it again")

    def _text(self, decoder: io.TextIOWrapper, size: int = -1) -> str:
        try:
            return self._guarded(lambda: decoder.read(size))
        except UnicodeDecodeError as error:
            raise InputError(f"not UTF-8: {error.reason}", path=self.path, hint="convert it (iconv)") from None

    def _guarded(self, read: Callable[[], _T]) -> _T:
        try:
            return read()
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self._damaged(error) from None
        except Exception as error:
            if type(error).__module__.startswith("zstandard"):
                raise self._damaged(error) from None
            raise

    def _damaged(self, error: Exception) -> InputError:
        return InputError(
            f"cannot be decompressed: {error}", path=self.path, hint="was the file cut off? copy it again"
        )

    def _too_long(self, line: int) -> InputError:
        return InputError(
            f"longer than {MAX_OBJECT_BYTES // 2**20} MiB", path=self.path, line=line, hint="split the trace"
        )

    def _again(self) -> None:
        self._sha256, self.size_bytes = hashlib.sha256(), 0

    def _read(self, raw: bytes) -> None:
        self._sha256.update(raw)
        self.size_bytes += len(raw)


class _Both(io.BufferedReader):
    """A decompressing reader that closes the file under it."""

    def __init__(self, reader: io.BufferedIOBase, under: BinaryIO) -> None:
        super().__init__(cast(io.RawIOBase, reader), 1 << 20)
        self._under = under

    def close(self) -> None:
        super().close()
        self._under.close()


class _Zstd(io.RawIOBase):
    """Decompresses frames, and raises EOFError where the last one is cut off: the library's own reader takes that for
    the end of the file."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._frame = self._new_frame()
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            raw = self._frame.unused_data if self._frame.eof else b""
            # 4 bytes may stand for a block of 128 KiB: little at a time, so that a bomb is met line by line
            raw = raw or self._stream.read(1024)
            if self._frame.eof:
                if not raw:
                    return 0
                self._frame = self._new_frame()
            elif not raw:
                raise EOFError("the file ends inside a zstd frame")
            self._ready = memoryview(self._frame.decompress(raw))
        count = min(len(self._ready), len(buffer))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    @staticmethod
    def _new_frame() -> ZstdDecompressionObj:
        import zstandard

        return zstandard.ZstdDecompressor().decompressobj(write_size=1 << 16)


class _Tee(io.RawIOBase):
    """Hands bytes on, and to the file's hash."""

    def __init__(self, stream: BinaryIO, file: SourceFile) -> None:
        self._stream = stream
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        raw = self._stream.read(len(buffer))
        self._file._read(raw)
        buffer[: len(raw)] = raw
        return len(raw)


def source_files(path: Path) -> tuple[list[Path], int]:
    """The data files of a directory, by name, those of its folders too, and how many others there are.

    Raises InputError where there are none.
    """
    files, others = [], 0
    for entry in sorted(path.rglob("*")):
        if not entry.is_file():
            continue
        suffixes = [suffix for suffix in entry.suffixes if suffix not in _PACKED]
        if suffixes and suffixes[-1] in _SUFFIXES and not entry.name.startswith("."):
            files.append(entry)
        else:
            others += 1
    if not files:
        raise InputError(
            "a directory without a trace file", path=path, hint=f"traces end in {', '.join(_SUFFIXES)}, or that and .gz"
        )
    return files, others


def _decoded(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _is_json(raw: bytes) -> bool:
    try:
        json.loads(raw) if len(raw) < 100 else msgspec.json.decode(raw, type=msgspec.Raw)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return False
    return True


def _is_lines(raw: bytes) -> bool:
    """Whether some line of it but the first is a JSON object of its own: then its first line is a broken one."""
    return any(line.lstrip().startswith(b"{") and _is_json(line) for line in raw.splitlines()[1:20])


_TOKEN = re.compile(rb'"((?:[^"\\]|\\.)*)"\s*(:?)|[\[\]{}]', re.DOTALL)


def _leading_fields(text: bytes) -> set[str]:
    """Fields of the first object in `text`, which may end anywhere."""
    found: set[str] = set()
    depth, inside = 0, 0
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark in (b"{", b"["):
            depth += 1
            if mark == b"{" and not inside:
                inside = depth
        elif mark in (b"}", b"]"):
            if depth == inside:
                break
            depth -= 1
        elif token[2] and depth == inside:
            found.add(token[1].decode("utf-8", "replace"))
    return found
