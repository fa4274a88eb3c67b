"""What prompts of token ids need of an endpoint: whether it takes them, ids of plain text, ids of what it generated."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kvbench.endpoints.client import Endpoint
from kvbench.endpoints.clock import RunClock
from kvbench.endpoints.profile import EndpointProfile
from kvbench.model import Request

from .conftest import Peer, RawServer
from .helpers import DONE, answer, stream

StartServer = Callable[..., RawServer]

NOT_FOUND = answer({"error": {"message": "not found", "code": 404}}, "404 Not Found")
BAD_REQUEST = answer({"error": {"message": "prompt: field required", "code": 400}}, "400 Bad Request")


def serving(pages: dict[str, bytes], seen: list[tuple[str, Any]]) -> Callable[[Peer], None]:
    def handler(peer: Peer) -> None:
        while True:
            head, body = peer.request()
            if not head:
                return
            path = head.split(b" ")[1].decode()
            seen.append((path, json.loads(body) if body else None))
            peer.send(pages.get(path, NOT_FOUND))

    return handler


async def opened(server: RawServer, dialect: Any = "vllm") -> Endpoint:
    return await Endpoint.open(EndpointProfile(url=server.url, dialect=dialect, model="m"), RunClock.start())


@pytest.mark.parametrize(("page", "takes"), [(BAD_REQUEST, True), (NOT_FOUND, False)])
async def test_completions_that_refuse_an_empty_request_take_token_ids(
    raw_server: StartServer, page: bytes, takes: bool
) -> None:
    seen: list[tuple[str, Any]] = []
    endpoint = await opened(raw_server(serving({"/v1/completions": page}, seen)))
    try:
        assert await endpoint.takes_token_ids() is takes
        assert seen == [("/v1/completions", {})]
    finally:
        await endpoint.aclose()


async def test_other_dialects_are_not_asked(raw_server: StartServer) -> None:
    seen: list[tuple[str, Any]] = []
    endpoint = await opened(raw_server(serving({}, seen)), "openai")
    try:
        assert await endpoint.takes_token_ids() is False
        assert await endpoint.tokenize_text("a") is None
        assert seen == []
    finally:
        await endpoint.aclose()


async def test_a_text_alone_is_tokenized_without_special_tokens(raw_server: StartServer) -> None:
    seen: list[tuple[str, Any]] = []
    endpoint = await opened(raw_server(serving({"/tokenize": answer({"tokens": [5, 6]})}, seen)))
    try:
        assert await endpoint.tokenize_text(" the the") == [5, 6]
        assert seen == [("/tokenize", {"model": "m", "prompt": " the the", "add_special_tokens": False})]
    finally:
        await endpoint.aclose()


async def test_llamacpp_too(raw_server: StartServer) -> None:
    seen: list[tuple[str, Any]] = []
    models = answer({"data": [{"id": "tiny", "owned_by": "llamacpp"}]})
    pages = {"/v1/models": models, "/tokenize": answer({"tokens": [5, 6]})}
    endpoint = await Endpoint.open(EndpointProfile(url=raw_server(serving(pages, seen)).url), RunClock.start())
    try:
        await endpoint.discover()
        assert await endpoint.tokenize_text(" the the") == [5, 6]
        assert seen[-1] == ("/tokenize", {"content": " the the", "add_special": False, "parse_special": True})
    finally:
        await endpoint.aclose()


def event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def piece(text: str, ids: list[int] | None, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish, "token_ids": ids, **more}
    return event({"id": "c", "model": "m", "choices": [choice]})


async def test_the_ids_of_generated_tokens_are_asked_for_and_kept_in_order(raw_server: StartServer) -> None:
    """vLLM 0.32's completion stream: ids in each choice, the prompt's in the first, several where it batched."""
    events = [
        piece("a", [11], prompt_token_ids=[1, 2]),
        piece("", [12]),
        piece("bc", [13, 14]),
        piece("", [15], "length"),
        event({"id": "c", "choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 5}}),
        DONE,
    ]
    seen: list[tuple[str, Any]] = []
    endpoint = await opened(raw_server(serving({"/v1/completions": stream(*events)}, seen)))
    try:
        body = endpoint.build_body(prompt=[1, 2], output_tokens=5, salt="s", return_token_ids=True)
        request = Request(request_id="r", session_id="s", turn=0, body=body, api="completions", wanted_input_tokens=2)
        record = await endpoint.send(request)
    finally:
        await endpoint.aclose()
    assert record.error_class is None, record.error_message
    assert seen[0][1]["return_token_ids"] is True
    assert (seen[0][1]["prompt"], seen[0][1]["cache_salt"]) == ([1, 2], "s")
    assert record.output_token_ids == [11, 12, 13, 14, 15]
    assert record.output_text == "abc"
    assert record.wanted_input_tokens == record.usage.input_tokens == 2


async def test_without_ids_there_are_none(raw_server: StartServer) -> None:
    events = [piece("a", None), piece("b", None), piece("c", None, "length"), DONE]
    endpoint = await opened(raw_server(serving({"/v1/completions": stream(*events)}, [])))
    try:
        body = endpoint.build_body(prompt=[1, 2], output_tokens=3)
        record = await endpoint.send(Request(request_id="r", session_id="s", turn=0, body=body, api="completions"))
    finally:
        await endpoint.aclose()
    assert "return_token_ids" not in body
    assert record.output_token_ids is None
    assert record.output_text == "abc"
    assert len(record.clock.chunks) == 3
