from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "modules",
    [
        # On the way to the first request, which comes within a second of the command.
        "kvbench.runs.writer, kvbench.runs.own_error, kvbench.render.progress",
        # On the way to --help.
        "kvbench.cli.show, kvbench.cli.runs",
    ],
)
def test_nothing_heavy_comes_along(modules: str) -> None:
    code = f"import sys, {modules}; print(*({{'numpy', 'pandas', 'httpx', 'rich.table'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
