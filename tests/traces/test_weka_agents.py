"""Sub-agents of Weka traces: by which clock they are dated, and who waits for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.traces.test_weka import agent, request, sessions_of, trace, write

from kvbench.errors import InputError
from kvbench.model import TurnRef
from kvbench.traces.formats.weka_times import AgentTimes, nested_reading
from kvbench.traces.importing import open_workload


def blocking(**fields: Any) -> dict[str, Any]:
    """As the public corpus has it: called at 12, the entry is dated by the end (50), nested times count from 12.5."""
    nested = (request(0.0, [1, 8]), request(20.0, [1, 8, 9], api_time=16.0))
    return trace(
        request(0.0, [1], api_time=3.0),
        request(8.0, [1, 2], api_time=4.0),
        agent(50.0, *nested, duration_ms=37_500, **fields),
        request(52.0, [1, 2, 3], think_time=40.0),
    )


def test_an_entry_dated_by_its_end_starts_when_it_was_called(tmp_path: Path) -> None:
    with open_workload(write(tmp_path, blocking())) as opened:
        (tree,) = opened.trees()
        parent, child = tree.sessions
        assert opened.imported is not None
        assert (opened.imported.nested_t, opened.imported.marker) == ({"relative": 1}, {"end": 1})
        assert opened.imported.notes == {"joined": 1}
    first, second = child.turns
    assert child.session_id == "w.a1"
    assert (first.parent, first.delay_s, first.start_s) == (TurnRef("w", 1), 0.5, None)
    assert second.delay_s == 18.0
    assert parent.turns[2].after == ("w.a1",)
    assert parent.turns[2].delay_s == 3.5, "52 less the end of the sub-agent's last request, 12.5 + 20 + 16"
    assert all(turn.after == () for turn in parent.turns[:2])


def test_an_entry_dated_by_its_start(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        trace(
            request(0.0, [1], api_time=12.0),
            agent(12.2, request(0.0, [8]), request(20.0, [8, 9]), duration_ms=23_000),
            request(40.0, [1, 2]),
        ),
    )
    with open_workload(path) as opened:
        (tree,) = opened.trees()
        assert opened.imported is not None
        assert opened.imported.marker == {"start": 1}
    parent, child = tree.sessions
    assert (child.turns[0].parent, child.turns[0].delay_s) == (TurnRef("w", 0), 0.2)
    assert (parent.turns[1].after, parent.turns[1].delay_s) == (("w.a1",), 5.8)


@pytest.mark.parametrize("duration_ms", [25_000, None])
def test_absolute_times_are_made_out(tmp_path: Path, duration_ms: int | None) -> None:
    path = write(
        tmp_path,
        trace(
            request(100.0, [1], api_time=12.0),
            agent(112.2, request(113.0, [8]), request(130.0, [8, 9]), duration_ms=duration_ms),
            request(140.0, [1, 2]),
        ),
    )
    found = sessions_of(path)
    assert found["w.a1"].turns[0].delay_s == 1.0
    assert found["w"].turns[1].delay_s == 8.0
    assert found["w"].turns[0].start_s == 100.0
    with open_workload(path) as opened:
        assert opened.imported is not None
        assert opened.imported.nested_t == {"absolute": 1}
        assert any("absolute in 1" in sentence for sentence in opened.imported.sentences())


@pytest.mark.parametrize(
    ("at_s", "duration_s", "first_s", "end_s", "expected"),
    [
        (500.0, None, 0.0, 10.0, "relative"),
        (500.0, None, 300.0, 310.0, "relative"),  # before its entry, which is its start where nothing else is known
        (500.0, None, 499.0, 520.0, "absolute"),
        (500.0, 20.0, 481.0, 499.0, "absolute"),
        (500.0, 20.0, 501.0, 521.9, "absolute"),
        (500.0, 20.0, 0.0, 21.9, "relative"),
        (15.0, 20.0, 0.0, 19.0, "relative"),  # both fit: the sooner first request
        (15.0, 20.0, 15.5, 19.0, "absolute"),
    ],
)
def test_which_reading_fits_a_sub_agent(
    at_s: float, duration_s: float | None, first_s: float, end_s: float, expected: str
) -> None:
    found = AgentTimes("requests[1]", at_s, duration_s, first_s, end_s)
    assert nested_reading([found], "auto") == expected
    certain = AgentTimes("requests[2]", 900.0, 9.0, 0.0, 8.0)
    if expected == "relative":
        assert nested_reading([found, certain], "auto") == "relative"


def test_nested_times_that_fit_no_reading_are_refused_unless_one_is_named(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        trace(request(0.0, [1])),
        trace(
            request(0.0, [1]),
            agent(500.0, request(50.0, [8]), request(90.0, [8, 9]), duration_ms=10_000),
            request(600.0, [1, 2]),
        ),
    )
    with pytest.raises(InputError, match="fit no reading") as caught:
        open_workload(path)
    assert str(caught.value).startswith(f"{path}:2: requests[1]: ")
    assert caught.value.hint is not None
    assert "--nested-t" in caught.value.hint
    assert sessions_of(path, nested_t="absolute")["w-2.a1"].turns[0].delay_s == 48.0, "called at 2, first request at 50"
    with open_workload(path, nested_t="relative") as opened:
        assert opened.imported is not None
        assert opened.imported.nested_t == {"relative": 1}
        assert opened.imported.facts["times inside sub-agents"] == "relative in 1 (as asked)"


def test_a_parent_that_goes_on_beside_its_sub_agent_does_not_wait(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        trace(
            request(0.0, [1], api_time=10.0),
            agent(10.0, request(0.0, [8]), request(50.0, [8]), duration_ms=52_000),
            request(20.0, [1, 2], think_time=9.0),
            request(90.0, [1, 2]),
        ),
    )
    with open_workload(path) as opened:
        (tree,) = opened.trees()
        assert opened.imported is not None
        assert opened.imported.notes == {"not_joined": 1}
    assert [turn.after for turn in tree.sessions[0].turns] == [(), (), ()]
    assert tree.sessions[0].turns[1].delay_s == 9.0


def test_sub_agents_of_sub_agents_and_ones_with_nothing_of_their_own(tmp_path: Path) -> None:
    inner = agent(8.0, request(0.0, [20]), duration_ms=3000, agent_id="in")
    outer = agent(30.0, request(0.0, [8], api_time=4.0), inner, request(12.0, [8, 9]), duration_ms=18_000)
    hollow = agent(45.0, agent(2.0, request(0.0, [30]), duration_ms=2000, agent_id="deep"), duration_ms=5000)
    empty = agent(46.0)
    path = write(tmp_path, trace(request(0.0, [1], api_time=12.0), outer, hollow, empty, request(60.0, [1, 2])))
    with open_workload(path) as opened:
        (tree,) = opened.trees()
        assert opened.imported is not None
        assert opened.imported.dropped == {"empty_subagent": 1}
    found = {session.session_id: session for session in tree.sessions}
    assert set(found) == {"w", "w.a1", "w.a1.in", "w.deep"}
    assert found["w.a1"].parent == TurnRef("w", 0)
    assert found["w.a1.in"].parent == TurnRef("w.a1", 0)
    assert found["w.a1.in"].turns[0].delay_s == 1.0, "dated by its end: 12 + 8 - 3, and its caller ended at 12 + 4"
    assert found["w.a1"].turns[1].after == ("w.a1.in",)
    assert set(found["w"].turns[1].after) == {"w.a1", "w.deep"}


def test_sub_agents_that_no_request_can_have_called_start_on_their_own(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        trace(agent(10.0, request(10.0, [8]), duration_ms=5000), request(100.0, [1, 8]), request(120.0, [1, 8])),
    )
    with open_workload(path) as opened:
        assert [(entry.root_id, entry.start_s) for entry in opened.tree_entries] == [("w", 100.0), ("w.a1", 10.0)]
        assert opened.imported is not None
        assert opened.imported.notes["own_root"] == 1


def test_a_sub_agent_called_while_its_caller_still_answered(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        trace(
            request(0.0, [1], api_time=30.0),
            agent(10.0, request(10.0, [8]), duration_ms=25_000),
            request(90.0, [1]),
        ),
    )
    with open_workload(path) as opened:
        (tree,) = opened.trees()
        assert opened.imported is not None
        assert opened.imported.notes == {"joined": 1, "started_early": 1}
    child = tree.sessions[1]
    assert (child.parent, child.turns[0].delay_s) == (TurnRef("w", 0), 0.0)


def test_names_that_are_taken_get_a_number(tmp_path: Path) -> None:
    twice = [agent(4.0, request(4.0, [8])), agent(5.0, request(5.0, [9]))]
    path = write(tmp_path, trace(request(0.0, [1]), *twice), trace(request(0.0, [1])))
    assert set(sessions_of(path)) == {"w", "w.a1", "w.a1-2", "w-2"}
