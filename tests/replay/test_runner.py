"""The runner against a sender without a network: what is due follows from what ended, exactly, in whole nanoseconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvbench.model import Clock, Record, Request, Usage
from kvbench.replay.limits import Limits
from kvbench.replay.prompts import Prompt
from kvbench.replay.runner import Runner
from kvbench.replay.schedule import Arrival
from kvbench.replay.settings import RunSettings
from kvbench.traces.native import open_trace

MS = 1_000_000


class Sender:
    """Answers after `answer_s`; `fail` says which (session, turn, attempt) fails and how."""

    def __init__(self, now_ns: Callable[[], int], *, salt_field: bool = True) -> None:
        self.now_ns = now_ns
        self.salt_field = salt_field
        self.answer_s = 0.004
        self.fail: dict[tuple[str, int, int], tuple[str, float | None]] = {}
        self.bodies: dict[tuple[str, int], dict[str, Any]] = {}
        self.running = 0
        self.peak = 0

    def body(self, prompt: Prompt, output_tokens: int | None) -> dict[str, Any]:
        return {"messages": prompt.messages, "salt": prompt.salt, "max_tokens": output_tokens}

    async def send(self, request: Request) -> Record:
        self.bodies[request.session_id, request.turn] = request.body
        sent = self.now_ns()
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await asyncio.sleep(self.answer_s)
        finally:
            self.running -= 1
        error, retry_after_s = self.fail.get((request.session_id, request.turn, request.attempt), (None, None))
        clock = Clock(
            scheduled=request.scheduled_ns,
            due=request.due_ns,
            limit_wait_ns=request.limit_wait_ns,
            upload_start=sent,
            sent=sent,
            end=self.now_ns(),
        )
        return Record(
            request_id=request.request_id,
            session_id=request.session_id,
            turn=request.turn,
            attempt=request.attempt,
            phase=request.phase,
            root_id=request.root_id,
            clock=clock,
            usage=Usage(output_tokens=3),
            error_class=error,
            retry_after_s=retry_after_s,
            output_text=f"answer of {request.session_id}/{request.turn}",
        )


class Observer:
    def __init__(self) -> None:
        self.records: list[Record] = []
        self.on_record: Callable[[Record], None] = lambda record: None
        self.trees: list[str] = []
        self.sessions_ended = 0
        self.complete: dict[str, bool] = {}
        self.measuring_ns: int | None = None

    def measuring(self, at_ns: int) -> None:
        self.measuring_ns = at_ns

    def record(self, record: Record) -> None:
        self.records.append(record)
        self.on_record(record)

    def tree_started(self, arrival: Arrival, root_id: str) -> None:
        self.trees.append(root_id)

    def session_ended(self) -> None:
        self.sessions_ended += 1

    def tree_ended(self, root_id: str, complete: bool) -> None:
        self.complete[root_id] = complete

    def of(self, session_id: str, turn: int) -> Record:
        return next(r for r in self.records if (r.session_id, r.turn, r.final) == (session_id, turn, True))


def line(session: str, turn: int, **fields: Any) -> dict[str, Any]:
    text = [{"role": "user", "content": f"{session}/{turn}"}]
    if turn and "append" not in fields:
        text.insert(0, {"role": "assistant", "content": f"recorded {session}/{turn - 1}"})
    return {"session_id": session, "turn": turn, "append": text, "output_tokens": 3, **fields}


FAN_OUT = [
    line("a", 0, start_s=0.0),
    line("a", 1, delay_s=0.02),
    line("a.x", 0, parent={"session_id": "a", "turn": 1}, delay_s=0.03),
    line("a.x", 1, delay_s=0.01),
    line("a.y", 0, parent={"session_id": "a", "turn": 1}),
    line("a", 2, after=["a.x", "a.y"], delay_s=0.02),
    line("b", 0, start_s=0.05),
]


class Replay:
    def __init__(self, tmp_path: Path, lines: list[dict[str, Any]], settings: RunSettings, **sender: Any) -> None:
        path = tmp_path / "trace.jsonl"
        path.write_bytes(b"\n".join(map(msgspec.json.encode, [{"kvbench_trace": 1, "name": "t"}, *lines])) + b"\n")
        origin = time.monotonic_ns()
        self.now_ns = lambda: time.monotonic_ns() - origin
        self.sender = Sender(self.now_ns, **sender)
        self.observer = Observer()
        self.limits = Limits(settings.max_in_flight, None, self.now_ns)
        self.trace = open_trace(path)
        run_id = "20260101T000000Z-t-abc123"
        self.runner = Runner(self.trace, self.sender, settings, self.limits, self.observer, self.now_ns, run_id)

    async def run(self) -> Observer:
        with self.trace:
            async with asyncio.timeout(60):
                await self.runner.run()
        return self.observer


@pytest.mark.parametrize("scale", [1.0, 0.5, 0.0])
async def test_pauses_children_and_joins_are_due_exactly_after_what_they_wait_for(tmp_path: Path, scale: float) -> None:
    settings = RunSettings(time_scale=scale, sessions=8)
    got = await Replay(tmp_path, FAN_OUT, settings).run()

    def end(session: str, turn: int) -> int:
        value = got.of(session, turn).clock.end
        assert value is not None
        return value

    def scheduled(session: str, turn: int) -> int:
        return got.of(session, turn).clock.scheduled

    assert scheduled("a", 1) == end("a", 0) + 20 * MS * scale
    assert scheduled("a.x", 0) == end("a", 1) + 30 * MS * scale
    assert scheduled("a.y", 0) == end("a", 1)
    assert scheduled("a.x", 1) == end("a.x", 0) + 10 * MS * scale
    assert scheduled("a", 2) == max(end("a.x", 1), end("a.y", 0), end("a", 1)) + 20 * MS * scale
    assert all(r.clock.upload_start is not None and r.clock.upload_start >= r.clock.scheduled for r in got.records)
    assert len(got.records) == 7
    assert sorted(got.trees) == ["a", "b"]
    assert got.sessions_ended == 4


async def test_roots_start_at_their_trace_time_scaled(tmp_path: Path) -> None:
    replay = Replay(tmp_path, FAN_OUT, RunSettings(time_scale=0.5))
    got = await replay.run()
    assert got.complete == {"a": True, "b": True}
    # a: 0.02, its child a.x: + 0.03 + 0.01, a again: + 0.02; b starts at 0.05
    assert replay.runner.trace_s == pytest.approx(0.08)
    assert got.of("b", 0).clock.scheduled - got.of("a", 0).clock.scheduled == 25 * MS


async def test_contexts_salts_and_lengths_reach_the_body(tmp_path: Path) -> None:
    replay = Replay(tmp_path, FAN_OUT, RunSettings(time_scale=0))
    await replay.run()
    body = replay.sender.bodies["a", 1]
    assert [m["content"] for m in body["messages"]] == ["a/0", "recorded a/0", "a/1"]
    assert body["max_tokens"] == 3
    assert len({b["salt"] for b in replay.sender.bodies.values()}) == 1


async def test_salt_by_tree_differs_between_trees_and_is_shared_inside_one(tmp_path: Path) -> None:
    replay = Replay(tmp_path, FAN_OUT, RunSettings(time_scale=0, salt="tree"))
    await replay.run()
    salts = {key: body["salt"] for key, body in replay.sender.bodies.items()}
    assert salts["a", 0] == salts["a.x", 1]
    assert salts["a", 0] != salts["b", 0]


async def test_without_a_salt_field_the_salt_leads_the_first_message_of_every_turn(tmp_path: Path) -> None:
    replay = Replay(tmp_path, FAN_OUT, RunSettings(time_scale=0), salt_field=False)
    await replay.run()
    first = replay.sender.bodies["a", 0]["messages"][0]["content"]
    assert first.endswith("] a/0")
    assert first == replay.sender.bodies["a", 2]["messages"][0]["content"]
    replay = Replay(tmp_path, FAN_OUT, RunSettings(time_scale=0, salt="none"), salt_field=False)
    await replay.run()
    assert replay.sender.bodies["a", 0]["messages"][0]["content"] == "a/0"


async def test_live_history_sends_the_text_just_received(tmp_path: Path) -> None:
    replay = Replay(tmp_path, FAN_OUT, RunSettings(time_scale=0, history="live"))
    await replay.run()
    contents = [m["content"] for m in replay.sender.bodies["a", 2]["messages"]]
    assert contents == ["a/0", "answer of a/0", "a/1", "answer of a/1", "a/2"]


async def test_a_failed_turn_lets_a_recorded_session_go_on(tmp_path: Path) -> None:
    replay = Replay(tmp_path, FAN_OUT, RunSettings(time_scale=0))
    replay.sender.fail["a", 1, 0] = ("server_error", None)
    got = await replay.run()
    assert [r.error_class for r in got.records if r.error_class] == ["server_error"]
    assert len(got.records) == 7


async def test_a_failed_turn_skips_the_rest_of_a_live_session_and_of_what_it_would_have_started(tmp_path: Path) -> None:
    replay = Replay(tmp_path, FAN_OUT, RunSettings(time_scale=0, history="live"))
    replay.sender.fail["a", 1, 0] = ("server_error", None)
    got = await replay.run()
    outcome = {(r.session_id, r.turn): r.error_class for r in got.records}
    assert outcome == {
        ("a", 0): None,
        ("a", 1): "server_error",
        ("a", 2): "skipped",
        ("a.x", 0): "skipped",
        ("a.x", 1): "skipped",
        ("a.y", 0): "skipped",
        ("b", 0): None,
    }
    assert got.sessions_ended == 4


async def test_a_child_that_fails_live_releases_the_join(tmp_path: Path) -> None:
    replay = Replay(tmp_path, FAN_OUT, RunSettings(time_scale=0, history="live"))
    replay.sender.fail["a.x", 0, 0] = ("server_error", None)
    got = await replay.run()
    assert got.of("a", 2).ok
    assert got.of("a.x", 1).error_class == "skipped"


async def test_each_attempt_is_a_record_and_keeps_the_intended_time(tmp_path: Path) -> None:
    replay = Replay(tmp_path, FAN_OUT, RunSettings(time_scale=0, retries=2))
    replay.sender.fail = {("b", 0, 0): ("rate_limited", 0.01), ("b", 0, 1): ("overloaded", 0.0)}
    got = await replay.run()
    tries = [r for r in got.records if r.session_id == "b"]
    assert [(r.attempt, r.final, r.error_class) for r in tries] == [
        (0, False, "rate_limited"),
        (1, False, "overloaded"),
        (2, True, None),
    ]
    assert len({r.clock.scheduled for r in tries}) == 1
    assert tries[1].clock.due == (tries[0].clock.end or 0) + 10 * MS
    assert tries[2].clock.due == tries[1].clock.end
    assert len({r.request_id for r in got.records}) == 9


async def test_what_a_retry_cannot_mend_is_not_retried_and_retries_run_out(tmp_path: Path) -> None:
    replay = Replay(tmp_path, FAN_OUT, RunSettings(time_scale=0, retries=1))
    replay.sender.fail = {
        ("a", 0, 0): ("context_overflow", None),
        ("b", 0, 0): ("overloaded", 0.0),
        ("b", 0, 1): ("overloaded", 0.0),
    }
    got = await replay.run()
    assert [(r.attempt, r.final) for r in got.records if r.session_id == "b"] == [(0, False), (1, True)]
    assert [(r.attempt, r.final) for r in got.records if (r.session_id, r.turn) == ("a", 0)] == [(0, True)]


async def test_no_more_than_max_in_flight_and_the_wait_is_not_the_clients_lag(tmp_path: Path) -> None:
    lines = [line(f"s{k}", 0) for k in range(6)]
    replay = Replay(tmp_path, lines, RunSettings(time_scale=0, max_in_flight=2))
    got = await replay.run()
    assert replay.sender.peak == 2
    # Two could go at once: each of the other four waited until one before it had ended.
    waited = sorted(r.clock.limit_wait_ns for r in got.records)
    ends = sorted(r.clock.end for r in got.records if r.clock.end is not None)
    due = max(r.clock.due for r in got.records)
    assert all(wait >= end - due for wait, end in zip(waited[2:], ends, strict=False))
    assert waited[2] > 0


async def test_sessions_keeps_that_many_trees_live_in_file_order(tmp_path: Path) -> None:
    lines = [line(f"s{k}", 0) for k in range(5)]
    replay = Replay(tmp_path, lines, RunSettings(sessions=2))
    got = await replay.run()
    assert replay.sender.peak == 2
    assert got.trees == [f"s{k}" for k in range(5)]


async def test_a_duration_uses_trees_again_under_new_ids_and_salts(tmp_path: Path) -> None:
    lines = [line("s", 0), line("s", 1)]
    replay = Replay(tmp_path, lines, RunSettings(sessions=1, duration_s=0.08))
    got = await replay.run()
    ids = {r.session_id for r in got.records}
    assert {"s", "s~1", "s~2"} <= ids
    salts = {key[0]: body["salt"] for key, body in replay.sender.bodies.items()}
    assert len(set(salts.values())) == len(ids)
    assert all(r.ok for r in got.records)


async def test_warm_up_turns_are_the_first_to_start(tmp_path: Path) -> None:
    got = await Replay(tmp_path, FAN_OUT, RunSettings(sessions=1, warmup=2)).run()
    assert [r.phase for r in got.records] == ["warmup"] * 2 + ["measure"] * 5


async def test_stop_lets_what_is_in_flight_end_and_starts_nothing_more(tmp_path: Path) -> None:
    lines = [line("a", 0), line("a", 1, delay_s=60.0), line("b", 0), line("c", 0, start_s=60.0)]
    replay = Replay(tmp_path, lines, RunSettings())
    replay.observer.on_record = lambda record: replay.runner.stop()
    got = await replay.run()
    assert [(r.session_id, r.turn, r.ok) for r in got.records] == [("a", 0, True), ("b", 0, True)]
    assert got.complete == {"a": False, "b": True}


async def test_stop_wakes_a_join_and_a_backoff(tmp_path: Path) -> None:
    lines = [
        line("a", 0),
        line("a.x", 0, parent={"session_id": "a", "turn": 0}, delay_s=60.0),
        line("a", 1, after=["a.x"]),
        line("b", 0, start_s=0.03),
    ]
    replay = Replay(tmp_path, lines, RunSettings(retries=1))
    replay.sender.fail["b", 0, 0] = ("overloaded", 60.0)
    replay.observer.on_record = lambda r: replay.runner.stop() if r.session_id == "b" and r.attempt == 0 else None
    got = await replay.run()
    assert [(r.session_id, r.attempt, r.error_class) for r in got.records] == [
        ("a", 0, None),
        ("b", 0, "overloaded"),
        ("b", 1, "cancelled"),
    ]


async def test_abort_records_what_was_in_flight(tmp_path: Path) -> None:
    replay = Replay(tmp_path, FAN_OUT, RunSettings())
    replay.sender.answer_s = 60
    task = asyncio.create_task(replay.run())
    await asyncio.sleep(0.08)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted((r.session_id, r.error_class) for r in replay.observer.records) == [
        ("a", "cancelled"),
        ("b", "cancelled"),
    ]


async def test_an_error_of_the_observer_stops_the_run_and_is_raised_as_it_is(tmp_path: Path) -> None:
    replay = Replay(tmp_path, FAN_OUT, RunSettings())

    def full(record: Record) -> None:
        raise OSError("disk full")

    replay.observer.on_record = full
    with pytest.raises(OSError, match="disk full"):
        await replay.run()


async def test_a_turn_that_still_waits_for_a_limit_when_the_run_is_stopped_is_not_sent(tmp_path: Path) -> None:
    lines = [line(f"s{k}", 0) for k in range(6)]
    replay = Replay(tmp_path, lines, RunSettings(time_scale=0, max_in_flight=2, warmup=1))
    replay.observer.on_record = lambda record: replay.runner.stop()
    got = await replay.run()
    assert len(got.records) == 2
    assert sum(got.complete.values()) == 2
