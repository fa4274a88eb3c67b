"""Every published file that is a trace or a log imports, or is refused for holding no call."""

import os
from pathlib import Path

import pytest
from tests.imported import taken_for

from kvbench.errors import InputError
from kvbench.traces.importing import open_workload

DATA = os.environ.get("KVBENCH_TEST_DATA")
FORMATS = {
    "azure": "azure",
    "vidur": "splitwise",
    "burstgpt": "burstgpt",
    "claude-code": "claude-code",
    "codex": "codex-exec",
    "swe-agent": "swe-agent",
    "mini-swe-agent": "mini-swe-agent",
    "tracelab/claude_session.jsonl": "claude-code",
    "tracelab/codex_session_head.jsonl": "codex",
    "tracelab/derived_round_trace.jsonl": "tracelab",
}
NO_CALL = {"thread_early_exit.jsonl", "thread_error_rate_limit.jsonl"}


@pytest.mark.skipif(DATA is None, reason="KVBENCH_TEST_DATA is not set")
@pytest.mark.parametrize("name", FORMATS)
def test_published_files_are_told_apart_and_read(name: str) -> None:
    assert DATA is not None
    source = Path(DATA, name)
    inside = sorted(path for path in source.rglob("*") if path.suffix in (".csv", ".jsonl", ".json", ".traj"))
    files = [source] if source.is_file() else inside
    assert files
    for path in files:
        if path.name in NO_CALL:
            assert taken_for(path) == FORMATS[name], path
            with pytest.raises(InputError, match="no turn that is one call"):
                open_workload(path)
            continue
        with open_workload(path) as opened:
            assert opened.imported is not None
            assert opened.imported.format == FORMATS[name], path
            assert opened.turn_count > 0, path
            assert not any(entry.root_id == "" for entry in opened.tree_entries)
    if source.is_dir():
        with open_workload(source) as opened:
            assert opened.imported is not None
            assert opened.imported.files == len(files)
