"""The one seam to a live endpoint: `send(Request) -> Record`. What the network does is never an exception."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import msgspec

from kvbench import __version__
from kvbench.endpoints.answers import Response, shortened, to_record
from kvbench.endpoints.balance import PATH as BALANCE_PATH
from kvbench.endpoints.balance import Balances, read_balances
from kvbench.endpoints.clock import RunClock
from kvbench.endpoints.dialects import deepseek, llamacpp, openai, vllm
from kvbench.endpoints.dialects.openai import Prompt
from kvbench.endpoints.discovery import EndpointInfo, Page, discover
from kvbench.endpoints.failures import error_text
from kvbench.endpoints.metrics import ServerMetrics
from kvbench.endpoints.profile import EndpointProfile
from kvbench.endpoints.proxied import ProxiedTransport
from kvbench.endpoints.secrets import Redactor, Secret
from kvbench.endpoints.stamped import StampedBody, Timing, TransportFault
from kvbench.endpoints.transport import StampedTransport
from kvbench.errors import ConfigError, FailedError
from kvbench.model import Api, Message, Record, Request, Warning

_CONTROL_TIMEOUT_S = 30.0
"""Longest wait for an answer that is not generated: models, version, metrics, tokenize."""

_TEMPLATE_FIELDS = ("chat_template", "chat_template_kwargs")
"""Fields of extra_body that change how a prompt is rendered, so /tokenize gets them too."""


class Endpoint:
    """An open endpoint; belongs to the event loop it was opened in. `warnings` are for the run's own list."""

    def __init__(self, profile: EndpointProfile, clock: RunClock, key: Secret | None) -> None:
        self.profile = profile
        self.info: EndpointInfo | None = None
        self.warnings: list[Warning] = []
        self._clock = clock
        self._decoding = asyncio.Lock()
        self._redact = Redactor([*profile.headers.values(), *([key.reveal()] if key else [])])
        self._own_headers = dict(profile.headers)
        if key is not None:
            self._own_headers["authorization"] = f"Bearer {key.reveal()}"
        self._transport: StampedTransport | ProxiedTransport
        if profile.proxy is None:
            self._transport = StampedTransport(clock, profile.ca_file)
        else:
            self._transport = ProxiedTransport(clock, profile.proxy, profile.ca_file)
            self.warnings.append(
                Warning(
                    code="coarse_clock",
                    message="requests go through a proxy: arrivals are dated by the event loop, not by the kernel",
                    advice="leave proxy out of the profile where the endpoint can be reached directly",
                )
            )
        self._headers = {"user-agent": f"kvbench/{__version__}", "accept": "*/*", "accept-encoding": "identity"}
        self._urls: dict[str, httpx.URL] = {}
        timeouts = profile.timeouts
        self._timeout = {"connect": timeouts.connect_s, "read": timeouts.idle_s, "write": None, "pool": None}
        control_s = min(_CONTROL_TIMEOUT_S, timeouts.idle_s)
        self._control_timeout = {**self._timeout, "read": control_s}
        self._api_base = profile.root_url + "/v1"
        self._send_headers = {**self._headers, **self._own_headers, "content-type": "application/json"}

    @classmethod
    async def open(cls, profile: EndpointProfile, clock: RunClock) -> Endpoint:
        """Read the key and make a client; connects to nothing yet. ConfigError for a bad URL, key or CA file."""
        for url in (profile.url, *profile.metrics_urls):
            try:
                httpx.URL(url)
            except httpx.InvalidURL as error:
                raise ConfigError(f"{url.partition('?')[0]}: not a valid URL: {error}") from None
        key, warnings = profile.read_key()
        endpoint = cls(profile, clock, key)
        endpoint.warnings += warnings
        return endpoint

    async def aclose(self) -> None:
        """Close all connections."""
        await self._transport.aclose()

    async def discover(self, model: str | None = None) -> EndpointInfo:
        """Find out what is served and how it is spoken to; sets the dialect and the path of everything after.

        ConfigError (wrong key, model or path) or FailedError (cannot be reached).
        """
        found = await discover(self.profile, model or self.profile.model, self._page, self._redact)
        self.info, self._api_base = found.info, found.api_base
        self.warnings += found.warnings
        return found.info

    # ------------------------------------------------------------------------------------------------- generation

    @property
    def salt_field(self) -> bool:
        """Whether a cache salt has a field of its own, beside the prompt."""
        return self._dialect == "vllm"

    @property
    def resends_reasoning(self) -> bool:
        """Whether what the model thought has to be sent back with its answer, in a prompt with tools."""
        return self._dialect == "deepseek"

    @property
    def _dialect(self) -> str:
        if self.info is not None:
            return self.info.dialect
        return self.profile.dialect

    def build_body(
        self,
        *,
        messages: Sequence[Message] | None = None,
        prompt: Prompt | None = None,
        tools: Sequence[dict[str, Any]] = (),
        output_tokens: int | None = None,
        salt: str | None = None,
        free_output: bool = False,
        model: str | None = None,
        thinking: bool | None = None,
        return_token_ids: bool = False,
    ) -> dict[str, Any]:
        """The body of one request in the endpoint's dialect: chat where `messages` are given, else completions.

        thinking: whether the model is to, where the dialect can say so; None leaves it to the endpoint.
        return_token_ids: the ids of the generated tokens are wanted (vLLM). The profile's
        extra_body comes last and may replace what kvbench chose.
        """
        api: Api = "chat" if messages is not None else "completions"
        if self._dialect == "deepseek":
            build = functools.partial(deepseek.build_body, thinking=thinking)
        else:
            build = functools.partial(vllm.build_body if self._dialect == "vllm" else openai.build_body)
        body = build(
            model=model or (self.info.model if self.info is not None else self.profile.model),
            api=api,
            stream=self.profile.stream,
            messages=messages,
            prompt=prompt,
            tools=tools,
            output_tokens=output_tokens,
            salt=salt,
            free_output=free_output,
        )
        if return_token_ids:
            body["return_token_ids"] = True
        return body | self.profile.extra_body

    async def send(self, request: Request) -> Record:
        """Send one request and record what came of it. Never raises for what the network or the server does.

        CancelledError passes, after the connection was closed.
        """
        path = "/chat/completions" if request.api == "chat" else "/completions"
        body = StampedBody()
        response = await self._exchange(
            "POST",
            self._api_base + path,
            body,
            content=_encoded(request.body),
            headers={**self._send_headers, "x-request-id": _header_safe(request.request_id)},
            timeout=self._timeout,
        )
        # One answer between two polls: when many streams end together, those that still run are read in time.
        async with self._decoding:
            limit_s = deepseek.WAIT_LIMIT_S if self._dialect == "deepseek" else None
            record = to_record(request, response, self._clock.now_ns(), self._redact, limit_s)
            await asyncio.sleep(0)
        return record

    async def _exchange(
        self,
        method: str,
        url: str,
        body: StampedBody,
        *,
        content: bytes | None,
        headers: dict[str, str],
        timeout: dict[str, float | None],
    ) -> Response:
        """One request and its whole answer, straight through the transport: httpx's client would add the cookies of
        other sessions, and half of the time that a request costs before its first byte leaves."""
        extensions = {"kvbench.sink": body, "kvbench.total_s": self.profile.timeouts.total_s, "timeout": timeout}
        parsed = self._urls.get(url)
        if parsed is None:
            parsed = self._urls[url] = httpx.URL(url)
        request = httpx.Request(method, parsed, content=content, headers=headers, extensions=extensions)
        answer: httpx.Response | None = None
        fault: TransportFault | None = None
        try:
            answer = await self._transport.handle_async_request(request)
            try:
                async for _ in answer.stream:  # type: ignore[union-attr]
                    pass
            finally:
                await answer.aclose()
        except TransportFault as error:
            fault = error
        timing: Timing | None = fault.timing if answer is None and fault is not None else None
        if answer is None:
            return Response(body, timing, fault=fault)
        return Response(body, answer.extensions["kvbench.timing"], answer.status_code, answer.headers, fault)

    # ---------------------------------------------------------------------------------------------------- control

    async def _page(self, url: str, payload: dict[str, Any] | None = None) -> Page:
        """GET, or POST of `payload`; the key and the profile's headers go to the endpoint's own origin only."""
        headers = {**self._headers, **(self._own_headers if _origin(url) == _origin(self.profile.url) else {})}
        body = StampedBody()
        content = None if payload is None else _encoded(payload)
        if content is not None:
            headers["content-type"] = "application/json"
        response = await self._exchange(
            "GET" if content is None else "POST",
            url,
            body,
            content=content,
            headers=headers,
            timeout=self._control_timeout,
        )
        return Page(url, response.status, response.headers, body.content(), response.fault)

    async def get_text(self, url: str) -> str:
        """The text at `url` (/metrics, say); FailedError where there is none."""
        page = await self._page(url)
        if page.fault is not None or page.status != 200:
            why = str(page.fault) if page.fault is not None else f"HTTP {page.status}: {error_text(page.body)}"
            raise FailedError(shortened(f"{page.shown_url}: {why}", self._redact))
        return page.body.decode("utf-8", "replace")

    async def balance(self) -> Balances:
        """The account's total balance now, by currency; FailedError where it cannot be read."""
        page = await self._page(self.profile.root_url + BALANCE_PATH)
        if page.fault is not None or page.status != 200:
            why = str(page.fault) if page.fault is not None else f"HTTP {page.status}: {error_text(page.body)}"
            raise FailedError(shortened(f"{page.shown_url}: {why}", self._redact))
        try:
            return read_balances(page.json())
        except ValueError as error:
            raise FailedError(shortened(f"{page.shown_url}: {error}", self._redact)) from None

    async def scrape(self) -> ServerMetrics | None:
        """The server's own counters now, all its metrics URLs as one; None where it has none of vLLM's.

        FailedError where a URL that answered at discovery does no longer.
        """
        urls = () if self.info is None else self.info.metrics_urls
        if not urls:
            return None
        texts = await asyncio.gather(*[self.get_text(url) for url in urls])
        try:
            return ServerMetrics.total([ServerMetrics.from_text(text) for text in texts])
        except ValueError as error:
            raise FailedError(shortened(f"{', '.join(urls)}: no Prometheus text: {error}", self._redact)) from None

    async def tokenize(
        self,
        messages: Sequence[Message] | None = None,
        tools: Sequence[dict[str, Any]] = (),
        model: str | None = None,
        prompt: Prompt | None = None,
        thinking: bool | None = None,
    ) -> list[int] | None:
        """The token ids of a prompt as the server would see it; None where the server has no /tokenize.

        A prompt of token ids is its own answer. thinking: as the request has it (DeepSeek). FailedError where the
        server refuses or cannot be reached.
        """
        if prompt is not None and not isinstance(prompt, str):
            return list(prompt)
        if self._is_simulated_deepseek:
            body = deepseek.build_body(
                model=model, api="chat", stream=False, messages=messages or (), tools=tools, thinking=thinking
            )
            return await self._token_ids(body, deepseek.SIMULATOR_TOKENIZE_PATH)
        if self.info is not None and self.info.server == llamacpp.SERVER:
            return await self._llamacpp_ids(messages, tools, prompt)
        if self._dialect != "vllm":
            return None
        served = model or (self.info.model if self.info is not None else self.profile.model)
        payload = vllm.tokenize_body(model=served, messages=messages, prompt=prompt, tools=tools)
        if messages is not None:
            payload |= {k: v for k, v in self.profile.extra_body.items() if k in _TEMPLATE_FIELDS}
        return await self._token_ids(payload)

    async def _llamacpp_ids(
        self, messages: Sequence[Message] | None, tools: Sequence[dict[str, Any]], prompt: str | None
    ) -> list[int] | None:
        if messages is not None:
            payload = llamacpp.template_body(messages, tools)
            payload |= {k: v for k, v in self.profile.extra_body.items() if k in _TEMPLATE_FIELDS}
            page = await self._page(self.profile.root_url + "/apply-template", payload)
            rendered = page.json()
            prompt = rendered.get("prompt") if page.status == 200 and isinstance(rendered, dict) else None
            if not isinstance(prompt, str):
                return None
        return await self._token_ids(llamacpp.tokenize_body(prompt or ""))

    @property
    def _is_simulated_deepseek(self) -> bool:
        server = self.info.server if self.info is not None else None
        return self._dialect == "deepseek" and server is not None and server.startswith(deepseek.SIMULATOR)

    async def _token_ids(self, payload: dict[str, Any], path: str = "/tokenize") -> list[int] | None:
        page = await self._page(self.profile.root_url + path, payload)
        if page.status in (404, 405, 501):
            return None
        value = page.json()
        if page.fault is None and page.status == 200 and isinstance(value, dict):
            tokens = value.get("tokens")
            if isinstance(tokens, list) and all(isinstance(t, int) for t in tokens):
                return tokens
        why = str(page.fault) if page.fault is not None else f"HTTP {page.status}: {error_text(page.body)}"
        raise FailedError(shortened(f"{page.shown_url}: {why}", self._redact))

    async def tokenize_text(self, text: str) -> list[int] | None:
        """The token ids of a text alone, without the special tokens a prompt would get; None, errors: as tokenize."""
        if self.info is not None and self.info.server == llamacpp.SERVER:
            return await self._token_ids(llamacpp.tokenize_body(text) | {"add_special": False})
        if self._is_simulated_deepseek:
            return await self._token_ids({"prompt": text}, deepseek.SIMULATOR_TOKENIZE_PATH)
        if self._dialect != "vllm":
            return None
        served = self.info.model if self.info is not None else self.profile.model
        payload = vllm.tokenize_body(model=served, messages=None, prompt=text) | {"add_special_tokens": False}
        return await self._token_ids(payload)

    async def takes_token_ids(self) -> bool:
        """Whether /completions is there and takes a prompt of token ids: vLLM's does."""
        if self._dialect != "vllm":
            return False
        # An empty request to a path that is there is refused as such, and generates nothing.
        return (await self._page(self._api_base + "/completions", {})).status in (400, 422)


def _encoded(body: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(body)
    except (UnicodeEncodeError, OverflowError):
        # Lone surrogates and integers beyond 64 bits are JSON, but not msgspec's.
        return json.dumps(body, ensure_ascii=True, separators=(",", ":")).encode()


def _header_safe(text: str) -> str:
    """Ids come from traces and may hold anything."""
    return text if text.isascii() and text.isprintable() else quote(text, safe="/:@ ")


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
