"""What is made of a log hangs on what its records say: not on white space, key order, record order or packing."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.imported import imported, said, user

from kvbench.traces.import_report import ImportReport

SYSTEM = {"role": "system", "content": "Be brief."}


def prompts(chance: random.Random, conversations: int) -> list[tuple[float, int, list[dict[str, Any]]]]:
    """(time, conversation, messages) of requests of some conversations that begin alike and run at once."""
    made = []
    for number in range(conversations):
        messages = [SYSTEM, user(chance.choice("ab"))]
        at = float(chance.randrange(20))
        for _ in range(chance.randrange(1, 6)):
            made.append((at, number, list(messages)))
            messages += [said(f"{number} {at}"), user(chance.choice("cd"))]
            at += chance.randrange(1, 8)
    return made


def request_log(chance: random.Random) -> list[dict[str, Any]]:
    return [
        {"timestamp": at, "completion_tokens": 3, "body": {"model": "m", "messages": messages}}
        for at, _, messages in prompts(chance, 8)
    ]


def litellm(chance: random.Random) -> list[dict[str, Any]]:
    return [
        {
            "id": f"{number}-{at}",
            "trace_id": f"{number}-{at}",
            "startTime": at,
            "endTime": at + 0.5,
            "prompt_tokens": 10 * len(messages),
            "completion_tokens": 3,
            "messages": messages,
        }
        for at, number, messages in prompts(chance, 8)
    ]


def otel(chance: random.Random) -> list[dict[str, Any]]:
    return [
        {
            "trace_id": f"t{number}",
            "span_id": f"{number}-{at}",
            "name": "chat",
            "start_time": at,
            "end_time": at + 0.5,
            "attributes": {"gen_ai.operation.name": "chat", "gen_ai.input.messages": json.dumps(messages)},
        }
        for at, number, messages in prompts(chance, 8)
    ]


def openai_messages(chance: random.Random) -> list[dict[str, Any]]:
    last = {number: messages for _, number, messages in prompts(chance, 8)}
    return [{"messages": messages} for messages in last.values()]


def sharegpt(chance: random.Random) -> list[dict[str, Any]]:
    roles = {"system": "system", "user": "human", "assistant": "gpt"}
    return [
        {"conversations": [{"from": roles[each["role"]], "value": each["content"]} for each in row["messages"]]}
        for row in openai_messages(chance)
    ]


def aiperf(chance: random.Random) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number in range(6):
        turns: list[dict[str, Any]] = [{"messages": [user(f"{number}")], "max_tokens": chance.randrange(1, 9)}] * 2
        spawns = chance.sample(range(number + 1, 6), min(2, 5 - number))
        turns[0] = {**turns[0], "spawns": [f"s{child}" for child in spawns]}
        rows.append({"session_id": f"s{number}", "turns": turns})
    return rows


LOGS: dict[str, Callable[[random.Random], list[dict[str, Any]]]] = {
    "request-log": request_log,
    "litellm": litellm,
    "otel": otel,
    "openai-messages": openai_messages,
    "sharegpt": sharegpt,
    "aiperf": aiperf,
}


def turned(value: Any) -> Any:
    """Keys in the opposite order."""
    if isinstance(value, dict):
        return {name: turned(each) for name, each in reversed(value.items())}
    return [turned(each) for each in value] if isinstance(value, list) else value


def totals(path: Path) -> tuple[dict[str, Any], list[Any]]:
    """The report but for what tells of the order itself, and all that is sent: when, and after what."""
    got = imported(path)
    report: ImportReport = got.report
    kept = {name: getattr(report, name) for name in ("format", "units", "sessions", "sub_agents", "turns", "dropped")}
    kept["notes"] = {code: n for code, n in report.notes.items() if code not in ("out_of_order", "renamed")}
    sent = [
        (
            turn.turn,
            turn.start_s,
            turn.delay_s,
            len(turn.after),
            turn.output_tokens,
            json.dumps(turned(prompt), sort_keys=True),
        )
        for name, session in got.sessions.items()
        for turn, prompt in zip(session.turns, got.sent(name), strict=True)
    ]
    return kept, sorted(sent, key=repr)


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("seed", range(4))
def test_totals_do_not_hang_on_how_a_log_is_written(tmp_path: Path, name: str, seed: int) -> None:
    chance = random.Random(seed)
    records = LOGS[name](chance)
    shuffled = chance.sample(records, len(records))
    compact = "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in records)
    spellings = {
        "spaced": "".join(json.dumps(each, separators=(" , ", " : ")) + "\r\n\n" for each in records).encode(),
        "keys": "".join(json.dumps(turned(each)) + "\n" for each in records).encode(),
        "order": "".join(json.dumps(each) + "\n" for each in shuffled).encode(),
        "array": json.dumps(records).encode(),
        "indented": json.dumps(records, indent=2).encode(),
        "gzip": gzip.compress(compact.encode()),
        "no end of line, mark": "\ufeff".encode() + compact.removesuffix("\n").encode(),
    }
    path = tmp_path / "log.jsonl"
    path.write_text(compact)
    wanted = totals(path)
    assert wanted[0]["format"] == name
    assert wanted[0]["units"] == len(records)
    for spelling, text in spellings.items():
        path.write_bytes(text)
        assert totals(path) == wanted, spelling


def test_a_log_of_any_length_is_read_in_little_memory(tmp_path: Path) -> None:
    """20 sessions of 25 requests with up to 50 messages of 1,000 characters: 13 MB, of which no request is kept."""
    import tracemalloc

    path = tmp_path / "log.jsonl"
    with path.open("w") as out:
        for number in range(20):
            messages = [user(f"{number} " + "x" * 1000)]
            for turn in range(25):
                out.write(
                    json.dumps({"timestamp": turn, "completion_tokens": 1, "body": {"messages": messages}}) + "\n"
                )
                messages += [said("y" * 1000), user(f"{turn} " + "z" * 1000)]
    assert path.stat().st_size > 12e6
    tracemalloc.start()
    got_turns = imported_turns(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert got_turns == 500
    assert peak < 5e6


def imported_turns(path: Path) -> int:
    from kvbench.traces.importing import open_workload

    with open_workload(path) as opened:
        assert opened.imported is not None
        return opened.imported.turns
