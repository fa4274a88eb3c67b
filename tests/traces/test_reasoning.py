from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvbench.traces.reasoning import carries_reasoning


@pytest.mark.parametrize(
    ("line", "carried"),
    [
        ({"messages": [{"role": "assistant", "content": "a", "reasoning_content": "why"}]}, True),
        ({"messages": [{"role": "assistant", "content": "a", "reasoning": "why"}]}, True),
        ({"messages": [{"role": "assistant", "content": "a", "reasoning_content": ""}]}, False),
        ({"messages": [{"role": "assistant", "content": "a", "reasoning_content": None}]}, False),
        ({"messages": [{"role": "user", "content": 'say {"reasoning_content": "why"}'}]}, False),
        ({"tools": [{"function": {"parameters": {"properties": {"reasoning": {"type": "string"}}}}}]}, False),
        ({"recorded": {"usage": {"completion_tokens_details": {"reasoning_tokens": 5}}}}, False),
    ],
)
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_what_is_reasoning(tmp_path: Path, line: dict[str, Any], carried: bool, separators: tuple[str, str]) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"kvbench_trace": 1}) + "\n" + json.dumps(line, separators=separators) + "\n")
    with path.open("rb") as file:
        assert carries_reasoning(file) is carried
