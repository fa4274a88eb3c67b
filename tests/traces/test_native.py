"""Whole files: trees are found and read back, bad files are refused with file and line, memory stays small."""

import hashlib
import json
import tracemalloc
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from kvbench.errors import InputError
from kvbench.model import Recorded, Session, SharedPrompt, TraceHeader, Tree, Turn, TurnRef
from kvbench.traces.native import TreeEntry, open_trace, validate_trace
from kvbench.traces.write import trace_lines

HEADER = '{"kvbench_trace": 1, "name": "t", "block_size": 10}'
USER = [{"role": "user", "content": "go"}]


def turn(session: str, number: int, **fields: Any) -> str:
    if not fields.keys() & {"append", "messages", "hash_ids"}:
        fields["append"] = USER
    return json.dumps({"session_id": session, "turn": number, **fields})


def child(session: str, parent: str, at: int, **fields: Any) -> str:
    return turn(session, 0, parent={"session_id": parent, "turn": at}, **fields)


def write(tmp_path: Path, *lines: str, header: str = HEADER) -> Path:
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


# ------------------------------------------------------------------------------------------------------ reading


def test_trees_are_read_from_mixed_lines_in_any_order(tmp_path: Path) -> None:
    lines = [
        child("b.x", "b", 0),
        turn("a", 0, start_s=2.5),
        turn("b", 0),
        child("b.x.y", "b.x", 0),
        turn("a", 1, delay_s=1.0),
        turn("b.x", 1),
        turn("b", 1, after=["b.x", "b.x.y"]),
    ]
    path = write(tmp_path, *lines)
    with open_trace(path) as trace:
        assert trace.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        assert (trace.tree_count, trace.session_count, trace.turn_count) == (2, 4, 7)
        assert list(trace.tree_entries) == [TreeEntry("a", 2.5, 1, 2), TreeEntry("b", 0.0, 3, 5)]
        assert trace.tree_entries[-1].root_id == "b"
        a, b = trace.trees()
        assert [(s.session_id, [t.line for t in s.turns]) for s in a.sessions] == [("a", [3, 6])]
        assert [(s.session_id, [t.line for t in s.turns]) for s in b.sessions] == [
            ("b", [4, 8]),
            ("b.x", [2, 7]),
            ("b.x.y", [5]),
        ]
        assert trace.raw_lines(1) == [lines[i].encode() + b"\n" for i in (0, 2, 3, 5, 6)]
        assert trace.raw_head() == [HEADER.encode() + b"\n"]


def test_head_and_lines_make_the_same_trace_again(tmp_path: Path) -> None:
    prompt = '{"prefix": "p", "messages": [{"role": "system", "content": "s"}]}'
    path = write(tmp_path, prompt, turn("a", 0, prefix="p"), turn("b", 0), turn("a", 1))
    with open_trace(path) as trace:
        copy = tmp_path / "copy.jsonl"
        lines = [*trace.raw_head(), *(line for i in range(trace.tree_count) for line in trace.raw_lines(i))]
        copy.write_bytes(b"".join(lines))
        with open_trace(copy) as again:
            assert again.prefixes == trace.prefixes
            without_lines = [
                [(s.session_id, [(t.turn, t.append, t.prefix) for t in s.turns]) for s in tree.sessions]
                for source in (trace, again)
                for tree in source.trees()
            ]
            assert without_lines[:2] == without_lines[2:]


def test_byte_order_mark_line_ends_and_blank_lines_are_repaired_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    lines = [
        HEADER.encode(),
        b"",
        turn("a", 0).encode(),
        b"   ",
        rb'{"session_id":"a","turn":1,"append":[],"x":"\ud800"}',
    ]
    path.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(lines))  # and no newline at the end
    with open_trace(path) as trace:
        assert (trace.repairs.byte_order_mark, trace.repairs.blank_lines, trace.repairs.lone_surrogates) == (1, 2, 1)
        (tree,) = trace.trees()
        assert [t.line for t in tree.sessions[0].turns] == [3, 5]
        assert trace.raw_head() == [HEADER.encode() + b"\n"]
        assert all(line.endswith(b"}\n") and b"\r" not in line for line in trace.raw_lines(0))


def test_ids_are_data_never_a_path(tmp_path: Path) -> None:
    before = sorted(tmp_path.parent.iterdir())
    path = write(tmp_path, turn("../../x", 0), child("/etc/passwd", "../../x", 0), turn("a\u0000\n\u2028b", 0))
    with open_trace(path) as trace:
        assert [entry.root_id for entry in trace.tree_entries] == ["../../x", "a\x00\n\u2028b"]
        assert [session.session_id for session in trace.read_tree(0).sessions] == ["../../x", "/etc/passwd"]
    assert sorted(tmp_path.iterdir()) == [path]
    assert sorted(tmp_path.parent.iterdir()) == before


def test_a_file_that_changes_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path, turn("a", 0), turn("b", 0))
    with open_trace(path) as trace:
        trace.read_tree(0)
        with path.open("a") as file:
            file.write(turn("c", 0) + "\n")
        with pytest.raises(InputError, match="changed"):
            trace.read_tree(1)


def test_shared_prompts_are_shared_not_copied_into_turns(tmp_path: Path) -> None:
    path = write(tmp_path, '{"prefix": "p", "tools": [{"type": "function", "function": {"name": "f"}}]}', turn("a", 0))
    with open_trace(path) as trace:
        assert trace.prefixes["p"].tools == ({"type": "function", "function": {"name": "f"}},)


# --------------------------------------------------------------------------------------------------- properties

_texts = st.text(max_size=20)
_message = st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "assistant"]), _texts)
_times = st.floats(0, 1e6, allow_nan=False)


@st.composite
def _trees(draw: st.DrawFn) -> list[Tree]:
    """Random trees: any ids, children at any turn, joins of children by the parent's later turns."""
    ids = draw(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=9, unique=True))
    trees: dict[str, list[Session]] = {}
    lengths: dict[str, tuple[str, int]] = {}
    for name in ids:
        options = [None, *lengths]
        parent = draw(st.sampled_from(options))
        count = draw(st.integers(1, 4))
        root = name if parent is None else lengths[parent][0]
        lengths[name] = (root, count)
        turns = []
        for number in range(count):
            fields: dict[str, Any] = {"append": tuple(draw(st.lists(_message, max_size=2)))}
            if number == 0 and parent is None:
                fields["start_s"] = draw(_times)
            elif number == 0 and parent is not None:
                fields["parent"] = TurnRef(parent, draw(st.integers(0, lengths[parent][1] - 1)))
            if number or parent is not None:
                fields["delay_s"] = draw(_times)
            if draw(st.booleans()):
                fields["recorded"] = Recorded(ttft_s=draw(_times), usage={"x": draw(_texts)})
            if draw(st.booleans()):
                fields["extra"] = {
                    "my_" + draw(st.text("ab", max_size=3)): draw(st.one_of(_texts, st.integers(), st.none()))
                }
            output = draw(st.one_of(st.none(), st.integers(1, 400)))
            turns.append(Turn(session_id=name, turn=number, line=0, output_tokens=output, **fields))
        trees.setdefault(root, []).append(Session(session_id=name, turns=tuple(turns)))
    for sessions in trees.values():
        for child_session in sessions[1:]:
            _join(draw, sessions, child_session)
    return [
        Tree(root_id=root, start_s=sessions[0].turns[0].start_s or 0.0, sessions=tuple(sessions))
        for root, sessions in trees.items()
    ]


def _join(draw: st.DrawFn, sessions: list[Session], joined: Session) -> None:
    """Let a later turn of the parent wait for `joined`, perhaps."""
    assert joined.parent is not None
    at = next(i for i, session in enumerate(sessions) if session.session_id == joined.parent.session_id)
    turns = list(sessions[at].turns)
    later = range(joined.parent.turn + 1, len(turns))
    if later and draw(st.booleans()):
        number = draw(st.sampled_from(later))
        turns[number] = structs.replace(turns[number], after=(*turns[number].after, joined.session_id))
        sessions[at] = Session(session_id=sessions[at].session_id, turns=tuple(turns))


def _plain(tree: Tree) -> Any:
    turns = {
        s.session_id: [(t.turn, t.parent, t.after, t.start_s, t.delay_s, t.append, t.output_tokens) for t in s.turns]
        for s in tree.sessions
    }
    kept = {s.session_id: [(t.recorded, t.extra) for t in s.turns] for s in tree.sessions}
    return tree.root_id, tree.start_s, turns, kept


@settings(max_examples=60, deadline=None)
@given(trees=_trees(), data=st.data())
def test_random_trees_come_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, trees: list[Tree], data: st.DataObject
) -> None:
    header = TraceHeader(name="r", extra={"k": 1})
    prompt = SharedPrompt(name="p", messages=({"role": "system", "content": "s"},), extra={"n": None})
    head, *lines = trace_lines(header, [prompt], trees)
    shared, *lines = lines
    # Any merge of the sessions' lines that keeps each session's order is the same trace.
    sessions: dict[str, list[bytes]] = {}
    for line in lines:
        sessions.setdefault(json.loads(line)["session_id"], []).append(line)
    order = data.draw(st.permutations([name for name, group in sessions.items() for _ in group]))
    merged = [sessions[name].pop(0) for name in order]
    path = tmp_path_factory.mktemp("r") / "t.jsonl"
    path.write_bytes(b"".join([head, shared, *merged]))
    with open_trace(path) as trace:
        assert trace.header == header
        assert trace.prefixes == {"p": prompt}
        read = {tree.root_id: tree for tree in trace.trees()}
        assert {name: _plain(tree) for name, tree in read.items()} == {tree.root_id: _plain(tree) for tree in trees}
        assert [entry.root_id for entry in trace.tree_entries] == list(read)
        assert sum(entry.turns for entry in trace.tree_entries) == len(lines)


@settings(max_examples=150, deadline=None)
@given(raw=st.binary(max_size=60), at=st.integers(0, 3))
def test_arbitrary_bytes_are_an_input_error_or_a_trace(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes, at: int
) -> None:
    lines = [HEADER.encode(), turn("a", 0).encode(), turn("a", 1).encode()]
    path = tmp_path_factory.mktemp("b") / "t.jsonl"
    path.write_bytes(b"\n".join([*lines[:at], raw, *lines[at:]]) + b"\n")
    try:
        open_trace(path).close()
    except InputError as error:
        assert str(path) in error.message  # noqa: PT017


@settings(max_examples=300, deadline=None)
@given(
    sessions=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=5),
    joins=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 5)), max_size=5),
)
@example(sessions=[(3, 0, 0), (1, 0, 1)], joins=[(0, 2, 1), (0, 2, 2)])
def test_a_trace_is_refused_exactly_if_its_waits_have_a_circle(
    tmp_path_factory: pytest.TempPathFactory,
    sessions: list[tuple[int, int, int]],
    joins: list[tuple[int, int, int]],
) -> None:
    """Against a topological order of all turns, worked out by the standard library."""
    lengths = [3, *(length for length, _, _ in sessions)]
    parents = {i + 1: (at % (i + 1), turn % lengths[at % (i + 1)]) for i, (_, at, turn) in enumerate(sessions)}
    after: dict[tuple[int, int], list[int]] = {}
    for session, number, other in joins:
        session %= len(lengths)
        after.setdefault((session, number % lengths[session]), []).append(other % len(lengths))
    lines, waits = [], {}
    for session, length in enumerate(lengths):
        for number in range(length):
            fields: dict[str, Any] = {"after": [f"s{other}" for other in after.get((session, number), ())]}
            waits[session, number] = [(other, lengths[other] - 1) for other in after.get((session, number), ())]
            if number:
                waits[session, number].append((session, number - 1))
            elif session in parents:
                parent, at = parents[session]
                fields["parent"] = {"session_id": f"s{parent}", "turn": at}
                waits[session, number].append((parent, at))
            lines.append(turn(f"s{session}", number, **fields))
    try:
        TopologicalSorter(waits).prepare()
        ends = True
    except CycleError:
        ends = False
    path = write(tmp_path_factory.mktemp("w"), *lines)
    assert ends is not any("cannot end" in problem.message for problem in validate_trace(path).errors)


# ------------------------------------------------------------------------------------------------------- memory


def _big(megabytes: int) -> Iterator[bytes]:
    yield HEADER.encode() + b"\n"
    text = "lorem ipsum dolor sit amet " * 300
    number = size = 0
    while size < megabytes * 1_000_000:
        for session in range(40):
            line = turn(f"s{session}", number, append=[{"role": "user", "content": text}]).encode() + b"\n"
            size += len(line)
            yield line
        number += 1


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "big.jsonl"
    with path.open("wb") as file:
        file.writelines(_big(50))
    tracemalloc.start()
    try:
        with open_trace(path) as trace:
            _, peak = tracemalloc.get_traced_memory()
            assert trace.size_bytes > 50_000_000
            tracemalloc.reset_peak()
            tree = trace.read_tree(3)
            _, one_tree = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3_000_000  # the read buffer is 1 MiB of it
    assert one_tree < 8_000_000  # a fortieth of the file is 1.3 MB
    assert sum(len(session.turns) for session in tree.sessions) == trace.turn_count // 40


def test_a_field_that_is_nearly_a_known_one_is_a_doubt_named_once(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    turn = {"session_id": "a", "append": [{"role": "user", "content": "x"}], "output_token": 5, "stop": "end"}
    turns = [turn | {"turn": number} | ({"recorded": {"cached_token": 1}} if number else {}) for number in range(3)]
    path.write_text("\n".join(map(json.dumps, [{"kvbench_trace": 1, "Block_Size": 64}, *turns])))
    found = validate_trace(path)
    assert found.errors == ()
    assert [(doubt.line, doubt.field, doubt.message) for doubt in found.warnings] == [
        (1, "Block_Size", 'unknown, and not used: is "block_size" meant?'),
        (2, "output_token", 'unknown, and not used: is "output_tokens" meant?'),
        (3, "recorded.cached_token", 'unknown, and not used: is "cached_tokens" meant?'),
    ]
