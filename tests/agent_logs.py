"""Logs of agents written by tests, and what comes out of them: sessions, and whole prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvbench.model import Message, Session
from kvbench.traces.importing import open_workload


def write(tmp_path: Path, lines: Sequence[Any], name: str = "log.jsonl") -> Path:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


def sessions_of(path: Path) -> dict[str, Session]:
    with open_workload(path) as opened:
        return {session.session_id: session for tree in opened.trees() for session in tree.sessions}


def prompts_of(session: Session) -> list[list[Message]]:
    """The whole context of each turn."""
    out: list[list[Message]] = []
    for turn in session.turns:
        if turn.messages is not None:
            out.append(list(turn.messages))
        else:
            out.append([*(out[-1] if out else []), *(turn.append or ())])
    return out
