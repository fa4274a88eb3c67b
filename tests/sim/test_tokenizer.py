from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.sim.text import OutputText
from kvbench.sim.tokenizer import (
    END,
    GENERATION_PROMPT,
    PromptError,
    decode_ids,
    encode_chat,
    encode_ids,
    encode_text,
)

MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": st.text()}),
    min_size=1,
    max_size=5,
)


def test_four_bytes_are_one_token_little_endian() -> None:
    # 'a' 'b' 'c' 'd' = 0x61 0x62 0x63 0x64; the fifth byte begins a token of its own, padded with zeros.
    assert decode_ids(encode_text("abcde")) == [0x64636261, 0x65]
    assert decode_ids(encode_text("")) == []
    assert decode_ids(encode_text("é")) == [0xA9C3]


def test_ids_as_numbers_survive() -> None:
    assert decode_ids(encode_ids([0, 7, 2**32 - 1])) == [0, 7, 2**32 - 1]
    for bad in ([-1], [2**32], ["x"]):
        with pytest.raises(PromptError, match="integers from 0 to 4294967295"):
            encode_ids(bad)  # type: ignore[arg-type]


@given(MESSAGES, MESSAGES)
def test_appended_messages_never_shift_earlier_ids(first: list[dict[str, str]], more: list[dict[str, str]]) -> None:
    before = encode_chat(first, add_generation_prompt=False)
    assert encode_chat(first + more).startswith(before)


@given(st.text(), st.text())
def test_different_texts_have_different_ids(one: str, other: str) -> None:
    # A trailing NUL is the padding's own byte, the only text that could look like it.
    if one.rstrip("\0") != other.rstrip("\0"):
        assert encode_text(one) != encode_text(other)


def test_text_never_collides_with_the_marks_of_the_template() -> None:
    highest_text_id = max(decode_ids(encode_text("\U0010ffff" * 8 + "\ud800")))
    assert highest_text_id < min(decode_ids(encode_chat([{"role": "user", "content": ""}], [{"type": "function"}]))[:1])


def test_generated_text_sent_back_gives_the_ids_that_were_generated() -> None:
    messages = [{"role": "user", "content": "What now?"}]
    prompt = encode_chat(messages)
    output = OutputText(prompt, max_tokens=700, ignore_eos=True)
    text = "".join(output.text(number, number + 1) for number in range(700))
    assert text == output.text(0, 700)
    assert len(text) == 2800
    next_turn = encode_chat([*messages, {"role": "assistant", "content": text}], add_generation_prompt=False)
    assert next_turn == prompt + output.tokens(0, 700) + END
    assert prompt.endswith(GENERATION_PROMPT)


def test_output_is_the_same_for_the_same_prompt_only() -> None:
    one, again, other = (OutputText(prompt, max_tokens=50, ignore_eos=True) for prompt in (b"aaaa", b"aaaa", b"bbbb"))
    assert one.tokens(0, 50) == again.tokens(0, 50)
    assert one.tokens(0, 50) != other.tokens(0, 50)


def test_a_model_left_free_stops_by_itself_and_counts_its_end_mark() -> None:
    output = OutputText(b"aaaa", max_tokens=10_000)
    assert output.stops
    assert 16 <= output.length_tokens <= 400
    assert output.text(output.length_tokens - 1, output.length_tokens) == ""
    assert output.tokens(output.length_tokens - 1, output.length_tokens) == END
    # min_tokens moves the stop, a lower max_tokens takes it away.
    assert OutputText(b"aaaa", max_tokens=10_000, min_tokens=5000).length_tokens == 5001
    cut = OutputText(b"aaaa", max_tokens=10)
    assert (cut.stops, cut.length_tokens) == (False, 10)


def test_thinking_comes_on_top_and_a_cut_ends_whatever_was_to_come() -> None:
    plain = OutputText(b"aaaa", max_tokens=10_000)
    thinking = OutputText(b"aaaa", max_tokens=10_000, thinking_tokens=500)
    assert thinking.length_tokens == plain.length_tokens + 500
    assert (thinking.thinking_tokens, thinking.stops) == (500, True)
    thinking.cut(10_000)
    assert thinking.stops
    thinking.cut(300)
    assert (thinking.length_tokens, thinking.thinking_tokens, thinking.stops) == (300, 300, False)
    assert thinking.tokens(0, 300) == OutputText(b"aaaa", max_tokens=300).tokens(0, 300)


def test_tools_calls_and_parts_are_rendered() -> None:
    plain = encode_chat([{"role": "user", "content": "abcdefgh"}])
    parts = encode_chat(
        [{"role": "user", "content": [{"type": "text", "text": "abcd"}, {"type": "text", "text": "efgh"}]}]
    )
    assert parts == plain
    tools = [{"type": "function", "function": {"name": "read_file", "parameters": {}}}]
    with_tools = encode_chat([{"role": "user", "content": "abcdefgh"}], tools)
    assert with_tools.endswith(plain)
    assert b"read_file" in with_tools
    call = {"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a.py"}'}}
    called = encode_chat([{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert b"read_file" in called
    assert b'{"path": "a.py"}' in called
    assert encode_chat([{"role": "assistant", "content": None, "tool_calls": [{**call, "id": "c2"}]}]) != called
    result = encode_chat([{"role": "tool", "tool_call_id": "c1", "content": "ok"}])
    assert encode_chat([{"role": "tool", "tool_call_id": "c2", "content": "ok"}]) != result


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "x"}, "needs a role"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "'image_url'"),
        ({"role": "user", "content": 5}, "must be text"),
        ({"role": "assistant", "tool_calls": ["1"]}, "must be an object"),
        ({"role": "assistant", "tool_calls": [{"id": "1"}]}, "function with a name"),
    ],
)
def test_what_the_model_cannot_take_is_named(message: dict[str, object], text: str) -> None:
    with pytest.raises(PromptError, match=text):
        encode_chat([message])


@pytest.mark.parametrize("calls", [5, True, "abc", {"a": 1}])
def test_calls_are_a_list(calls: object) -> None:
    with pytest.raises(PromptError, match="tool_calls of a message must be a list"):
        encode_chat([{"role": "assistant", "content": "x", "tool_calls": calls}])


def test_tokens_of_any_range_are_slices_of_the_whole() -> None:
    for output in (OutputText(b"aaaa", max_tokens=600, ignore_eos=True), OutputText(b"bbbb", max_tokens=10_000)):
        length = output.length_tokens
        whole = output.tokens(0, length)
        assert len(whole) == 4 * length
        fresh = OutputText(
            b"bbbb" if output.stops else b"aaaa",
            max_tokens=10_000 if output.stops else 600,
            ignore_eos=not output.stops,
        )
        for start, stop in ((length - 1, length), (0, 1), (3, 3), (length, length), (7, length), (5, 9)):
            assert fresh.tokens(start, stop) == whole[4 * start : 4 * stop], (start, stop)
