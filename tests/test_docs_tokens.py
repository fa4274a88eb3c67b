"""The example of docs/tokens.md is run, and its names exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.cli.conftest import Kvbench, kvbench

from kvbench.model import Check

__all__ = ["kvbench"]

PAGE = (Path(__file__).parent.parent / "docs" / "tokens.md").read_text()


def test_the_command_prints_what_is_shown(kvbench: Kvbench) -> None:
    """`...` stands for lines left out."""
    (command, shown) = re.findall(r"^```\n\$ kvbench (.*?)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0]
    words = shlex.split(command)
    at = words.index("--endpoint") + 1
    words[at] += "&frontend_s=0&prefill_base_s=0&prefill_s_per_token=0&decode_base_s=0.0002&send_s_per_chunk=0"
    done = kvbench(*words)
    assert done.returncode == 1, done.stderr
    for part in shown.split("...\n"):
        assert rounded(part) in rounded(done.stdout)


def rounded(text: str) -> str:
    """Every run sends texts of its own, and the last digits of bounds and money differ."""
    return re.sub(r"\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}", text)


def test_the_json_fields_are_those_described() -> None:
    for name in Check.__struct_fields__:
        assert f'"{name}"' in PAGE
