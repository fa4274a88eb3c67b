"""API keys: read from an environment variable or a file, used in one header, kept out of everything else."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvbench.errors import ConfigError
from kvbench.model import Warning

REDACTED = "[redacted]"
MIN_SECRET_LENGTH = 6
"""Shorter header values are not searched for in texts: they would match ordinary words."""


class Secret:
    """A key that does not show itself: `repr`, `str` and formatting give `[redacted]`."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The key itself, for the one header that carries it."""
        return self._value

    def __repr__(self) -> str:
        return REDACTED

    def __reduce__(self) -> Any:
        raise TypeError("a secret is not pickled")


def _checked(value: str, source: str) -> Secret:
    if not value:
        raise ConfigError(
            f"the API key from {source} is empty", hint="set it to the key, or leave key_env and key_file out"
        )
    if not value.isascii() or any(c.isspace() or not c.isprintable() for c in value):
        raise ConfigError(
            f"the API key from {source} has a character that cannot be in a header (space, control or non-ASCII)",
            hint="check for a stray line break or quotes around the key",
        )
    return Secret(value)


def key_from_env(name: str) -> Secret:
    """The key in environment variable `name`; ConfigError where it is not set or not usable."""
    value = os.environ.get(name)
    if value is None:
        raise ConfigError(
            f"environment variable {name} is not set", hint=f"export {name}=...  (the endpoint's API key)"
        )
    return _checked(value.strip(), f"environment variable {name}")


def key_from_file(path: Path) -> tuple[Secret, list[Warning]]:
    """The first line of `path`, and a warning where others may read the file. ConfigError where it is not usable."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            mode = os.fstat(file.fileno()).st_mode
            first = file.readline(65_536)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot read the API key: {error.strerror}",
            hint="key_file names a file whose first line is the key",
        ) from None
    warnings = []
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        warnings.append(
            Warning(
                code="key_file_readable",
                message=f"{path}: other users can read this API key (mode {stat.S_IMODE(mode):o})",
                advice=f"chmod 600 {path}",
            )
        )
    return _checked(first.strip(), str(path)), warnings


class Redactor:
    """Replaces every secret it knows in texts, and in JSON-like values, by `[redacted]`."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # Longest first: a secret may be the beginning of another.
        self._secrets = sorted({s for s in secrets if len(s) >= MIN_SECRET_LENGTH}, key=len, reverse=True)

    def text(self, text: str) -> str:
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, REDACTED)
        return text

    def value(self, value: Any) -> Any:
        """`value` with the strings in it (keys of objects too) redacted; the same object where nothing is known."""
        if not self._secrets:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.value(k): self.value(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self.value(v) for v in value]
        return value
