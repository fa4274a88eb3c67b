"""AIPerf's dag_jsonl: forks inherit, spawns start fresh, joins wait; templates are made anew for each call."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.imported import imported, lines, problems, user

from kvbench.model import TurnRef

SYSTEM = {"role": "system", "content": "Be brief."}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def session(name: str, *turns: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"session_id": name, "turns": list(turns), **fields}


def turn(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"messages": list(messages), **fields}


def test_the_published_shape(tmp_path: Path) -> None:
    """A spawn by name is waited for by the next turn; delay is in ms."""
    path = lines(
        tmp_path / "d.jsonl",
        session("root", turn(user("plan"), spawns=["a"], max_tokens=20), turn(user("merge"), delay=500)),
        session("a", turn(user("look"), delay=250)),
    )
    got = imported(path)
    assert got.sent("root") == [[user("plan")], [user("plan"), user("merge")]]
    assert got.sent("a") == [[user("look")]]
    first, second = got.sessions["root"].turns
    assert (first.start_s, first.output_tokens, second.output_tokens) == (0.0, 20, None)
    assert (second.after, second.delay_s) == (("a",), 0.5)
    child = got.sessions["a"].turns[0]
    assert (child.parent, child.delay_s) == (TurnRef("root", 0), 0.25)
    report = got.report
    assert (report.format, report.units, report.sessions, report.sub_agents, report.turns) == ("aiperf", 2, 2, 1, 3)
    assert report.notes == {"answers_missing": 1, "no_output_length": 2}


def test_a_fork_goes_on_with_all_that_was_sent(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "d.jsonl",
        session(
            "root",
            turn(SYSTEM, user("a"), tools=[TOOL], model="m"),
            turn(user("b"), forks=["left", {"child": "right", "background": True}]),
        ),
        session("left", turn(user("l")), turn(user("ll"))),
        session("right", turn(user("r"), model="n")),
    )
    got = imported(path)
    inherited = [SYSTEM, user("a"), user("b")]
    assert got.sent("left") == [[*inherited, user("l")], [*inherited, user("l"), user("ll")]]
    assert got.sent("right") == [[*inherited, user("r")]]
    left, right = got.sessions["left"].turns[0], got.sessions["right"].turns[0]
    assert (left.parent, left.tools, left.model) == (TurnRef("root", 1), (TOOL,), "m")
    assert (right.parent, right.tools, right.model) == (TurnRef("root", 1), (TOOL,), "n")
    assert got.report.notes["answers_missing"] == 4, "root's second, both of left, and right's"


def test_joins_later_than_the_next_turn_and_spawns_without_one(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "d.jsonl",
        session(
            "root",
            turn(user("a"), spawns=[{"children": ["x", "y"], "join_at": 2}, "z"]),
            turn(user("b")),
            turn(user("c"), spawns=["w"]),
        ),
        *(session(name, turn(user(name))) for name in "wxyz"),
    )
    got = imported(path)
    assert [each.after for each in got.sessions["root"].turns] == [(), ("z",), ("x", "y")]
    assert got.sessions["w"].turns[0].parent == TurnRef("root", 2)
    assert got.report.notes["not_joined"] == 1


def test_sessions_that_start_before_the_first_turn(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "d.jsonl",
        session("root", turn(user("a"), spawns=["mid"]), pre_session_spawns=["early"]),
        session("mid", turn(user("m"), delay=100), pre_session_spawns=["early"]),
        session("early", turn(user("e"))),
    )
    got = imported(path)
    assert (got.sessions["early"].turns[0].parent, got.sessions["early"].turns[0].start_s) == (None, 0.0)
    again = got.sessions["root/mid/early"].turns[0]
    assert (again.parent, again.delay_s) == (TurnRef("root", 0), 0.0), "beside mid, from the turn that spawned it"
    assert (got.report.notes["pre_session"], got.report.notes["templates"]) == (2, 1)
    assert got.report.units == 3


@pytest.mark.parametrize(
    ("sessions", "line", "field", "message"),
    [
        ([session("a", turn(user("x"), spawns=["b"]))], 1, "turns[0].spawns[0]", 'no session "b"'),
        ([session("a", turn(user("x"), forks=["b"]))], 1, "turns[0].forks[0]", 'no session "b"'),
        ([session("a", turn(user("x")), pre_session_spawns=["b"])], 1, "pre_session_spawns", 'no session "b"'),
        ([session("a", turn(user("x"))), session("a", turn(user("y")))], 2, "session_id", '"a" is on line 1 already'),
        ([session("a", turn(user("x"), spawns=["a"]))], 0, "session_id", "every session is called by another"),
        (
            [session("r", turn(user("x"), spawns=["a"])), session("a", turn(user("y"), spawns=["a"]))],
            1,
            "turns",
            "in a circle: r -> a -> a",
        ),
        (
            [session("r", turn(user("x"))), session("a", turn(user("y"), spawns=["a"]))],
            2,
            "session_id",
            "called only by those it calls itself",
        ),
        (
            [session("a", turn(user("x"), spawns=[{"children": ["a"], "join_at": 1}]))],
            1,
            "turns[0].spawns[0].join_at",
            "has none",
        ),
        ([session("a")], 1, "turns", "length >= 1"),
        ([session("a", turn())], 1, "turns[0].messages", "length >= 1"),
        ([session("a", turn(user("x"), delay=-5))], 1, "turns[0].delay", "expected float"),
        ([session("a", turn({"role": "user", "content": 5}))], 1, "turns[0].messages[0].content", "expected text"),
        ([session("a", turn(user("x"), max_tokens=0))], 1, "turns[0].max_tokens", "expected int"),
    ],
)
def test_bad_sessions_are_named(
    tmp_path: Path, sessions: list[dict[str, Any]], line: int, field: str, message: str
) -> None:
    found = problems(lines(tmp_path / "d.jsonl", *sessions))
    assert (found[0][0], found[0][1]) == (line, field)
    assert message in found[0][2]


def test_templates_that_multiply_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvbench.traces.formats.aiperf.MAX_SESSIONS", 100)
    names = "abcdefgh"
    rows = [
        session(name, turn(user("x"), spawns=[child]), turn(user("y"), spawns=[child]))
        for name, child in pairwise(names)
    ]
    found = problems(lines(tmp_path / "d.jsonl", *rows, session("h", turn(user("z")))))
    assert "make more than 100" in found[0][2]
