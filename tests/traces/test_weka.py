"""Weka / kv-cache-tester traces: every request keeps its length and its blocks, sub-agents their place in time."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.errors import InputError
from kvbench.model import Recorded, Session
from kvbench.traces.importing import open_workload, validate_workload

DATA = os.environ.get("KVBENCH_TEST_DATA")
needs_data = pytest.mark.skipif(DATA is None, reason="KVBENCH_TEST_DATA is not set")


def request(t: float, ids: list[int], **fields: Any) -> dict[str, Any]:
    base = {"t": t, "type": "n", "model": "big", "in": 64 * len(ids) + 5, "out": 7, "hash_ids": ids, "api_time": 2.0}
    return {**base, **fields}


def agent(t: float, *requests: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"t": t, "type": "subagent", "agent_id": "a1", "status": "completed", "requests": list(requests), **fields}


def trace(*entries: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"id": "w", "models": [], "block_size": 64, "hash_id_scope": "local", "requests": list(entries), **fields}


def write(tmp_path: Path, *traces: dict[str, Any]) -> Path:
    path = tmp_path / "w.jsonl"
    path.write_text("".join(json.dumps(obj) + "\n" for obj in traces))
    return path


def sessions_of(path: Path, **options: Any) -> dict[str, Session]:
    with open_workload(path, **options) as opened:
        return {session.session_id: session for tree in opened.trees() for session in tree.sessions}


def ids_of(session: Session) -> list[list[int]]:
    """Each turn's whole list of ids."""
    out: list[list[int]] = []
    for turn in session.turns:
        assert turn.hash_ids is not None
        out.append((out[-1][: turn.keep_blocks or 0] if out else []) + list(turn.hash_ids))
    return out


# ------------------------------------------------------------------------------------------------------- a trace


def test_a_request_keeps_what_it_was(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        trace(
            request(0.0, [1, 2, 3], type="s", ttft=0.5, stop="tool_use"),
            request(10.0, [1, 2, 9, 4], think_time=7.5, model="small", out=0, **{"in": 4 * 64 + 63}),
            request(20.0, [1, 2, 9, 4, 5], model="small"),
            tool_tokens=300,
        ),
    )
    (session,) = sessions_of(path).values()
    one, two, three = session.turns
    assert session.session_id == "w"
    assert [turn.turn for turn in session.turns] == [0, 1, 2]
    assert (one.start_s, one.delay_s, two.start_s, two.delay_s) == (0.0, 0.0, None, 7.5)
    assert three.delay_s == 8.0, "20 less the end of the request before, 10 + 2"
    assert [turn.input_tokens for turn in session.turns] == [197, 319, 325]
    assert [turn.output_tokens for turn in session.turns] == [7, 1, 7]
    assert [(turn.keep_blocks, turn.hash_ids) for turn in session.turns] == [
        (None, (1, 2, 3)),
        (2, (4, 5)),
        (4, (6,)),
    ]
    assert [turn.model for turn in session.turns] == ["big", "small", None], "a model holds for the rest of its session"
    assert one.recorded == Recorded(at_s=0.0, ttft_s=0.5, e2e_s=2.0)
    assert two.recorded == Recorded(at_s=10.0, e2e_s=2.0)
    assert (one.extra["streamed"], one.extra["stop"], one.extra["tool_tokens"]) == (True, "tool_use", 300)
    assert [turn.line for turn in session.turns] == [1, 1, 1]


def test_ids_of_different_traces_never_meet_and_those_of_one_still_do(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        trace(request(0.0, [1, 2]), agent(3.0, request(0.0, [1, 7]), duration_ms=2000), id="x"),
        trace(request(0.0, [1, 2]), id="y"),
    )
    found = sessions_of(path)
    assert ids_of(found["x"]) == [[1, 2]]
    assert ids_of(found["x.a1"]) == [[1, 3]]
    assert ids_of(found["y"]) == [[4, 5]]
    with open_workload(path) as opened:
        assert opened.imported is not None
        assert (opened.imported.units, opened.imported.sub_agents, opened.imported.turns) == (2, 1, 3)
        assert opened.header.block_size == 64
    shared = sessions_of(
        write(tmp_path, *(trace(request(0.0, [1, 2]), id=name, hash_id_scope="global") for name in "xy"))
    )
    assert ids_of(shared["x"]) == ids_of(shared["y"]) == [[1, 2]]


def test_ids_of_the_file_and_of_a_trace_alone_may_stand_in_one_file(tmp_path: Path) -> None:
    """x and z have the file's ids, y between them its own."""
    scopes = {"x": "global", "y": "local", "z": "global"}
    found = sessions_of(
        write(tmp_path, *(trace(request(0.0, [1, 2]), id=name, hash_id_scope=scope) for name, scope in scopes.items()))
    )
    assert ids_of(found["x"]) == ids_of(found["z"]) == [[1, 2]]
    assert ids_of(found["y"]) == [[3, 4]]


def test_ids_that_are_no_chain_are_counted(tmp_path: Path) -> None:
    """2 stands behind 1, then behind 4; 3 behind 2 both times; the sub-agent has 1 behind 9. Another trace has ids of
    its own."""
    path = write(
        tmp_path,
        trace(request(0.0, [1, 2, 3]), request(9.0, [4, 2, 3]), agent(3.0, request(0.0, [9, 1]), duration_ms=2000)),
        trace(request(0.0, [2, 1]), id="y"),
    )
    with open_workload(path) as opened:
        assert opened.imported is not None
        assert opened.imported.notes["chains_broken"] == 2
        assert any("behind another id than where they first stood: 2" in s for s in opened.imported.sentences())
    with open_workload(
        write(tmp_path, trace(request(0.0, [1, 2]), request(9.0, [1, 2, 3]), request(20.0, [1])))
    ) as good:
        assert good.imported is not None
        assert "chains_broken" not in good.imported.notes


def test_think_time_behind_a_request_without_an_end_is_not_a_pause(tmp_path: Path) -> None:
    """It then counts from the last end that was recorded, at 2 s: 12 s and 19 s, where 5 s and 7 s passed."""
    path = write(
        tmp_path,
        trace(
            request(0.0, [1], think_time=0.0),
            request(9.0, [1], think_time=7.0, api_time=None),
            request(14.0, [1], think_time=12.0, api_time=None),
            request(21.0, [1], think_time=19.0),
        ),
    )
    (turns,) = [session.turns for session in sessions_of(path).values()]
    assert [turn.delay_s for turn in turns] == [0.0, 7.0, 5.0, 7.0]
    with open_workload(path) as opened:
        assert opened.imported is not None
        assert opened.imported.notes == {"pauses_with_answer": 2}


def test_requests_that_overlap_follow_without_a_pause_and_are_counted(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        trace(
            request(0.0, [1], api_time=30.0),
            request(5.0, [1, 2], think_time=3.0),
            request(6.5, [1, 2], api_time=None),
            request(10.0, [1, 2]),
        ),
    )
    with open_workload(path) as opened:
        (tree,) = opened.trees()
        assert [turn.delay_s for turn in tree.sessions[0].turns] == [0.0, 0.0, 0.0, 3.5]
        assert opened.imported is not None
        # 6.5 against 7.0 is rounding, no overlap; 3.5 s hold an answer of unknown length.
        assert opened.imported.notes == {"clipped_pauses": 1, "pauses_with_answer": 1}


# ---------------------------------------------------------------------------------------------------- bad traces


@pytest.mark.parametrize(
    ("bad", "field", "message"),
    [
        (
            {"hash_ids": [1, 2, 3]},
            "requests[1].hash_ids",
            "3 block ids for 133 input tokens of block size 64; expected 2",
        ),
        ({"hash_ids": [1]}, "requests[1].hash_ids", "1 block ids for 133 input tokens"),
        ({"hash_ids": None}, "requests[1].hash_ids", "missing, for 133 input tokens"),
        ({"hash_ids": [1, "x"]}, "requests[1].hash_ids[1]", "expected int, got str"),
        ({"in": 0}, "requests[1].in", "expected int >= 1"),
        ({"in": None}, "requests[1].in", "missing"),
        ({"out": None}, "requests[1].out", "missing"),
        ({"out": -3}, "requests[1].out", "expected int >= 0"),
        ({"t": -1.0}, "requests[1].t", "expected float >= 0"),
        ({"think_time": 1e300}, "requests[1].think_time", "expected float <= 1000000000"),
        ({"t": "soon"}, "requests[1].t", "expected float, got str"),
        ({"type": "x"}, "requests[1].type", 'unknown type "x"; n, s or subagent'),
        ({"requests": [{"t": 0, "type": "n"}]}, "requests[1].requests", "only a sub-agent has requests"),
    ],
)
def test_a_bad_request_is_named(tmp_path: Path, bad: dict[str, Any], field: str, message: str) -> None:
    good = trace(request(0.0, [1]))
    path = write(tmp_path, good, trace(request(0.0, [1]), {**request(9.0, [1, 2]), **bad}, id="v"))
    with pytest.raises(InputError) as caught:
        open_workload(path)
    assert str(caught.value).startswith(f"{path}:2: {field}: ")
    assert message in str(caught.value)
    found = validate_workload(path)
    assert [(error.line, error.field) for error in found.errors] == [(2, field)]
    assert (found.sessions, found.turns) == (1, 1), "what is good is still counted"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"block_size": 128}, "block_size"),
        ({"hash_id_scope": "regional"}, "hash_id_scope"),
        ({"requests": {}}, "requests"),
    ],
)
def test_a_bad_trace_is_named(tmp_path: Path, fields: dict[str, Any], field: str) -> None:
    path = write(tmp_path, trace(request(0.0, [1])), {**trace(request(0.0, [1], **{"in": 140}), id="v"), **fields})
    with pytest.raises(InputError) as caught:
        open_workload(path)
    assert (caught.value.line, caught.value.field) == (2, field)


def test_short_prompts_need_no_ids_and_traces_without_requests_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, trace(), trace(request(0.0, [], hash_ids=None), id="v"))
    with open_workload(path) as opened:
        assert [entry.root_id for entry in opened.tree_entries] == ["v"]
        assert opened.imported is not None
        assert opened.imported.dropped == {"empty_trace": 1}
    with pytest.raises(InputError, match="not one request"):
        open_workload(write(tmp_path, trace()))


def test_totals_that_do_not_add_up_are_a_doubt(tmp_path: Path) -> None:
    totals = {"parent_tokens": {"input": 69, "output": 8}, "subagent_count": 2}
    with open_workload(write(tmp_path, trace(request(0.0, [1]), totals=totals))) as opened:
        assert [(doubt.line, doubt.message) for doubt in opened.warnings] == [
            (1, "totals.parent_tokens.output is 8, and the requests add up to 7"),
            (1, "totals.subagent_count is 2, and there are 0"),
        ]
        assert opened.imported is not None
        assert opened.imported.notes == {"totals_differ": 1}


# ------------------------------------------------------------------------------------------------------ any trace


@st.composite
def traces(draw: st.DrawFn) -> dict[str, Any]:
    ids = st.lists(st.integers(0, 12), max_size=6, unique=True)
    tokens = st.integers(0, 63)

    def requests(start: float) -> list[dict[str, Any]]:
        out, t = [], start
        for blocks in draw(st.lists(ids, min_size=1, max_size=4)):
            api = draw(st.sampled_from([None, 0.5, 3.0]))
            more = max(draw(tokens), 1 - len(blocks))
            out.append(request(t, blocks, api_time=api, **{"in": 64 * len(blocks) + more}))
            t += draw(st.integers(0, 9))
        return out

    entries = requests(0.0)
    for number in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(entries)))
        entries.insert(at, agent(float(10 * at), *requests(0.0), agent_id=f"g{number}"))
    return trace(*entries)


@settings(deadline=None)
@given(st.lists(traces(), min_size=1, max_size=3))
def test_every_request_keeps_its_blocks_and_its_length(
    tmp_path_factory: pytest.TempPathFactory, objects: list[dict[str, Any]]
) -> None:
    objects = [{**obj, "id": f"t{number}"} for number, obj in enumerate(objects)]
    found = sessions_of(write(tmp_path_factory.mktemp("w"), *objects), nested_t="relative")
    check_same(objects, found)


def source_sessions(obj: dict[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    yield obj["id"], [entry for entry in obj["requests"] if entry["type"] != "subagent"]
    for entry in obj["requests"]:
        if entry["type"] == "subagent":
            yield f"{obj['id']}.{entry['agent_id']}", entry["requests"]


def check_same(objects: list[dict[str, Any]], found: dict[str, Session]) -> None:
    """Lengths are equal, and ids are equal up to new names: one name for each (trace, id), and never another's."""
    names: dict[tuple[str, int], int] = {}
    count = 0
    for obj in objects:
        for session_id, requests in source_sessions(obj):
            session = found[session_id]
            count += 1
            assert [turn.input_tokens for turn in session.turns] == [request["in"] for request in requests]
            assert [turn.output_tokens for turn in session.turns] == [max(request["out"], 1) for request in requests]
            for made, request in zip(ids_of(session), requests, strict=True):
                assert [
                    names.setdefault((obj["id"], block), new)
                    for new, block in zip(made, request["hash_ids"], strict=True)
                ] == made
    assert len(set(names.values())) == len(names)
    assert count == len(found)


# ----------------------------------------------------------------------------------------------- published traces


def published() -> list[dict[str, Any]]:
    assert DATA is not None
    return [json.loads(path.read_text()) for path in sorted((Path(DATA) / "weka").glob("*.json"))]


@needs_data
def test_published_traces_open_with_their_lengths_ids_and_totals() -> None:
    objects = published()
    assert len(objects) == 10
    with open_workload(Path(str(DATA)) / "weka") as opened:
        found = {session.session_id: session for tree in opened.trees() for session in tree.sessions}
        assert opened.warnings == (), "totals are right"
        assert opened.imported is not None
        assert opened.imported.nested_t == {"relative": 10}
        assert opened.imported.marker == {"end": 10}
    check_same(objects, found)
    turns = [turn for session in found.values() for turn in session.turns]
    assert sum(turn.input_tokens or 0 for turn in turns) == sum(
        obj["totals"]["combined_tokens"]["input"] for obj in objects
    )
    for obj in objects:
        # Each sub-agent starts within two seconds of the end of the request that called it: they block their parent.
        for entry in obj["requests"]:
            if entry["type"] == "subagent":
                child = found[f"{obj['id']}.{entry['agent_id']}"]
                assert child.turns[0].delay_s < 2.0
                assert any(child.session_id in turn.after for turn in found[obj["id"]].turns)


@needs_data
def test_published_traces_share_blocks_as_an_independent_count_says() -> None:
    """reference/weka_dev_lru.json, rows "inf": hits of an endless cache, requests of a trace by time, then file order;
    all ten as one server, each from time 0, ids apart."""
    assert DATA is not None
    objects = published()
    reference = {row["trace"]: row for row in json.loads((Path(DATA) / "reference" / "weka_dev_lru.json").read_text())}
    found = sessions_of(Path(DATA) / "weka")
    everything: list[tuple[float, int, int, list[int]]] = []
    for number, obj in enumerate(objects):
        ids = {name: iter(ids_of(found[name])) for name, _ in source_sessions(obj)}
        rows: list[tuple[float, int, int, list[int]]] = []
        for entry in obj["requests"]:
            if entry["type"] == "subagent":
                child = ids[f"{obj['id']}.{entry['agent_id']}"]
                rows += [
                    (entry["t"] + r["t"], number, len(rows) + i, next(child)) for i, r in enumerate(entry["requests"])
                ]
            else:
                rows.append((entry["t"], number, len(rows), next(ids[obj["id"]])))
        expected = reference[f"{obj['id']}.json"]
        assert (endless_hits(rows), sum(len(row[3]) for row in rows)) == (
            expected["inf"]["hit_blocks"],
            expected["blocks"],
        )
        everything += rows
    assert endless_hits(everything) == reference["ALL-start-0-namespaced"]["inf"]["hit_blocks"]


def endless_hits(rows: list[tuple[float, int, int, list[int]]]) -> int:
    seen: set[int] = set()
    hits = 0
    for *_, ids in sorted(rows, key=lambda row: row[:3]):
        for block in ids:
            if block not in seen:
                break
            hits += 1
        seen.update(ids)
    return hits
