"""The documentation's examples are run, and its claims held against the code."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest
from tests.cli.conftest import environment

from kvbench.endpoints.failures import FAILURES
from kvbench.endpoints.profile import load_profile

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
DOCUMENTS = [path for path in ROOT.rglob("*.md") if not {".venv", "build"} & set(path.relative_to(ROOT).parts)]


def blocks(text: str, language: str = "") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def assert_shown(shown: str, printed: str) -> None:
    """`...` in `shown` stands for lines left out; all others are printed, in order, and follow each other."""
    printed, at = f"\n{printed}", 0
    for part in shown.split("...\n"):
        found = printed.find(f"\n{part}", at) if part else at
        assert found >= at, f"{part}\nis not in\n{printed}"
        at = found + len(part)


def commands() -> list[str]:
    return [line for block in blocks(README) for line in block.splitlines() if line.startswith("kvbench ")]


def kvbench(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvbench", *arguments],
        cwd=cwd,
        env=environment() | {"LLM_API_KEY": "x"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_command_reference_is_what_the_commands_say_of_themselves() -> None:
    made = subprocess.run(
        [sys.executable, "-m", "kvbench.cli.reference"], capture_output=True, text=True, check=True, env=environment()
    )
    assert made.stdout == (ROOT / "docs" / "cli.md").read_text(), "run `make docs`"


def test_the_readmes_run_commands_run(tmp_path: Path) -> None:
    """As written, but for the endpoint and what would only make them longer."""
    runs = [shlex.split(command.partition(">")[0]) for command in commands() if command.startswith("kvbench run ")]
    assert len(runs) == 3
    for words in runs:
        where = words.index("--endpoint") + 1
        words[where] = "sim"
        if "--duration" in words:
            words[words.index("--duration") + 1] = "3"
        else:
            words += ["--duration", "3"]
        done = kvbench(tmp_path, *words[1:])
        assert done.returncode in (0, 3), done.stderr
        assert done.stdout
    run_dir = sorted((tmp_path / "runs").iterdir())[0]
    assert kvbench(tmp_path, "show", str(run_dir), "--json").returncode == 0


def test_every_command_of_the_readme_exists() -> None:
    written = re.findall(r"(?:^|`)kvbench ((?:trace )?[a-z]+)", README, re.MULTILINE)
    assert len(written) >= 6
    for command in set(written):
        done = kvbench(ROOT, *command.split(), "--help")
        assert done.returncode == 0, command


def test_the_readmes_endpoint_profile_loads(tmp_path: Path) -> None:
    (example,) = blocks(README, "toml")
    tomllib.loads(example)
    (tmp_path / "ca.pem").write_text("")
    path = tmp_path / "endpoint.toml"
    path.write_text(example)
    profile = load_profile(str(path))
    assert profile.limits.requests_per_minute == 600
    assert profile.expected_hits.block_size == 16


def test_the_options_the_readme_names_exist() -> None:
    reference = (ROOT / "docs" / "cli.md").read_text()
    foreign = {"--enable-prompt-tokens-details"}
    for option in set(re.findall(r"--[a-z][a-z-]+", README)) - foreign:
        assert f"{option} " in reference or f"{option}\n" in reference, option


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path}: {target}"


def test_error_classes_named_in_the_readme_are_real() -> None:
    assert "skipped" in FAILURES
    assert all(re.fullmatch(r"[a-z_]+", name) for name in FAILURES)


def test_the_run_directory_is_described_as_it_is() -> None:
    from kvbench.model import RUN_SCHEMA_VERSION
    from kvbench.runs import blocks, writer

    files = (writer.RUN_FILE, writer.RECORDS_FILE, writer.EVENTS_FILE, writer.TRACE_FILE, writer.EXPECTATIONS_FILE)
    for name in (*files, blocks.BLOCKS_FILE):
        assert f"  {name} " in README
    fixture = ROOT / "tests" / "fixtures" / f"run-schema-{RUN_SCHEMA_VERSION}" / "run.json"
    assert msgspec.json.decode(fixture.read_bytes())["schema_version"] == RUN_SCHEMA_VERSION
