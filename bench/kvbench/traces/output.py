"""Where a command puts the trace it makes: a file that is there whole or not at all, or standard output."""

from __future__ import annotations

import contextlib
import gzip
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from kvbench.errors import FailedError, InputError, UsageError

Write = Callable[[bytes], object]


@contextlib.contextmanager
def trace_output(path: Path | None, *, replace: bool = True) -> Iterator[Write]:
    """What writes to `path`, which appears when all is written; None is standard output.

    The file is packed where its name ends in .gz, .zst or .zstd: the same trace, the same bytes. replace: whether a
    file of that name gives way. Raises UsageError where it does not, InputError where `path` cannot be a file,
    FailedError where it cannot be written.
    """
    if path is None:
        yield sys.stdout.buffer.write
        sys.stdout.buffer.flush()
        return
    if path.is_dir():
        raise InputError("a directory; name the file to write", path=path)
    if not replace:
        _refuse_existing(path)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise FailedError(
            f"{path}: cannot be written: {reason}", hint="name a file in a directory that is there"
        ) from None
    try:
        with os.fdopen(handle, "wb", buffering=1 << 20) as stream, _packed(path, stream) as write:
            yield write
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        if replace:
            os.replace(name, path)
        else:
            _put_new(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


@contextlib.contextmanager
def _packed(path: Path, stream: BinaryIO) -> Iterator[Write]:
    if path.suffix == ".gz":
        with gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0) as packed:
            yield packed.write
    elif path.suffix in (".zst", ".zstd"):
        import zstandard

        with zstandard.ZstdCompressor(level=9).stream_writer(stream, closefd=False) as writer:
            yield writer.write
    else:
        yield stream.write


def _put_new(name: str, path: Path) -> None:
    """A link, unlike a rename, fails where a file of that name has come up meanwhile."""
    try:
        os.link(name, path)
    except FileExistsError:
        _refuse_existing(path)
    except OSError:  # a file system without links
        _refuse_existing(path)
        os.rename(name, path)
        return
    os.unlink(name)


def _refuse_existing(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path} is there already, and is not overwritten", hint="name another file, or move it away")
