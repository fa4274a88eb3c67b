"""Prompts from hash ids: lengths are exact, what the ids share is shared to the token, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.errors import ConfigError, RefusedError
from kvbench.model import Clock, Message, Record, Turn, Usage
from kvbench.replay.hashed import Choice, HashedSession, HashPrompts, hash_prompts
from kvbench.replay.prompts import Prompt, SessionPrompts
from kvbench.traces.native import open_trace
from kvbench.traces.text import BlockText, palette_of
from kvbench.traces.words import WORDS

SIZE = 64
TEMPLATE = 7


def encode(text: str) -> list[int]:
    """A token a word with its space; a word that is none of WORDS is as many as it has characters."""
    ids: list[int] = []
    for word in text.split(" ")[1:]:
        ids += [100 + WORDS.index(word)] if word in WORDS else [1] * max(1, len(word))
    return ids


BLOCKS = BlockText(palette_of(encode, "test"), encode)


def how(*, as_ids: bool = True, template_tokens: int | None = 0) -> HashPrompts:
    return HashPrompts(BLOCKS, SIZE, as_ids=as_ids, tokenizer="test", template_tokens=template_tokens)


def turns(*described: tuple[int, int, Sequence[int]], session: str = "s") -> list[Turn]:
    """(input_tokens, keep_blocks, hash_ids) each."""
    return [
        Turn(session_id=session, turn=i, line=i + 2, input_tokens=n, keep_blocks=keep, hash_ids=tuple(ids))
        for i, (n, keep, ids) in enumerate(described)
    ]


def prompts(
    session: list[Turn],
    *,
    maker: HashPrompts | None = None,
    salt: str | None = None,
    salt_in_text: bool = False,
    outputs: Sequence[list[int] | None] | None = None,
) -> list[Prompt]:
    made = SessionPrompts(
        {}, salt=salt, salt_in_text=salt_in_text, live=outputs is not None, hashed=maker or how(), turns=session
    )
    last: Record | None = None
    got = []
    for i, turn in enumerate(session):
        got.append(made.next(turn, last))
        ids = outputs[i] if outputs is not None and i < len(outputs) else None
        last = Record(request_id="r", session_id="s", turn=i, clock=Clock(scheduled=0, due=0), output_token_ids=ids)
    return got


def ids_of(session: list[Turn], **options: Any) -> list[list[int]]:
    made = prompts(session, **options)
    assert all(prompt.messages is None for prompt in made)
    return [prompt.token_ids or [] for prompt in made]


def shared(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_whole_blocks_and_lengths() -> None:
    first, second = ids_of(turns((128, 0, [1, 2]), (256, 1, [3, 4, 5])))
    assert (len(first), len(second)) == (128, 256)
    assert shared(first, second) == 64
    assert second[64:128] == BLOCKS.ids("block", 3, 64).tolist()


def test_a_tail_begins_the_block_that_grows_over_it() -> None:
    first, second, third = ids_of(turns((150, 0, [1, 2]), (170, 2, []), (300, 2, [3, 4])))
    assert (len(first), len(second), len(third)) == (150, 170, 300)
    assert second[:150] == first
    assert third[:170] == second
    assert third[128:192] == BLOCKS.ids("block", 3, 64).tolist()


def test_a_tail_is_the_turns_own_where_the_next_turn_drops_a_block_or_there_is_none() -> None:
    first, second = ids_of(turns((150, 0, [1, 2]), (300, 1, [3, 4, 5])))
    assert shared(first, second) == 64
    # block 2 is left: its tail is nobody's, though the same ids come again elsewhere
    other = ids_of(turns((150, 0, [1, 2]), session="t"))[0]
    assert 128 <= shared(first, other) < 136


def test_a_tail_with_an_id_of_its_own_is_the_beginning_of_that_block() -> None:
    first, second = ids_of(turns((150, 0, [1, 2, 3]), (192, 3, [])))
    assert (len(first), len(second)) == (150, 192)
    assert second[:150] == first
    assert first[128:] == BLOCKS.ids("block", 3, 22).tolist()


def test_equal_ids_are_equal_in_other_sessions() -> None:
    one = ids_of(turns((256, 0, [1, 2, 3, 4]), session="a"))[0]
    two = ids_of(turns((256, 0, [1, 2, 3, 9]), session="b"))[0]
    assert shared(one, two) == 192


@st.composite
def sessions(draw: st.DrawFn) -> list[tuple[list[int], int]]:
    """Prompts of one session: all of their ids, and their lengths."""
    ids: list[int] = []
    out = []
    for _ in range(draw(st.integers(1, 6))):
        ids = ids[: draw(st.integers(0, len(ids)))] + draw(st.lists(st.integers(0, 5), max_size=4))
        whole, tail = len(ids) * SIZE, draw(st.integers(0, SIZE - 1))
        # either floor(length / size) ids or, where the last block has an id, ceil
        length = whole - tail if ids and draw(st.booleans()) else whole + tail
        out.append((list(ids), max(1, length)))
    return out


@settings(max_examples=150, deadline=None)
@given(st.lists(sessions(), min_size=1, max_size=3))
def test_any_two_prompts_share_just_what_their_ids_share(case: list[list[tuple[list[int], int]]]) -> None:
    all_prompts: list[tuple[list[int], list[int]]] = []
    for number, session in enumerate(case):
        described: list[tuple[int, int, list[int]]] = []
        before: list[int] = []
        for ids, length in session:
            keep = shared(before, ids)
            described.append((length, keep, ids[keep:]))
            before = ids
        got = ids_of(turns(*described, session=f"s{number}"))
        for prompt, (ids, length) in zip(got, session, strict=True):
            assert len(prompt) == length
            all_prompts.append((prompt, ids))
    for (a, ids_a), (b, ids_b) in combinations(all_prompts, 2):
        blocks = shared(ids_a, ids_b)
        tokens = shared(a, b)
        assert tokens >= min(blocks * SIZE, len(a), len(b))
        if blocks < min(len(ids_a), len(ids_b)):
            assert tokens < blocks * SIZE + 8  # a few first tokens of two blocks may agree by chance


@pytest.mark.parametrize("salt_in_text", [True, False])
def test_a_salt_without_a_field_takes_the_place_of_the_first_tokens(salt_in_text: bool) -> None:
    session = turns((150, 0, [1, 2]), (300, 2, [3, 4]))
    plain = ids_of(session)
    one, again, other = (ids_of(session, salt=salt, salt_in_text=salt_in_text) for salt in ("a", "a", "b"))
    assert one == again
    assert [len(ids) for ids in one] == [150, 300]
    assert [ids[8:] for ids in one] == [ids[8:] for ids in other] == [ids[8:] for ids in plain]
    assert (one == plain) == (not salt_in_text)
    assert (one == other) == (not salt_in_text)
    assert one[0][:8] == one[1][:8]


def test_a_prompt_shorter_than_its_salt_keeps_its_length() -> None:
    assert [len(ids) for ids in ids_of(turns((3, 0, [])), salt="a", salt_in_text=True)] == [3]


def test_live_history_goes_on_with_the_ids_that_were_generated() -> None:
    session = turns((150, 0, [1, 2]), (300, 2, [3, 4]), (310, 4, []))
    plain = ids_of(session)
    out = [list(range(9000, 9030)), list(range(9100, 9150)), None]
    first, second, third = ids_of(session, outputs=out)
    assert first == plain[0]
    assert second[:180] == first + out[0]
    assert second[180:] == plain[1][180:]
    # 300 + 50 tokens are more than the next prompt has
    assert third == second + out[1][:10]


def test_live_history_of_a_turn_that_drops_blocks_keeps_what_the_trace_keeps() -> None:
    session = turns((150, 0, [1, 2]), (200, 1, [7, 8]))
    first, second = ids_of(session, outputs=[list(range(9000, 9030)), None])
    assert second[:64] == first[:64]
    assert second[64:] == ids_of(session)[1][64:]


def test_live_history_needs_the_ids_of_what_was_generated() -> None:
    with pytest.raises(RefusedError, match="without the ids of its tokens"):
        prompts(turns((150, 0, [1, 2]), (300, 2, [3, 4])), outputs=[None, None])


# -------------------------------------------------------------------------------------------------------------- text


def text_prompts(session: list[Turn], maker: HashPrompts, **options: Any) -> list[tuple[str, int]]:
    got = []
    for prompt in prompts(session, maker=maker, **options):
        assert prompt.token_ids is None
        assert prompt.messages is not None
        assert [message["role"] for message in prompt.messages] == ["user"]
        assert prompt.text_tokens is not None
        got.append((prompt.messages[0]["content"], prompt.text_tokens))
    return got


def test_text_and_the_templates_tokens_are_the_wanted_length_together() -> None:
    maker = how(as_ids=False, template_tokens=TEMPLATE)
    session = turns((150, 0, [1, 2]), (300, 2, [3, 4]))
    plain = ids_of(session)
    for salt in (None, "a"):
        got = text_prompts(session, maker, salt=salt, salt_in_text=True)
        assert [len(encode(text)) + TEMPLATE for text, _ in got] == [150, 300]
        assert [tokens + TEMPLATE for _, tokens in got] == [150, 300]
        assert got[1][0].startswith(got[0][0])
        head = 1 if salt is None else 9
        assert encode(got[1][0])[head:] == plain[1][head : 300 - TEMPLATE]


def test_each_part_of_a_text_is_encoded_once() -> None:
    asked: list[int] = []

    def counting(text: str) -> list[int]:
        asked.append(len(encode(text)))
        return encode(text)

    maker = HashPrompts(BlockText(BLOCKS.palette, counting), SIZE, as_ids=False, tokenizer="t", template_tokens=0)
    text_prompts(turns((6400, 0, range(100)), (6464, 100, [100]), (6470, 101, [])), maker)
    assert asked == [6400, 64, 6]


def test_a_text_that_is_encoded_otherwise_is_an_error() -> None:
    blocks = BlockText(BLOCKS.palette, lambda text: encode(text)[1:])
    maker = HashPrompts(blocks, SIZE, as_ids=False, tokenizer="t", template_tokens=0)
    with pytest.raises(ConfigError, match="cannot make a block"):
        text_prompts(turns((150, 0, [1, 2])), maker)


def answered(input_tokens: int | None) -> Record:
    return Record(
        request_id="r",
        session_id="s",
        turn=0,
        clock=Clock(scheduled=0, due=0),
        usage=Usage(input_tokens=input_tokens),
    )


def test_the_first_usage_tells_what_the_template_adds() -> None:
    maker = how(as_ids=False, template_tokens=None)
    assert text_prompts(turns((150, 0, [1, 2])), maker)[0][1] == 150
    maker.learn(None, answered(150))
    maker.learn(150, answered(None))
    assert maker.template_tokens is None
    maker.learn(150, answered(154))
    maker.learn(150, answered(170))
    assert maker.template_tokens == 4
    assert text_prompts(turns((150, 0, [1, 2])), maker)[0][1] == 146
    assert maker.described()["template_tokens_from"] == "usage"


@pytest.mark.parametrize("reported", [120, 150 + 513])
def test_a_usage_that_no_template_explains_changes_nothing(reported: int) -> None:
    maker = how(as_ids=False, template_tokens=None)
    maker.learn(150, answered(reported))
    assert maker.template_tokens == 0


# ------------------------------------------------------------------------------------------------------------- choice


class Endpoint:
    """What is asked of an endpoint; None: it has no /tokenize."""

    def __init__(self, *, ids: bool, encode: Callable[[str], list[int]] | None = encode, added: int = TEMPLATE) -> None:
        self.ids, self.encode, self.added = ids, encode, added

    async def takes_token_ids(self) -> bool:
        return self.ids

    async def tokenize_text(self, text: str) -> list[int] | None:
        return None if self.encode is None else self.encode(text)

    async def tokenize(self, messages: Sequence[Message]) -> list[int] | None:
        if self.encode is None:
            return None
        return [0] * self.added + self.encode(messages[0]["content"])


async def choose(
    tmp_path: Path, endpoint: Endpoint, *, prompts: str = "auto", tokenizer: str | None = None, live: bool = False
) -> HashPrompts | None:
    path = tmp_path / "t.jsonl"
    lines = [
        {"kvbench_trace": 1, "block_size": SIZE},
        {"session_id": "s", "turn": 0, "input_tokens": 150, "hash_ids": [1, 2]},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with open_trace(path) as trace:
        got, warnings = await hash_prompts(trace, endpoint, Choice(tokenizer=tokenizer, prompts=prompts), live=live)
        assert warnings == []
        return got


async def test_token_ids_where_they_are_taken_and_text_elsewhere(tmp_path: Path) -> None:
    got = await choose(tmp_path, Endpoint(ids=True))
    assert got is not None
    assert got.described() == {
        "as": "token ids",
        "tokenizer": "the server's /tokenize",
        "words": 256,
        "template_tokens": 0,
        "template_tokens_from": "tokenizer",
    }
    got = await choose(tmp_path, Endpoint(ids=False))
    assert got is not None
    assert (got.as_ids, got.template_tokens) == (False, TEMPLATE)
    got = await choose(tmp_path, Endpoint(ids=True), prompts="text")
    assert got is not None
    assert not got.as_ids
    got = await choose(tmp_path, Endpoint(ids=False), prompts="ids")
    assert got is not None
    assert got.as_ids


async def test_a_named_tokenizer_makes_prompts_where_the_server_tells_nothing(tmp_path: Path) -> None:
    got = await choose(tmp_path, Endpoint(ids=False, encode=None), tokenizer="deepseek")
    assert got is not None
    assert (got.as_ids, got.tokenizer, got.template_tokens, got.template_from_usage) == (False, "deepseek", None, True)


async def test_without_any_tokenizer_it_is_refused_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(
        RefusedError, match="takes no token ids and has no /tokenize, and no tokenizer is named"
    ) as error:
        await choose(tmp_path, Endpoint(ids=False, encode=None))
    assert "tokenizer = " in (error.value.hint or "")


async def test_live_history_is_refused_where_no_token_ids_are_taken(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="live history of a trace with hash ids"):
        await choose(tmp_path, Endpoint(ids=False), live=True)


async def test_a_server_whose_words_are_no_single_tokens_cannot_make_blocks(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the server's /tokenize cannot make blocks"):
        await choose(tmp_path, Endpoint(ids=True, encode=lambda text: list(text.encode())))


async def test_a_trace_with_text_needs_none_of_it(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(
        '{"kvbench_trace": 1}\n{"session_id": "s", "turn": 0, "messages": [{"role": "user", "content": "a"}]}\n'
    )
    with open_trace(path) as trace:
        assert await hash_prompts(trace, Endpoint(ids=True, encode=None), Choice(), live=True) == (None, [])


def test_memory_of_a_session_is_its_ids() -> None:
    session = turns((120_000, 0, range(1875)))
    made = HashedSession(how(), session)
    made.next(session[0], session[0].hash_ids or (), 0, None)
    assert len(made.token_ids(None)) == 120_000
