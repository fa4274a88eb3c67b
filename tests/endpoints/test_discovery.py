"""Discovery against raw servers that answer by path, as real ones do."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from kvbench.endpoints.client import Endpoint
from kvbench.endpoints.clock import RunClock
from kvbench.endpoints.discovery import EndpointInfo
from kvbench.endpoints.profile import DEFAULT_KEY_ENV, EndpointProfile
from kvbench.errors import ConfigError, FailedError, KvbenchError
from kvbench.model import Request

from .conftest import Peer, RawServer
from .helpers import MESSAGES, answer

StartServer = Callable[..., RawServer]
Pages = dict[str, bytes]

NOT_FOUND = answer({"detail": "Not Found"}, "404 Not Found")


def models(*names: str, owner: str = "vllm", **more: Any) -> bytes:
    return answer({"object": "list", "data": [{"id": n, "owned_by": owner, **more} for n in names]})


METRICS = answer(
    b'vllm:cache_config_info{block_size="32",num_gpu_blocks="512"} 1.0\nvllm:num_requests_running{} 0\n',
    content_type="text/plain",
)
VLLM: Pages = {
    "/v1/models": models("tiny", max_model_len=8192),
    "/version": answer({"version": "0.32.0"}),
    "/metrics": METRICS,
}


def by_path(pages: Pages, seen: list[tuple[str, str]] | None = None) -> Callable[[Peer], None]:
    def handler(peer: Peer) -> None:
        while True:
            head, body = peer.request()
            if not head:
                return
            path = head.split(b" ")[1].decode()
            if seen is not None:
                seen.append((path, head.decode() + "\n\n" + body.decode()))
            peer.send(pages.get(path, pages.get("*", NOT_FOUND)))

    return handler


async def discover(url: str, model: str | None = None, **profile: Any) -> tuple[EndpointInfo, Endpoint]:
    endpoint = await Endpoint.open(msgspec.convert({"url": url, **profile}, EndpointProfile), RunClock.start())
    try:
        return await endpoint.discover(model), endpoint
    finally:
        await endpoint.aclose()


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DEFAULT_KEY_ENV, raising=False)


@pytest.mark.parametrize("suffix", ["", "/v1"])
async def test_vllm(raw_server: StartServer, suffix: str) -> None:
    info, endpoint = await discover(raw_server(by_path(VLLM)).url + suffix)
    assert info.dialect == "vllm"
    assert info.model == "tiny"
    assert info.models == ("tiny",)
    assert info.server == "vLLM 0.32.0"
    assert info.block_size == 32
    assert info.capacity_tokens == 511 * 32
    assert info.max_model_len == 8192
    assert info.salt_field
    assert len(info.metrics_urls) == 1
    assert endpoint.salt_field
    assert endpoint.warnings == []
    body = endpoint.build_body(messages=MESSAGES, output_tokens=3, salt="s")
    assert (body["model"], body["min_tokens"], body["cache_salt"]) == ("tiny", 3, "s")


async def test_the_simulated_endpoint_names_itself(raw_server: StartServer) -> None:
    pages = VLLM | {
        "/v1/models": models("sim", owner="kvbench-sim"),
        "/version": answer({"version": "kvbench-sim 0.1.0"}),
    }
    info, _ = await discover(raw_server(by_path(pages)).url)
    assert (info.dialect, info.server) == ("vllm", "kvbench-sim 0.1.0")


async def test_a_plain_openai_server(raw_server: StartServer) -> None:
    info, endpoint = await discover(raw_server(by_path({"/v1/models": models("m", owner="me")})).url)
    assert (info.dialect, info.server, info.salt_field) == ("openai", None, False)
    assert (info.block_size, info.capacity_tokens, info.max_model_len, info.metrics_urls) == (None, None, None, ())
    body = endpoint.build_body(messages=MESSAGES, output_tokens=3)
    assert "min_tokens" not in body
    assert await endpoint.tokenize(MESSAGES) is None
    assert await endpoint.scrape() is None


async def test_a_path_without_v1(raw_server: StartServer) -> None:
    seen: list[tuple[str, str]] = []
    whole = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}
    pages = {"/openai/models": models("m"), "/openai/chat/completions": answer(whole)}
    endpoint = await Endpoint.open(
        EndpointProfile(url=raw_server(by_path(pages, seen)).url + "/openai"), RunClock.start()
    )
    try:
        assert (await endpoint.discover()).model == "m"
        body = endpoint.build_body(messages=MESSAGES)
        record = await endpoint.send(Request(request_id="q", session_id="s", turn=0, body=body))
    finally:
        await endpoint.aclose()
    assert record.output_text == "hi"
    assert seen[-1][0] == "/openai/chat/completions"


async def test_the_profile_decides_the_dialect(raw_server: StartServer) -> None:
    assert (await discover(raw_server(by_path(VLLM)).url, dialect="openai"))[0].dialect == "openai"
    pages = {"/v1/models": models("m", owner="me")}
    assert (await discover(raw_server(by_path(pages)).url, dialect="vllm"))[0].dialect == "vllm"


@pytest.mark.parametrize("missing", ["/version", "owner"])
async def test_vllm_is_known_by_version_and_owner_together(raw_server: StartServer, missing: str) -> None:
    """Without /version it may be a gateway that knows nothing of min_tokens and cache_salt."""
    pages = dict(VLLM)
    if missing == "owner":
        pages["/v1/models"] = models("tiny", owner="someone")
    else:
        del pages["/version"]
    assert (await discover(raw_server(by_path(pages)).url))[0].dialect == "openai"


async def test_v1_is_preferred_where_both_paths_answer(raw_server: StartServer) -> None:
    pages = {"/v1/models": models("right"), "/models": models("wrong")}
    assert (await discover(raw_server(by_path(pages)).url))[0].model == "right"


async def failure(url: str, model: str | None = None, **profile: Any) -> KvbenchError:
    with pytest.raises(KvbenchError) as caught:
        await discover(url, model, **profile)
    assert "\n" not in caught.value.message
    return caught.value


async def test_several_models_are_listed(raw_server: StartServer) -> None:
    error = await failure(raw_server(by_path({"/v1/models": models("a", "b")})).url)
    assert isinstance(error, ConfigError)
    assert "a, b" in error.message
    assert "--model" in (error.hint or "")


async def test_a_wrong_model_lists_those_served_the_nearest_first(raw_server: StartServer) -> None:
    server = raw_server(by_path({"/v1/models": models(*[f"m{i}" for i in range(50)], "deepseek-flash")}))
    error = await failure(server.url, "deepseek-falsh")
    assert isinstance(error, ConfigError)
    assert "'deepseek-falsh' is not served; served: deepseek-flash, m0" in error.message
    assert "31 more" in error.message
    assert (await discover(server.url, "m7"))[0].model == "m7"


async def test_no_model(raw_server: StartServer) -> None:
    assert "no model" in (await failure(raw_server(by_path({"/v1/models": models()})).url)).message


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
async def test_a_refused_key_names_its_variable(
    raw_server: StartServer, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-very-secret-123")
    # The key lies across the place where the text is cut.
    page = answer({"error": {"message": "x" * 190 + " sk-very-secret-123"}}, status)
    server = raw_server(by_path({"*": page}))
    error = await failure(server.url, key_env="SOME_KEY")
    assert isinstance(error, ConfigError)
    assert "SOME_KEY" in (error.hint or "")
    assert "sk-very" not in error.message
    assert status[:3] in error.message
    assert DEFAULT_KEY_ENV in ((await failure(server.url)).hint or "")


async def test_a_refused_key_tells_more_than_a_missing_page(raw_server: StartServer) -> None:
    pages = {"/models": answer({"error": {"message": "no key"}}, "401 Unauthorized")}
    assert "401" in (await failure(raw_server(by_path(pages)).url)).message


async def test_a_web_page_is_a_wrong_path(raw_server: StartServer) -> None:
    page = answer(b"<html>\n<title>Welcome</title></html>", content_type="text/html")
    error = await failure(raw_server(by_path({"*": page})).url)
    assert isinstance(error, ConfigError)
    assert "text/html" in error.message
    assert "/v1" in (error.hint or "")


async def test_not_found_is_a_wrong_path(raw_server: StartServer) -> None:
    server = raw_server(by_path({}))
    for model in (None, "m"):
        error = await failure(server.url + "/wrong", model)
        assert isinstance(error, ConfigError)
        assert "404" in error.message
        assert "/v1" in (error.hint or "")


async def test_a_server_that_lists_no_models_but_takes_requests(raw_server: StartServer) -> None:
    pages = {"/v1/chat/completions": answer({"error": {"message": "messages: field required"}}, "422 No")}
    server = raw_server(by_path(pages))
    info, _ = await discover(server.url, "m")
    assert (info.model, info.models, info.dialect) == ("m", (), "openai")
    assert isinstance(await failure(server.url), ConfigError)


async def test_a_redirect_is_named(raw_server: StartServer) -> None:
    page = answer(b"", "301 Moved", extra="location: https://elsewhere.example/v1/models\r\n")
    error = await failure(raw_server(by_path({"*": page})).url)
    assert isinstance(error, ConfigError)
    assert "https://elsewhere.example/v1/models" in error.message


@pytest.mark.parametrize("status", ["503 Loading", "500 Oops", "429 Slow"])
async def test_a_server_that_cannot_now(raw_server: StartServer, status: str) -> None:
    error = await failure(raw_server(by_path({"*": answer(b"", status)})).url)
    assert isinstance(error, FailedError)
    assert status[:3] in error.message


async def test_refused_dns_tls_and_timeouts_say_what_to_do(raw_server: StartServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    refused = await failure(f"http://127.0.0.1:{port}")
    assert isinstance(refused, FailedError)
    assert str(port) in refused.message
    assert "running" in (refused.hint or "")
    dns = await failure("http://no-such-host.invalid")
    assert isinstance(dns, FailedError)
    assert "no-such-host.invalid" in dns.message
    silent = await failure(
        raw_server(lambda peer: peer.request() and peer.request() and None).url, timeouts={"idle_s": 0.2}
    )
    assert isinstance(silent, FailedError)
    assert "loading" in (silent.hint or "")
    ssh = await failure(raw_server(by_path({"*": b"SSH-2.0-x\r\n\r\n"})).url)
    assert isinstance(ssh, FailedError)


async def test_metrics_of_several_servers_are_one(raw_server: StartServer) -> None:
    seen: list[tuple[str, str]] = []
    other = raw_server(by_path({"/m": METRICS}, seen))
    server = raw_server(by_path(VLLM))
    info, endpoint = await discover(
        server.url,
        metrics_urls=[server.url + "/metrics", other.url + "/m", other.url + "/gone"],
        headers={"x-key": "for-the-endpoint-only"},
    )
    assert info.capacity_tokens == 2 * 511 * 32
    assert info.metrics_urls == (server.url + "/metrics", other.url + "/m")
    assert [w.code for w in endpoint.warnings] == ["metrics_missing"]
    assert "/gone" in endpoint.warnings[0].message
    # headers and key go to the endpoint's own origin only
    assert all("for-the-endpoint-only" not in head for _, head in seen)


async def test_tokenize_and_scrape(raw_server: StartServer) -> None:
    seen: list[tuple[str, str]] = []
    pages = VLLM | {"/tokenize": answer({"count": 3, "max_model_len": 8192, "tokens": [1, 2, 3]})}
    server = raw_server(by_path(pages, seen))
    profile = EndpointProfile(
        url=server.url, extra_body={"chat_template_kwargs": {"thinking": False}, "temperature": 0}
    )
    endpoint = await Endpoint.open(profile, RunClock.start())
    try:
        await endpoint.discover()
        tools = [{"type": "function", "function": {"name": "f"}}]
        assert await endpoint.tokenize(MESSAGES, tools) == [1, 2, 3]
        assert json.loads(seen[-1][1].split("\n\n", 1)[1]) == {
            "model": "tiny",
            "messages": MESSAGES,
            "add_generation_prompt": True,
            "tools": tools,
            "chat_template_kwargs": {"thinking": False},
        }
        assert await endpoint.tokenize(prompt="hi") == [1, 2, 3]
        assert await endpoint.tokenize(prompt=(7, 8)) == [7, 8]
        metrics = await endpoint.scrape()
        assert metrics is not None
        assert metrics.running == 0
        pages["/metrics"] = answer(b"", "500 Oops")
        with pytest.raises(FailedError, match="/metrics: HTTP 500"):
            await endpoint.scrape()
        pages["/tokenize"] = answer({"error": {"message": "no template"}}, "400 Bad")
        with pytest.raises(FailedError, match="no template"):
            await endpoint.tokenize(MESSAGES)
        del pages["/tokenize"]
        assert await endpoint.tokenize(MESSAGES) is None
    finally:
        await endpoint.aclose()
