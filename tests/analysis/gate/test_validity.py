from __future__ import annotations

from datetime import timedelta

import pytest
from tests.analysis.gate.runs import START, abba, made

from kvbench.analysis.gate.validity import Treatment, refusals
from kvbench.errors import UsageError

FACTS = {"trace.sha256": "a", "settings.rate": "2", "server.server": "vLLM 1", "server.blocks": "1000"}


def reasons(base: list, new: list, *treatments: str, allow_order: bool = False) -> list[str]:
    return refusals(base, new, [Treatment.parse(text) for text in treatments], allow_order=allow_order)


def sides(**fields: object) -> tuple[list, list]:
    return abba([1.0] * 5, [1.0] * 5, **fields)


def test_runs_made_in_turn_are_compared() -> None:
    assert reasons(*sides()) == []


def test_one_run_given_twice_and_a_copy_under_another_name() -> None:
    base, new = sides()
    assert any("given twice" in text for text in reasons([*base, base[0]], new, allow_order=True))
    copy = made("other", 11, marks=new[0].marks)
    assert any("N0 and other are copies" in text for text in reasons(base, [*new, copy], allow_order=True))
    part = made("other", 11, marks=frozenset([*list(new[0].marks)[:50], *range(50)]))
    assert any("50 requests agree" in text for text in reasons(base, [*new, part], allow_order=True))


def test_a_run_that_is_not_whole() -> None:
    base, new = sides()
    new[2] = made("N2", 5, completed=90, turns=new[2].turns)
    assert reasons(base, new) == ["N2 has 90 of 100 turns that were asked for: run it to its end"]
    new[2] = made("N2", 5, problems=("is INCOMPLETE (interrupted)",))
    assert reasons(base, new) == ["N2 is INCOMPLETE (interrupted)"]


def test_another_trace_cannot_be_declared() -> None:
    base, new = sides()[0], abba([1.0] * 5, [1.0] * 5, facts=FACTS | {"trace.sha256": "b"})[1]
    found = reasons(base, new, "trace.sha256")
    assert any("different traces" in text for text in found)


def test_what_differs_has_to_be_declared() -> None:
    base = sides(facts=FACTS)[0]
    new = sides(facts=FACTS | {"server.server": "vLLM 2"})[1]
    (reason,) = reasons(base, new)
    assert reason == (
        "server.server differs: base vLLM 1, new vLLM 2; --treatment server.server if that is what is tested"
    )
    assert reasons(base, new, "server.server") == []
    assert reasons(base, new, "server") == [], "and all below it"
    assert reasons(base, new, "server.server=vLLM 2") == []
    assert reasons(base, new, "server.server=vLLM 3") == [
        "server.server of the new runs is vLLM 2, not vLLM 3 as declared"
    ]


def test_a_treatment_that_did_not_happen() -> None:
    (reason,) = reasons(*sides(), "server.server")
    assert "the same in all runs (vLLM 1): was the server switched?" in reason


def test_a_treatment_is_one_inside_a_side() -> None:
    base = sides(facts=FACTS)[0]
    new = sides(facts=FACTS | {"server.server": "vLLM 2"})[1]
    new[3] = made("N3", 6, facts=FACTS | {"server.server": "vLLM 3"})
    assert reasons(base, new, "server.server") == [
        "server.server differs inside the new runs, where the treatment must be one"
    ]


def test_a_treatment_that_names_nothing() -> None:
    with pytest.raises(UsageError, match="no such field"):
        reasons(*sides(), "engine")


def test_a_few_blocks_more_or_less_are_the_same_server() -> None:
    base = sides(facts=FACTS)[0]
    assert reasons(base, sides(facts=FACTS | {"server.blocks": "1009"})[1]) == []
    assert len(reasons(base, sides(facts=FACTS | {"server.blocks": "1020"})[1])) == 1
    assert len(reasons(base, sides(facts=FACTS | {"settings.rate": "2.01"})[1])) == 1


def test_other_work_is_not_compared() -> None:
    base = sides()[0]
    half = {(f"s{i}", 0): (500, 10) for i in range(100)}
    (reason,) = reasons(base, sides(turns=half)[1])
    assert reason.startswith("input tokens differ on the same turns: 50,000 in N0, 100,000 in B0")
    other = {(f"t{i}", 0): (1000, 10) for i in range(100)}
    assert any("turns that the other has not" in text for text in reasons(base, sides(turns=other)[1]))
    silent = {(f"s{i}", 0): (None, None) for i in range(100)}
    assert any("reports no input tokens where others do" in text for text in reasons(base, sides(turns=silent)[1]))


def test_runs_at_the_same_time_were_each_others_load() -> None:
    base, new = sides()
    new[0] = made("N0", 0.5)
    assert any("at the same time" in text for text in reasons(base, new))


@pytest.mark.parametrize(
    ("pattern", "fair"),
    [
        ("BNNBBNNBBN", True),
        ("BNBNBNBNBN", True),
        ("BNNB", True),
        ("BBBBBNNNNN", False),
        ("BBNNNNNBBB", False),
        ("BBBNBNNNBN", False),
    ],
)
def test_what_counts_as_interleaved(pattern: str, fair: bool) -> None:
    runs = [made(f"{side}{i}", i) for i, side in enumerate(pattern)]
    base, new = ([run for run in runs if run.label[0] == side] for side in "BN")
    found = reasons(base, new)
    assert (found == []) is fair
    assert fair or pattern in found[0]
    assert reasons(base, new, allow_order=True) == []


def test_order_is_that_of_time_whatever_the_zone() -> None:
    base, new = sides()
    base[0] = made("B0", started_at=(START - timedelta(minutes=1)).astimezone(), ended_at=START)
    assert reasons(base, new) == []
    base[0] = made("B0", started_at=None)
    assert any("--allow-order" in text for text in reasons(base, new))


def test_other_rules_cannot_be_declared() -> None:
    base, new = sides(facts=FACTS)[0], sides(facts=FACTS | {"settings.rules": "agentx"})[1]
    for treatments in ((), ("settings.rules",), ("settings",)):
        found = reasons(base, new, *treatments)
        assert found == ["some runs were made by the agentx rules and others were not: they measure different things"]


def test_runs_judged_by_absolute_values_alone_are_one_too() -> None:
    new = [made(f"N{i}", i) for i in range(2)]
    new.append(made("N2", 2, facts={**new[0].facts, "settings.rate": "3"}))
    assert refusals([], new[:2], [], allow_order=False) == []
    assert refusals([], new, [], allow_order=False) == [
        "settings.rate differs inside the new runs (2 | 3): they are judged as one"
    ]


def test_tokens_of_an_average_turn_where_some_failed() -> None:
    """Tokens of results are of what succeeded: 3 failed turns of 100 are no other work."""
    base, new = (
        made(side, i, turns=None, tokens=(1000 * ok, 10 * ok), completed=ok, failed=100 - ok, facts={})
        for i, (side, ok) in enumerate((("B", 100), ("N", 97)))
    )
    assert not any("tokens" in reason for reason in refusals([base], [new], [], allow_order=True))
    other = made("N", 1, turns=None, tokens=(1030 * 97, 970), completed=97, failed=3, facts={})
    assert any("input tokens differ" in reason for reason in refusals([base], [other], [], allow_order=True))


def test_a_run_unlike_the_rest_of_its_side_is_no_treatment() -> None:
    base, new = sides()
    odd = made("odd", 20, facts={**new[0].facts, "settings.rate": "3"})
    assert reasons(base, [*new, odd], allow_order=True) == [
        "settings.rate differs inside the new runs (2 | 3): leave out those that are not like the rest"
    ]
