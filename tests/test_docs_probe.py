"""The examples of docs/probe.md are run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from tests.cli.conftest import Kvbench, kvbench

__all__ = ["kvbench"]

PAGE = (Path(__file__).parent.parent / "docs" / "probe.md").read_text()
EXAMPLES = re.findall(r"^kvbench (probe .*)$", PAGE, re.MULTILINE)
QUICK = "frontend_s=0&prefill_base_s=0.0005&prefill_s_per_token=1e-7&attention_s_per_token2=0&decode_base_s=0.0005"


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_gives_an_estimate(kvbench: Kvbench, example: str) -> None:
    words = shlex.split(example)
    at = words.index("--endpoint") + 1
    quick = "&".join(part for part in QUICK.split("&") if part.partition("=")[0] not in words[at])
    words[at] += ("&" if "?" in words[at] else "?") + quick
    done = kvbench(*words)
    assert done.returncode == 0, done.stderr
    assert "fit of runs/" in done.stdout


def test_the_json_fields_are_those_described(kvbench: Kvbench) -> None:
    from kvbench.model import Estimate, FitReport, Misfit, Refusal

    for struct in (Estimate, FitReport, Misfit, Refusal):
        for name in struct.__struct_fields__:
            assert f'"{name}"' in PAGE
