"""The file that is written: packed by its name, there as a whole or not at all, and never over another."""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from kvbench.errors import FailedError, UsageError

STDOUT = "-"


@contextmanager
def new_file(out: str) -> Iterator[BinaryIO]:
    """Where to write `out`: a path (packed where it ends in .gz, .zst or .zstd), or "-" for stdout.

    The file gets its name once the block ends well. Raises UsageError where there is a file of that name, FailedError
    where it cannot be written.
    """
    if out == STDOUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(out)
    _refuse_existing(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        stream = partial.open("xb", buffering=1 << 20)
    except OSError as error:
        raise FailedError(
            f"{path}: cannot be written: {error.strerror or error}", hint="name another file, or make its directory"
        ) from None
    try:
        with stream, _packed(path, stream) as packed:
            yield packed
        _name(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _packed(path: Path, stream: BinaryIO) -> Iterator[BinaryIO]:
    if path.suffix == ".gz":
        # Neither time nor name inside: the same trace gives the same bytes.
        with gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0) as packed:
            yield cast(BinaryIO, packed)
    elif path.suffix in (".zst", ".zstd"):
        import zstandard

        with zstandard.ZstdCompressor(level=9).stream_writer(stream, closefd=False) as writer:
            yield cast(BinaryIO, writer)
    else:
        yield stream


def _name(partial: Path, path: Path) -> None:
    try:
        os.link(partial, path)
    except FileExistsError:
        _refuse_existing(path)
    except OSError:  # a file system without hard links
        _refuse_existing(path)
        partial.rename(path)


def _refuse_existing(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise UsageError(
            f"{path} is there already, and nothing is ever overwritten", hint="name another file, or move it away"
        )
