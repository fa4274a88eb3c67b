"""How a command ends whose reader has left, and one that has a defect."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.made_runs import make_abba


@pytest.mark.parametrize(("ttft", "code"), [(1.5, 1), (1.0, 0)])
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_the_exit_code_is_the_verdict_all_the_same(
    tmp_path: Path, ttft: float, code: int, form: tuple[str, ...]
) -> None:
    make_abba(tmp_path / "runs", 5, ttft=ttft)
    gate = ("gate", "new-*", "--baseline", "base-*", "--fail-if", "ttft.geomean>+3%", *form)
    with subprocess.Popen(
        [sys.executable, "-m", "kvbench", *gate],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        said = running.stderr.read()
        assert (running.wait(timeout=60), said) == (code, b"")


def test_a_defect_is_no_failed_check() -> None:
    broken = "import kvbench.cli.main as m\ndef app(): return 1 // 0\nm.app = app\nm.main()"
    done = subprocess.run([sys.executable, "-c", broken], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 4
    assert "ZeroDivisionError" in done.stderr
    assert "this is a defect of kvbench" in done.stderr
