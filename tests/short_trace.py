"""A trace that a simulated endpoint answers in a second."""

from __future__ import annotations

import json
from pathlib import Path


def write_short_trace(path: Path, sessions: int = 6) -> None:
    """`sessions` sessions of two turns without pauses, some 200 tokens more each, 4 tokens out."""
    rows: list[dict[str, object]] = [{"kvbench_trace": 1, "name": "short", "block_size": 16}]
    for session in range(sessions):
        for turn in range(2):
            text = f"{session} {turn} " + "word " * 200
            begin = {"delay_s": 0.0} if turn else {"start_s": 0.0}
            rows.append(
                {
                    "session_id": f"s{session}",
                    "turn": turn,
                    **begin,
                    "append": [{"role": "user", "content": text}],
                    "output_tokens": 4,
                }
            )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
