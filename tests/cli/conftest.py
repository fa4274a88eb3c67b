"""Commands run as a user runs them: in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Kvbench = Callable[..., "subprocess.CompletedProcess[str]"]


def environment() -> dict[str, str]:
    """Without what could make a command of the developer's machine behave otherwise."""
    return {k: v for k, v in os.environ.items() if not k.startswith("KVBENCH_")} | {"COLUMNS": "200", "NO_COLOR": "1"}


@pytest.fixture
def kvbench(tmp_path: Path) -> Kvbench:
    """kvbench(*arguments, env={...}) in an empty directory; returns exit code, stdout and stderr."""

    def call(*arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kvbench", *map(str, arguments)],
            cwd=tmp_path,
            env=environment() | (env or {}),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return call
