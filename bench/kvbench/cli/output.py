"""Results to stdout, and the exit code of a verdict."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import typer

from kvbench.errors import EXIT_CHECK_FAILED, EXIT_INCONCLUSIVE, EXIT_OK

_CODES = {"pass": EXIT_OK, "confirmed": EXIT_OK, "fail": EXIT_CHECK_FAILED, "disputed": EXIT_CHECK_FAILED}


@contextlib.contextmanager
def verdict_outlives_reader() -> Iterator[None]:
    """Where the exit code says what is printed, it holds though the reader (head, less) has left: else a verdict that
    is cut off in a pipe would look like a pass."""
    try:
        yield
        if sys.stdout is not None:  # as with >&-
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """Print the result of a command whose exit code is a verdict."""
    with verdict_outlives_reader():
        typer.echo(text)


def verdict_code(verdict: str) -> int:
    """Any other word (inconclusive, refused, cannot tell) is 3."""
    return _CODES.get(verdict, EXIT_INCONCLUSIVE)
