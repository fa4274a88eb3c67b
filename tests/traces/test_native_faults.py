"""Native traces that are wrong: refused or doubted, with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.traces.test_native import USER, child, turn, write

from kvbench.errors import InputError
from kvbench.traces.native import open_trace, validate_trace

BAD = {
    "gap in turns": ([turn("a", 0), turn("a", 2)], 3, "turn", 'turn 2 of session "a" where turn 1 is due'),
    "turn twice": ([turn("a", 0), turn("a", 0)], 3, "turn", "where turn 1 is due"),
    "no turn 0": ([turn("a", 1)], 2, "turn", "where turn 0 is due"),
    "two contents": ([turn("a", 0, append=USER, messages=USER)], 2, None, "messages and append"),
    "no content": (['{"session_id": "a", "turn": 0}'], 2, None, "found none"),
    "unknown prefix": ([turn("a", 0, prefix="p")], 2, "prefix", '"p" is not defined before this line'),
    "prefix after use": (
        [turn("a", 0, prefix="p"), '{"prefix": "p", "messages": [{"role": "system", "content": ""}]}'],
        2,
        "prefix",
        "not defined before",
    ),
    "prefix twice": (
        ['{"prefix": "p", "tools": [{}]}', '{"prefix": "p", "tools": [{}]}', turn("a", 0)],
        3,
        "prefix",
        "defined twice",
    ),
    "empty prefix": (['{"prefix": "p"}', turn("a", 0)], 2, "prefix", "neither messages nor tools"),
    "prefix in mid-session": (
        ['{"prefix": "p", "tools": [{}]}', turn("a", 0), turn("a", 1, prefix="p")],
        4,
        "prefix",
        "opens a context",
    ),
    "start of a later turn": ([turn("a", 0), turn("a", 1, start_s=1)], 3, "start_s", "only a session's turn 0"),
    "start of a child": ([turn("a", 0), child("b", "a", 0, start_s=1)], 3, "start_s", "a child session starts"),
    "delay of a root": ([turn("a", 0, delay_s=1)], 2, "delay_s", "begins at start_s"),
    "parent on turn 1": (
        [turn("a", 0), turn("b", 0), turn("b", 1, parent={"session_id": "a", "turn": 0})],
        4,
        "parent",
        "only a session's turn 0",
    ),
    "parent missing": ([child("b", "a", 0)], 2, "parent.session_id", 'no session "a"'),
    "parent turn missing": ([turn("a", 0), child("b", "a", 1)], 3, "parent.turn", "has turns 0 to 0, not 1"),
    "own parent": ([child("a", "a", 0)], 2, "parent", "its own ancestor"),
    "circle of parents": ([child("a", "b", 0), child("b", "a", 0)], 2, "parent", "its own ancestor"),
    "join of nothing": ([turn("a", 0), turn("a", 1, after=["x"])], 3, "after", 'no session "x"'),
    "join across trees": ([turn("a", 0), turn("b", 0), turn("b", 1, after=["a"])], 4, "after", "another tree"),
    "join of itself": ([turn("a", 0), turn("a", 1, after=["a"])], 3, "after", 'waits for "a"'),
    "join before the start of the joined": (
        [turn("a", 0), turn("a", 1, after=["b"]), turn("a", 2), child("b", "a", 2)],
        3,
        "after",
        'turn 1 of session "a" waits for "b", which cannot end before it',
    ),
    "child waits for its waiting parent": (
        [turn("a", 0), turn("a", 1, after=["b"]), child("b", "a", 0), turn("b", 1, after=["a"])],
        3,
        "after",
        "cannot end before it",
    ),
    "siblings wait for each other": (
        [turn("a", 0), child("b", "a", 0, after=["c"]), child("c", "a", 0, after=["b"])],
        3,
        "after",
        "cannot end before it",
    ),
    "hash ids and content": (
        [turn("a", 0), turn("a", 1, hash_ids=[], input_tokens=5)],
        3,
        "hash_ids",
        "all of its turns",
    ),
    "hash ids without length": ([turn("a", 0, hash_ids=[1])], 2, "input_tokens", "has input_tokens"),
    "too few hash ids": ([turn("a", 0, hash_ids=[1], input_tokens=25)], 2, "hash_ids", "expected 2, or 3"),
    "too many hash ids": ([turn("a", 0, hash_ids=[1, 2, 3], input_tokens=20)], 2, "hash_ids", "expected 2, or 2"),
    "keeps too much": (
        [turn("a", 0, hash_ids=[1], input_tokens=10), turn("a", 1, hash_ids=[], keep_blocks=2, input_tokens=20)],
        3,
        "keep_blocks",
        "keeps 2 blocks of a previous turn that has 1",
    ),
    "keep without hash ids": ([turn("a", 0, keep_blocks=0)], 2, "keep_blocks", "goes with hash_ids"),
    "message without role": ([turn("a", 0, append=[{"content": "x"}])], 2, "append[0].role", 'has a "role"'),
    "content a number": ([turn("a", 0, append=[{"role": "user", "content": 3}])], 2, "append[0].content", "a string"),
    "part without type": (
        [turn("a", 0, append=[{"role": "user", "content": [{"text": "x"}]}])],
        2,
        "append[0].content[0]",
        "type",
    ),
    "tool calls no array": (
        [turn("a", 0, append=[{"role": "assistant", "content": "", "tool_calls": {"id": "x"}}])],
        2,
        "append[0].tool_calls",
        "array of objects",
    ),
    "tool without name": ([turn("a", 0, tools=[{"type": "function"}])], 2, "tools[0].function", "name"),
    "no turns": (['{"prefix": "p", "tools": [{}]}'], 2, None, "no turns"),
    "torn last line": ([turn("a", 0), turn("a", 1)[:-5]], 3, None, "ends inside its JSON"),
    "empty context": ([turn("a", 0), turn("a", 1, messages=[])], 3, "messages", "an empty context"),
}


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.replace(" ", "-"))
def test_a_bad_trace_is_refused_with_file_and_line(tmp_path: Path, case: str) -> None:
    lines, line, field, message = BAD[case]
    path = write(tmp_path, *lines)
    with pytest.raises(InputError) as caught:
        open_trace(path)
    error = caught.value
    assert (error.line, error.field) == (line, field)
    assert message in error.message
    assert error.message.startswith(f"{path}:{line}: ")
    assert error.exit_code == 2
    found = validate_trace(path)
    assert (line, field) in [(problem.line, problem.field) for problem in found.errors]


def test_validate_lists_every_problem_in_the_order_of_lines(tmp_path: Path) -> None:
    path = write(
        tmp_path, child("b", "gone", 0), "{", turn("a", 0, start_s=-1), turn("c", 0), turn("c", 2), turn("d", 0)
    )
    found = validate_trace(path)
    assert [problem.line for problem in found.errors] == [2, 3, 4, 6]
    assert found.turns == 4
    few = validate_trace(path, limit=1)
    assert (len(few.errors), few.dropped) == (1, 3)


def test_a_gap_is_one_problem_not_one_a_turn(tmp_path: Path) -> None:
    path = write(tmp_path, turn("a", 0), "{", *(turn("a", number) for number in range(2, 9)))
    assert [problem.line for problem in validate_trace(path).errors] == [3, 4]


def test_a_trace_that_waits_for_an_ancestor_not_waiting_for_it_is_good(tmp_path: Path) -> None:
    path = write(tmp_path, turn("a", 0), turn("a", 1), child("b", "a", 0), turn("b", 1, after=["a"]))
    with open_trace(path) as trace:
        assert trace.tree_count == 1


def test_doubtful_tool_calls_are_warnings(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1"}, {"id": "c2"}]}
    good = [turn("a", 0), turn("a", 1, append=[call, {"role": "tool", "tool_call_id": "c2", "content": "2"}])]
    rest = turn("a", 2, append=[{"role": "tool", "tool_call_id": "c1", "content": "1"}, *USER])
    with open_trace(write(tmp_path, *good, rest)) as trace:
        assert trace.warnings == ()
    wrong = turn("a", 2, append=[{"role": "tool", "tool_call_id": "c9", "content": "1"}, *USER])
    with open_trace(write(tmp_path, *good, wrong)) as trace:
        assert [(w.line, w.field) for w in trace.warnings] == [(4, "append[0]"), (4, "append[1]")]
        assert 'tool call "c9", which is not open' in trace.warnings[0].message
        assert "left unanswered: c1" in trace.warnings[1].message


def test_files_that_are_no_trace(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        open_trace(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="a directory"):
        open_trace(tmp_path)
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"")
    with pytest.raises(InputError, match="empty"):
        open_trace(path)
    path.write_bytes(b"\x1f\x8b\x08\x00rest")
    with pytest.raises(InputError, match="a gzip file"):
        open_trace(path)
    path.write_bytes(b'{"kvbench_trace": 9}\n')
    with pytest.raises(InputError, match=r":1: kvbench_trace: trace version 9 is newer") as caught:
        open_trace(path)
    assert caught.value.hint is not None
    found = validate_trace(path)
    assert [(problem.line, problem.field) for problem in found.errors] == [(1, "kvbench_trace")]
    assert found.errors[0].message.startswith("trace version 9")


def test_a_line_over_the_cap_is_refused_and_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvbench.traces.index.MAX_LINE_BYTES", 500)
    path = write(tmp_path, turn("a", 0), turn("b", 0, append=[{"role": "user", "content": "x" * 2000}]), turn("c", 0))
    found = validate_trace(path)
    assert [problem.line for problem in found.errors] == [3]
    assert found.turns == 2
