"""One writer a run directory: an advisory lock that the kernel releases when its holder dies, however it dies."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from kvbench.errors import UsageError

LOCK_NAME = "lock"
_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL)


def lock_run(path: Path) -> int:
    """Take the run directory's lock and return its file descriptor; UsageError when another process holds it."""
    fd = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise UsageError(
            f"{path}: another kvbench (process {holder}) is writing this run",
            hint="wait for it to end, or start a run of your own: each gets a new directory",
        ) from None
    except OSError as error:
        # Some network file systems have no locks; a run there is better than none.
        if error.errno not in _NO_LOCKS_HERE:
            os.close(fd)
            raise
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def is_locked(path: Path) -> bool:
    """Whether a live process is writing the run directory."""
    try:
        fd = os.open(path / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False
