"""Token ids from a local tokenizer: what stands for the template, and how far positions can be off."""

from __future__ import annotations

from typing import Any

import pytest

from kvbench.model import Expectation
from kvbench.replay.local_ids import MARK, LocalIds
from kvbench.replay.prompts import Prompt
from kvbench.traces.prefix import UnitsRule


def prompt(*messages: tuple[str, Any], tools: tuple[dict[str, Any], ...] = (), **more: Any) -> Prompt:
    return Prompt(
        messages=[{"role": role, "content": content, **more} for role, content in messages],
        tools=tools,
        model=None,
        salt=None,
    )


def local() -> LocalIds:
    return LocalIds(lambda text: [ord(letter) for letter in text], "letters")


def plain(ids: list[int]) -> str:
    return "".join(chr(i) if i < MARK else "|" for i in ids)


def test_what_is_appended_leaves_the_ids_before_it_as_they_were() -> None:
    ids = local()
    one = ids.ids(prompt(("system", "be brief"), ("user", "hi")))
    two = ids.ids(prompt(("system", "be brief"), ("user", "hi"), ("assistant", "yes"), ("user", "so")))
    assert plain(one) == "|be brief|hi|"
    assert plain(two) == "|be brief|hi|yes||so|"
    assert one[:-1] == two[: len(one) - 1]


def test_roles_tools_parts_and_calls_are_told_apart() -> None:
    ids = local()
    seen = [
        ids.ids(prompt(("user", "hi"))),
        ids.ids(prompt(("tool", "hi"))),
        ids.ids(prompt(("user", "hi"), tools=({"name": "f"},))),
        ids.ids(prompt(("user", [{"type": "text", "text": "ho"}]))),
        ids.ids(prompt(("assistant", None), tool_calls=[{"id": "1"}])),
        ids.ids(prompt(("assistant", "hi"), reasoning_content="hm")),
    ]
    assert len({tuple(each) for each in seen}) == len(seen)
    assert plain(seen[3]) == "|ho|"
    assert plain(seen[4]) == '|[{"id":"1"}]||'
    assert plain(seen[5]) == "|hmhi||"


def test_the_first_report_tells_what_the_template_adds_and_later_ones_how_far_that_holds() -> None:
    ids = local()
    first = ids.ids(prompt(("user", "a" * 98)))
    assert len(ids.aligned(first, 104)) == 104
    assert ids.slack_tokens == 0
    assert len(ids.aligned(first, 107)) == 104
    assert ids.slack_tokens == 3
    assert ids.aligned(first, None) == ids.aligned(first, 104)
    rule = UnitsRule()
    sure = Expectation(rule="units", input_tokens=2000, floor=1024, ceiling=1024)
    wide = ids.widened(rule, sure)
    assert (wide.floor, wide.ceiling, wide.rule) == (896, 1024, "units (ids by tokenizer letters)")
    assert wide.reason == "the tokenizer's lengths are up to 3 tokens off the server's"
    assert ids.widened(rule, Expectation(rule="units", input_tokens=2000, floor=0, ceiling=0)).ceiling == 0


@pytest.mark.parametrize("reported", [50, 100_000])
def test_another_tokenizer_is_no_template(reported: int) -> None:
    ids = local()
    first = ids.ids(prompt(("user", "a" * 98)))
    assert ids.aligned(first, reported) == first
    assert ids.slack_tokens == abs(reported - 100)


def test_ids_that_the_server_gave_are_left_alone() -> None:
    ids = local()
    sure = Expectation(rule="block 32", input_tokens=9, floor=0, ceiling=0)
    assert ids.aligned([1, 2, 3], 7) == [1, 2, 3]
    assert ids.widened(UnitsRule(), sure) == sure
