"""Sessions that press on a cache: what each puts there is more than what stays."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any


def write_trace(path: Path, seed: int, sessions: int) -> None:
    """Sessions of 3 to 9 turns that begin alike and grow by 32 to 400 tokens a turn."""
    rng = random.Random(seed)
    lines: list[dict[str, Any]] = [{"kvbench_trace": 1, "name": "pressure", "block_size": 16}]
    shared, fresh = list(range(1, 20)), 100
    for number in range(sessions):
        length = len(shared)
        for turn in range(rng.randint(3, 9)):
            keep, added = (length - 1, rng.randint(2, 25)) if turn else (0, rng.randint(5, 60))
            ids = ([] if turn else shared) + list(range(fresh, fresh + added))
            fresh += added
            length = keep + len(ids)
            line = {"session_id": f"s{number}", "turn": turn, "input_tokens": length * 16 - rng.randint(0, 15)}
            line |= {"output_tokens": 2, "hash_ids": ids}
            lines.append(line | ({"keep_blocks": keep, "delay_s": rng.uniform(0.1, 1)} if turn else {"start_s": 0.0}))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
