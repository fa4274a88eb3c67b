"""One line in, one struct out: what is kept, what is repaired, and how what is wrong is named."""

import json

import pytest

from kvbench.model import Recorded, SharedPrompt, Turn, TurnRef
from kvbench.traces.lines import LineError, decode_header, decode_line, decode_repaired, repair_surrogates


def test_a_turn_with_every_field() -> None:
    raw = json.dumps(
        {
            "session_id": "s.a",
            "turn": 0,
            "parent": {"session_id": "s", "turn": 3},
            "after": ["s.b"],
            "delay_s": 1,
            "input_tokens": 9,
            "output_tokens": 7,
            "append": [{"role": "user", "content": 'say "hi": now'}],
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "prefix": "p",
            "model": "m",
            "recorded": {"ttft_s": 0.5, "e2e_s": 2, "cached_tokens": 0, "usage": {"prompt_tokens": 9}},
        }
    ).encode()
    assert decode_line(raw, 12) == Turn(
        session_id="s.a",
        turn=0,
        line=12,
        parent=TurnRef("s", 3),
        after=("s.b",),
        delay_s=1.0,
        input_tokens=9,
        output_tokens=7,
        append=({"role": "user", "content": 'say "hi": now'},),
        tools=({"type": "function", "function": {"name": "f"}},),
        prefix="p",
        model="m",
        recorded=Recorded(ttft_s=0.5, e2e_s=2.0, cached_tokens=0, usage={"prompt_tokens": 9}),
    )


def test_absent_and_null_are_the_same_and_never_zero() -> None:
    absent = decode_line(b'{"session_id": "s", "turn": 0, "append": []}', 1)
    null = decode_line(
        b'{"session_id": "s", "turn": 0, "append": [], "start_s": null, "output_tokens": null, "recorded": null}', 1
    )
    assert absent == null
    assert isinstance(absent, Turn)
    assert (absent.start_s, absent.input_tokens, absent.output_tokens, absent.recorded) == (None, None, None, None)


@pytest.mark.parametrize(
    ("raw", "extra"),
    [
        (b'{"session_id":"s","turn":0,"append":[],"mood":"good"}', {"mood": "good"}),
        (b'{"session_id":"s","turn":0,"append":[],"mood" : 1}', {"mood": 1}),
        (b'{"session_id":"s","turn":0,"append":[],"a\\\\":1}', {"a\\": 1}),
        (b'{"session_id":"s","turn":0,"append":[{"role":"user","content":"\\u0022\\u0022"}],"x":1}', {"x": 1}),
        (b'{"session_id":"s","turn":0,"append":[],"recorded":{"ttft_s":1,"host":"h"}}', {"recorded": {"host": "h"}}),
        (
            b'{"session_id":"s","turn":0,"append":[],"parent":{"session_id":"r","turn":0,"why":1}}',
            {"parent": {"why": 1}},
        ),
        (b'{"session_id":"s","turn":0,"append":[{"role":"user","content":"","x":{"y":[1]}}]}', {}),
    ],
)
def test_unknown_fields_are_kept(raw: bytes, extra: dict[str, object]) -> None:
    turn = decode_line(raw, 1)
    assert turn.extra == extra


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        (b'{"session_id":"s","turn":0,"turn":1,"append":[]}', "turn"),
        (b'{"session_id":"s","turn":0,"t\\u0075rn":1,"append":[]}', "turn"),
        (b'{"session_id":"s","turn":0,"append":[{"role":"user","role":"tool"}]}', "role"),
        (b'{"session_id":"s","turn":0,"append":[{"role":"user","content":"\\u0022\\u0022","role":"x"}]}', "role"),
        (b'{"session_id":"s","turn":0,"append":[],"new":1,"new":2}', "new"),
        (b'{"session_id":"s","turn":0,"append":[],"recorded":{"e2e_s":1,"e2e_s" :2}}', "e2e_s"),
        (b'{"prefix":"p","messages":[{"role":"system"}],"prefix":"q"}', "prefix"),
    ],
)
def test_a_key_given_twice_is_refused(raw: bytes, key: str) -> None:
    with pytest.raises(LineError, match="given twice") as caught:
        decode_line(raw, 1)
    assert caught.value.field == key


@pytest.mark.parametrize(
    ("raw", "field", "message"),
    [
        (b'{"session_id":"s","turn":"0"}', "turn", "got str"),
        (b'{"session_id":"s","turn":true}', "turn", "got bool"),
        (b'{"session_id":"s","turn":-1}', "turn", "expected int >= 0"),
        (b'{"session_id":"s","turn":' + b"1" * 5000 + b"}", "turn", "out of range"),
        (b'{"session_id":"","turn":0}', "session_id", "length >= 1"),
        (b'{"session_id":7,"turn":0}', "session_id", "expected str"),
        (b'{"session_id":"s"}', "turn", "missing"),
        (b'{"session_id":"s","turn":0,"output_tokens":0}', "output_tokens", "expected int >= 1"),
        (b'{"session_id":"s","turn":0,"delay_s":-0.5}', "delay_s", "expected float >= 0"),
        (b'{"session_id":"s","turn":0,"delay_s":1e999}', "delay_s", "out of range"),
        (b'{"session_id":"s","turn":0,"start_s":2e9}', "start_s", "<= 1000000000"),
        (b'{"session_id":"s","turn":0,"append":[3]}', "append[0]", "expected object, got int"),
        (b'{"session_id":"s","turn":0,"append":{}}', "append", "expected array"),
        (b'{"session_id":"s","turn":0,"hash_ids":[1,"2"]}', "hash_ids[1]", "expected int"),
        (b'{"session_id":"s","turn":0,"parent":{"session_id":"r"}}', "parent", "turn"),
        (b'{"session_id":"s","turn":0,"delay_s":NaN}', None, "NaN is no JSON number"),
        (b'{"session_id":"s","turn":0,"delay_s":-Infinity}', None, "-Infinity is no JSON number"),
        (b'{"session_id":"s","turn":0,"delay_s":0', None, "ends inside its JSON"),
        (b'{"session_id":"s","turn":0} extra', None, "invalid JSON"),
        (b'{"session_id":"s","turn":0,"append":[{"role":"user","content":"\xff"}]}', None, "not UTF-8 (byte 63"),
        (b'{"session_id":"s","turn":0,"append":[' + b"[" * 100_000, "append[0]", "expected object, got array"),
        (b'{"session_id":"s","turn":0,"append":[{"x":' + b"[" * 100_000, None, "nested too deeply"),
        (b'{"session_id":"s","turn":0,"x":' + b"[" * 100_000, None, "nested too deeply"),
        (b"[1]", None, "expected object, got array"),
        (b'{"name":"x"}', None, "neither a turn nor a shared prompt"),
    ],
)
def test_what_is_wrong_is_named(raw: bytes, field: str | None, message: str) -> None:
    with pytest.raises(LineError) as caught:
        decode_line(raw, 1)
    assert message in caught.value.message
    assert caught.value.field == field


def test_deep_json_in_an_unknown_field_is_an_error_not_a_crash() -> None:
    deep = b'{"session_id":"s","turn":0,"append":[],"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(LineError, match="nested too deeply"):
        decode_line(deep, 1)


@pytest.mark.parametrize(
    ("raw", "repaired", "count"),
    [
        (rb'"\ud83d"', rb'"\ufffd"', 1),
        (rb'"\udc00x\uD800"', rb'"\ufffdx\ufffd"', 2),
        (rb'"\ud83d\ude00"', rb'"\ud83d\ude00"', 0),
        (rb'"\\ud83d"', rb'"\\ud83d"', 0),
        (rb'"\\\ud83d"', rb'"\\\ufffd"', 1),
        (rb'"\ud83d\ud83d\ude00"', rb'"\ufffd\ud83d\ude00"', 1),
    ],
)
def test_lone_surrogates_are_replaced(raw: bytes, repaired: bytes, count: int) -> None:
    assert repair_surrogates(raw) == (repaired, count)


def test_a_line_with_a_lone_surrogate_is_read() -> None:
    turn, count = decode_repaired(rb'{"session_id":"s","turn":0,"append":[{"role":"user","content":"cut \ud83d"}]}', 1)
    assert count == 1
    assert isinstance(turn, Turn)
    assert turn.append == ({"role": "user", "content": "cut �"},)


def test_header_and_shared_prompt_keep_unknown_fields() -> None:
    header = decode_header(b'{"kvbench_trace": 1, "name": "n", "block_size": 16, "source": "s", "licence": "x"}')
    assert (header.version, header.name, header.block_size, header.source) == (1, "n", 16, "s")
    assert header.extra == {"licence": "x"}
    prompt = decode_line(b'{"prefix": "p", "messages": [{"role": "system", "content": "c"}], "note": 1}', 2)
    assert prompt == SharedPrompt(name="p", messages=({"role": "system", "content": "c"},), extra={"note": 1})


@pytest.mark.parametrize(
    ("raw", "field", "message"),
    [
        (b'{"kvbench_trace": 2}', "kvbench_trace", "version 2 is newer"),
        (b'{"kvbench_trace": "1"}', "kvbench_trace", "version number"),
        (b'{"kvbench_trace": 0}', "kvbench_trace", "version number"),
        (b'{"kvbench_trace": true}', "kvbench_trace", "version number"),
        (b'{"session_id": "s", "turn": 0}', None, "first line must be a header"),
        (b'{"kvbench_trace": 1, "block_size": 0}', "block_size", ">= 1"),
        (b"id,tokens", None, "invalid JSON"),
    ],
)
def test_headers_that_cannot_be_used(raw: bytes, field: str | None, message: str) -> None:
    with pytest.raises(LineError) as caught:
        decode_header(raw)
    assert message in caught.value.message
    assert caught.value.field == field
