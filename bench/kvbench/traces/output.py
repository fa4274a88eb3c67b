"""Where a command puts the trace it makes: a file that is there whole or not at all, or standard output."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from kvbench.errors import FailedError, InputError

Write = Callable[[bytes], object]


@contextlib.contextmanager
def trace_output(path: Path | None) -> Iterator[Write]:
    """What writes to `path`, which appears (or is replaced) when all is written; None is standard output.

    Raises InputError where `path` cannot be a file, FailedError where it cannot be written.
    """
    if path is None:
        yield sys.stdout.buffer.write
        sys.stdout.buffer.flush()
        return
    if path.is_dir():
        raise InputError("a directory; name the file to write", path=path)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise FailedError(
            f"{path}: cannot be written: {reason}", hint="name a file in a directory that is there"
        ) from None
    try:
        with os.fdopen(handle, "wb", buffering=1 << 20) as stream:
            yield stream.write
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
