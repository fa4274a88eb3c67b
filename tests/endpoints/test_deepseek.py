"""DeepSeek's dialect over real HTTP: its profile, discovery, bodies, streams, finish reasons and errors."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.deepseek_api import KEY, DeepSeekApi, deepseek_api

from kvbench.endpoints.balance import read_balances, spent
from kvbench.endpoints.client import Endpoint
from kvbench.endpoints.clock import RunClock
from kvbench.endpoints.dialects import deepseek
from kvbench.endpoints.profile import EndpointProfile, Limits, load_profile
from kvbench.errors import ConfigError, FailedError, InputError
from kvbench.model import Spent

from .conftest import Peer, RawServer, http_chunk
from .helpers import DONE, LAST_CHUNK, STREAM_HEAD, event, send, serving, stream

StartServer = Callable[..., RawServer]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[DeepSeekApi]:
    monkeypatch.setenv(deepseek.KEY_ENV, KEY)
    with deepseek_api() as api:
        yield api


async def discovered(api: DeepSeekApi, model: str | None = None, **profile: Any) -> Endpoint:
    endpoint = await Endpoint.open(
        EndpointProfile(**{"url": api.url, "key_env": deepseek.KEY_ENV, "dialect": "deepseek", **profile}),
        RunClock.start(),
    )
    try:
        await endpoint.discover(model)
    finally:
        await endpoint.aclose()
    return endpoint


# ------------------------------------------------------------------------------------------------------- the profile


def test_the_name_is_the_public_api_and_its_key_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPSEEK_API_KEY", KEY)
    profile = load_profile("deepseek")
    assert (profile.url, profile.model, profile.dialect) == ("https://api.deepseek.com", "deepseek-flash", "deepseek")
    assert profile.expected_hits.rule == "units"
    assert profile.timeouts.idle_s > 600  # the API's own ten minutes come first
    assert profile.safe_dict()["key"] == "from env DEEPSEEK_API_KEY"
    assert KEY not in json.dumps(profile.safe_dict())
    monkeypatch.delenv("DEEPSEEK_API_KEY")
    with pytest.raises(ConfigError, match="DEEPSEEK_API_KEY is not set"):
        profile.read_key()


def test_a_toml_may_say_the_dialect_and_ask_for_the_balance(tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    path.write_text('url = "http://x"\ndialect = "deepseek"\nbalance = true\n[limits]\nin_flight = 9\n')
    profile = load_profile(str(path))
    assert (profile.dialect, profile.balance, profile.limits.in_flight) == ("deepseek", True, 9)
    path.write_text('url = "http://x"\ndialect = "deepseek"\napi = "completions"\n')
    with pytest.raises(InputError, match=r"e\.toml:3: api"):
        load_profile(str(path))


# --------------------------------------------------------------------------------------------------------- discovery


async def test_discovery_asks_for_models_alone_and_without_v1_first(api: DeepSeekApi) -> None:
    info = (await discovered(api, "deepseek-flash")).info
    assert info is not None
    assert (info.dialect, info.model, info.server) == ("deepseek", "deepseek-flash", "DeepSeek API")
    assert info.in_flight_limit == 2500
    assert sorted(api.paths) == ["/models", "/v1/models"]


async def test_its_list_of_models_gives_the_dialect_away(api: DeepSeekApi) -> None:
    info = (await discovered(api, "deepseek-v4-pro", dialect="auto")).info
    assert info is not None
    assert (info.dialect, info.model, info.in_flight_limit) == ("deepseek", "deepseek-v4-pro", 500)


@pytest.mark.parametrize("alias", ["deepseek-v4-flash", "deepseek-v4-flash-vision-exp"])
async def test_aliases_of_flash_need_not_be_listed(api: DeepSeekApi, alias: str) -> None:
    info = (await discovered(api, alias)).info
    assert info is not None
    assert (info.model, info.in_flight_limit) == (alias, 2500)
    api.models = ["deepseek-v4-pro"]
    with pytest.raises(ConfigError, match="not served"):
        await discovered(api, alias)


async def test_a_retired_name_is_named_so(api: DeepSeekApi) -> None:
    with pytest.raises(ConfigError, match=r"'deepseek-chat' is not served \(retired on 2026-07-24\)"):
        await discovered(api, "deepseek-chat")


async def test_the_profiles_own_limit_comes_before_the_documented_one(api: DeepSeekApi) -> None:
    info = (await discovered(api, "deepseek-flash", limits=Limits(in_flight=7))).info
    assert info is not None
    assert info.in_flight_limit == 7


# ------------------------------------------------------------------------------------------------------------ bodies


def test_the_body_disables_thinking_only_when_told_and_never_asks_vllm_things() -> None:
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning": "c"}]
    common: dict[str, Any] = {"model": "m", "api": "chat", "stream": True, "messages": said, "output_tokens": 5}
    plain = deepseek.build_body(**common)
    assert plain == {
        "model": "m",
        "messages": [said[0], {"role": "assistant", "content": "b", "reasoning_content": "c"}],
        "max_tokens": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert said[1] == {"role": "assistant", "content": "b", "reasoning": "c"}
    assert deepseek.build_body(**common, thinking=False) == plain | {"thinking": {"type": "disabled"}}
    assert deepseek.build_body(**common, thinking=True) == plain | {"thinking": {"type": "enabled"}}


async def test_extra_body_has_the_last_word(api: DeepSeekApi) -> None:
    extra = {"thinking": {"type": "enabled"}, "reasoning_effort": "max", "user_id": "tenant-7"}
    endpoint = await discovered(api, "deepseek-flash", extra_body=extra)
    body = endpoint.build_body(messages=[{"role": "user", "content": "a"}], thinking=False)
    assert {name: body[name] for name in extra} == extra


# ----------------------------------------------------------------------------------------------------------- streams


@pytest.mark.parametrize("on_last_content", [True, False])
@pytest.mark.parametrize("thinks", [True, False])
async def test_both_shapes_of_usage_and_thinking_before_output(
    api: DeepSeekApi, on_last_content: bool, thinks: bool
) -> None:
    api.usage_on_last_content = on_last_content
    endpoint = await discovered(api, "deepseek-flash")
    body = endpoint.build_body(
        messages=[{"role": "user", "content": "one two three"}], output_tokens=8, thinking=None if thinks else False
    )
    record = await send(api.url, body, key_env=deepseek.KEY_ENV, dialect="deepseek")
    assert record.ok, record.error_message
    usage, clock = record.usage, record.clock
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.problem) == (7, 0, 8, None)
    assert usage.reasoning_tokens == (4 if thinks else None)
    assert record.reasoning_text == (" hm" * 4 if thinks else None)
    assert record.output_text == " word" * (4 if thinks else 8)
    assert clock.first_token is not None
    assert clock.first_output_token is not None
    assert (clock.first_token < clock.first_output_token) == thinks
    assert len(clock.chunks) == 8


async def test_keep_alives_and_blank_lines_are_no_tokens(raw_server: StartServer) -> None:
    def handler(peer: Peer) -> None:
        peer.request()
        peer.send(STREAM_HEAD)
        for waiting in (b": keep-alive\n\n", b"\n", b"\n\n", b": keep-alive\n\n"):
            peer.chunk(waiting)
            time.sleep(0.03)
        peer.chunk(event(content="a"))
        peer.send(http_chunk(event(finish="stop")) + http_chunk(DONE) + LAST_CHUNK)

    record = await send(raw_server(handler).url, dialect="deepseek")
    clock = record.clock
    assert record.output_text == "a"
    assert clock.first_byte is not None
    assert clock.first_token is not None
    assert clock.first_token - clock.first_byte > 100_000_000
    assert clock.chunks == [clock.first_token]


async def test_blank_lines_before_an_answer_in_one_piece(raw_server: StartServer) -> None:
    whole = b'{"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    parts = (b"\n", b"\n\n", b"\r\n", whole)
    server = raw_server(serving(head + b"".join(map(http_chunk, parts)) + LAST_CHUNK))
    record = await send(server.url, dialect="deepseek", stream=False)
    assert (record.ok, record.output_text, record.usage.input_tokens) == (True, "hi", 3)
    assert record.clock.first_token is None


async def test_hits_in_two_spellings_are_one_count_and_a_contradiction_is_none(raw_server: StartServer) -> None:
    both = {"prompt_tokens": 563, "prompt_cache_hit_tokens": 512, "prompt_cache_miss_tokens": 51}
    for details, cached in (({"cached_tokens": 512}, 512), (None, 512), ({"cached_tokens": 500}, None)):
        usage = both | {"completion_tokens": 1, "prompt_tokens_details": details}
        record = await send(raw_server(serving(stream(event("stop", usage, content="x"), DONE))).url)
        assert (record.usage.input_tokens, record.usage.cached_tokens) == (563, cached)
        assert (record.usage.problem is None) == (cached is not None)
    wrong = both | {"prompt_cache_miss_tokens": 50, "completion_tokens": 1}
    record = await send(raw_server(serving(stream(event("stop", wrong, content="x"), DONE))).url)
    assert record.usage.problem == "prompt_tokens 563 is not hit 512 + miss 50"
    assert (record.usage.input_tokens, record.usage.cached_tokens, record.usage.output_tokens) == (None, None, 1)


# ---------------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("reason", "failure"), [("insufficient_system_resource", "insufficient_resources"), ("aborted", "aborted")]
)
@pytest.mark.parametrize("streams", [True, False])
async def test_its_own_finish_reasons_are_failures_of_their_own(
    api: DeepSeekApi, reason: str, failure: str, streams: bool
) -> None:
    api.finish_reason = reason
    endpoint = await discovered(api, "deepseek-flash", stream=streams)
    body = endpoint.build_body(messages=[{"role": "user", "content": "one"}], output_tokens=4)
    record = await send(api.url, body, key_env=deepseek.KEY_ENV, dialect="deepseek")
    assert (record.error_class, record.finish_reason) == (failure, reason)
    assert reason in (record.error_message or "")
    assert record.usage.output_tokens == 4  # it is billed all the same


@pytest.mark.parametrize(
    ("status", "failure"),
    [
        (400, "bad_request"),
        (401, "auth"),
        (402, "payment"),
        (422, "bad_request"),
        (429, "rate_limited"),
        (500, "server_error"),
        (503, "overloaded"),
    ],
)
async def test_errors_by_status(api: DeepSeekApi, status: int, failure: str) -> None:
    api.fail = (status, "no, and the key sk-not-a-real-key-0123456789 is none of your business")
    record = await send(api.url, {"model": "m", "messages": []}, key_env=deepseek.KEY_ENV, dialect="deepseek")
    assert (record.http_status, record.error_class) == (status, failure)
    assert KEY not in (record.error_message or "")


def _closing(*before: bytes) -> Callable[[Peer], None]:
    def handler(peer: Peer) -> None:
        peer.request()
        for data in before:
            peer.send(data)
        time.sleep(0.2)

    return handler


JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "before",
    [
        (),
        (STREAM_HEAD,),
        (STREAM_HEAD, http_chunk(b": keep-alive\n\n")),
        (JSON_HEAD, http_chunk(b"\n\n")),
    ],
)
async def test_a_close_after_ten_minutes_without_a_token_is_named(
    raw_server: StartServer, monkeypatch: pytest.MonkeyPatch, before: tuple[bytes, ...]
) -> None:
    monkeypatch.setattr(deepseek, "WAIT_LIMIT_S", 0.1)
    url = raw_server(_closing(*before)).url
    record = await send(url, dialect="deepseek")
    assert record.error_class == "queue_timeout"
    assert "not begun to work on a request" in (record.error_message or "")
    assert (await send(url, dialect="openai")).error_class == "truncated"
    monkeypatch.setattr(deepseek, "WAIT_LIMIT_S", 600.0)
    assert (await send(url, dialect="deepseek")).error_class == "truncated"


async def test_a_clean_end_of_a_wait_is_the_same_and_a_token_makes_it_another(
    raw_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deepseek, "WAIT_LIMIT_S", 0.1)

    def ending(*parts: bytes) -> Callable[[Peer], None]:
        def handler(peer: Peer) -> None:
            peer.request()
            peer.send(STREAM_HEAD + b"".join(map(http_chunk, parts)))
            time.sleep(0.2)
            peer.send(LAST_CHUNK)
            peer.request()

        return handler

    waited = await send(raw_server(ending(b": keep-alive\n\n")).url, dialect="deepseek")
    assert waited.error_class == "queue_timeout"
    begun = await send(raw_server(ending(event(content="a"))).url, dialect="deepseek")
    assert (begun.error_class, begun.output_text) == ("truncated", "a")


# ----------------------------------------------------------------------------------------------------------- balance


async def test_balances_are_decimals_by_currency(api: DeepSeekApi) -> None:
    api.balances = [{"USD": "110.00", "CNY": "0.07"}]
    endpoint = await Endpoint.open(EndpointProfile(url=api.url + "/v1", key_env=deepseek.KEY_ENV), RunClock.start())
    try:
        assert await endpoint.balance() == {"USD": Decimal("110.00"), "CNY": Decimal("0.07")}
        api.balances = []
        with pytest.raises(FailedError, match="404"):
            await endpoint.balance()
    finally:
        await endpoint.aclose()


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"balance_infos": []},
        {"balance_infos": [{"currency": "USD"}]},
        {"balance_infos": [{"currency": "USD", "total_balance": 1.5}]},
        {"balance_infos": [{"currency": "USD", "total_balance": "many"}]},
        {"balance_infos": [{"currency": "USD", "total_balance": "NaN"}]},
        {"balance_infos": [{"currency": "", "total_balance": "1.00"}]},
        {"balance_infos": [{"currency": "USD", "total_balance": "1.00"}] * 2},
    ],
)
def test_what_is_no_balance(value: Any) -> None:
    with pytest.raises(ValueError, match=r"balance|amount"):
        read_balances(value)


def test_what_two_balances_say_of_the_bill() -> None:
    def bounds(before: str, after: str) -> tuple[str, str] | None:
        (one,) = spent({"USD": Decimal(before)}, {"USD": Decimal(after)}) or ()
        assert (one.before, one.after) == (Decimal(before), Decimal(after))
        return None if one.at_least is None else (str(one.at_least), str(one.at_most))

    assert bounds("110.00", "109.50") == ("0.48", "0.52")
    assert bounds("110.00", "110.00") == ("0.00", "0.02")
    assert bounds("110.00", "110.01") == ("0.00", "0.01")
    assert bounds("110.00", "120.00") is None  # topped up meanwhile
    assert spent(None, None) is None
    assert spent({"USD": Decimal("1.00")}, None) == (Spent(currency="USD", before=Decimal("1.00")),)
    apart = spent({"USD": Decimal("2.00"), "CNY": Decimal("5.00")}, {"USD": Decimal("1.00"), "CNY": Decimal("5.00")})
    assert apart is not None
    assert [(s.currency, str(s.at_least), str(s.at_most)) for s in apart] == [
        ("USD", "0.98", "1.02"),
        ("CNY", "0.00", "0.02"),
    ]
