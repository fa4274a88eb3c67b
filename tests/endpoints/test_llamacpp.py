"""llama.cpp's way to tell token ids, and connections that a server closes between two requests."""

from __future__ import annotations

import json
from collections.abc import Callable

from kvbench.endpoints.client import Endpoint
from kvbench.endpoints.clock import RunClock
from kvbench.endpoints.profile import EndpointProfile
from kvbench.model import Record, Request

from .conftest import Peer, RawServer
from .helpers import DONE, MESSAGES, answer, event, stream

StartServer = Callable[..., RawServer]

MODELS = answer({"data": [{"id": "tiny", "owned_by": "llamacpp"}]})
NOT_FOUND = answer({"error": {"message": "File Not Found", "code": 404}}, "404 Not Found")


def serving_paths(pages: dict[str, bytes], seen: list[tuple[str, bytes]]) -> Callable[[Peer], None]:
    def handler(peer: Peer) -> None:
        while True:
            head, body = peer.request()
            if not head:
                return
            path = head.split(b" ")[1].decode()
            seen.append((path, body))
            peer.send(pages.get(path, NOT_FOUND))

    return handler


async def test_token_ids_come_from_its_template_and_then_its_tokenizer(raw_server: StartServer) -> None:
    seen: list[tuple[str, bytes]] = []
    pages = {
        "/v1/models": MODELS,
        "/apply-template": answer({"prompt": "<|user|>hi<|end|>"}),
        "/tokenize": answer({"tokens": [5, 6, 7]}),
    }
    server = raw_server(serving_paths(pages, seen))
    profile = EndpointProfile(url=server.url, extra_body={"chat_template_kwargs": {"a": 1}, "temperature": 0})
    endpoint = await Endpoint.open(profile, RunClock.start())
    tools = [{"type": "function", "function": {"name": "f"}}]
    try:
        info = await endpoint.discover()
        assert (info.dialect, info.server) == ("openai", "llama.cpp")
        assert await endpoint.tokenize(MESSAGES, tools) == [5, 6, 7]
        asked = {path: json.loads(body) for path, body in seen if body}
        assert asked["/apply-template"] == {"messages": MESSAGES, "tools": tools, "chat_template_kwargs": {"a": 1}}
        assert asked["/tokenize"] == {"content": "<|user|>hi<|end|>", "add_special": True, "parse_special": True}
        assert await endpoint.tokenize(prompt="text") == [5, 6, 7]
        assert json.loads(seen[-1][1])["content"] == "text"
        del pages["/apply-template"]
        assert await endpoint.tokenize(MESSAGES) is None
    finally:
        await endpoint.aclose()


async def test_a_record_says_that_its_request_was_sent_again(raw_server: StartServer) -> None:
    good = stream(event("stop", content="a"), DONE)

    def closes_with_the_second_request(peer: Peer) -> None:
        peer.request()
        peer.send(good)
        peer.request()

    server = raw_server(closes_with_the_second_request)
    endpoint = await Endpoint.open(EndpointProfile(url=server.url), RunClock.start())

    async def one(number: int) -> Record:
        body = endpoint.build_body(messages=MESSAGES)
        return await endpoint.send(Request(request_id=f"q{number}", session_id="s", turn=number, body=body))

    try:
        first, second = await one(0), await one(1)
    finally:
        await endpoint.aclose()
    assert (first.ok, first.clock.retried_stale) == (True, False)
    assert (second.ok, second.clock.retried_stale) == (True, True)
    assert second.clock.connect_ns is not None
    assert server.connections == 2
