"""The commands in docs/convert.md are run, one after the other, and say what stands below them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import environment

DOCUMENT = (Path(__file__).parents[3] / "docs" / "convert.md").read_text()


def test_the_documents_commands_say_what_it_says(tmp_path: Path) -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks] == ["", "text"] * 5
    for (_, commands), (_, said) in zip(blocks[::2], blocks[1::2], strict=True):
        script = f'set -eu\nkvbench() {{ "{sys.executable}" -m kvbench "$@"; }}\n{commands}'
        done = subprocess.run(
            ["sh", "-c", script],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == said
    assert len(list(tmp_path.iterdir())) == 6
