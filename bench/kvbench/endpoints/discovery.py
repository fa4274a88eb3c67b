"""What an endpoint serves and how it is spoken to, asked for once before a run, all questions at the same time."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from kvbench.endpoints.answers import shortened
from kvbench.endpoints.dialects import deepseek, llamacpp, vllm
from kvbench.endpoints.failures import FAILURES, error_text
from kvbench.endpoints.metrics import CacheConfig, ServerMetrics
from kvbench.endpoints.profile import EndpointProfile, key_hint
from kvbench.endpoints.secrets import Redactor
from kvbench.endpoints.stamped import TransportFault
from kvbench.errors import ConfigError, FailedError, KvbenchError
from kvbench.model import Warning

_MODELS_SHOWN = 20
_TEXT_SHOWN = 200
_HINTS = {
    "refused": "is the server running, and on this port?",
    "dns": "check the host name",
    "tls": "name the signing CA in the profile (ca_file), or use http:// if the server speaks no TLS",
    "connect_timeout": "check host, port and firewall, or raise timeouts.connect_s in a profile",
    "idle_timeout": "the server accepts connections but does not answer: is it still loading?",
    "protocol_error": "check scheme and port: does an HTTP server listen there? (https:// where it speaks TLS)",
    "local": "raise the limit of open files (ulimit -n)",
}


class EndpointInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What discovery found. None = the server does not say."""

    dialect: Literal["openai", "vllm", "deepseek"]
    model: str
    models: tuple[str, ...] = ()
    server: str | None = None
    """Name and version, as in "vLLM 0.32.0"."""
    block_size: int | None = None
    """Tokens in a block of the prefix cache."""
    capacity_tokens: int | None = None
    """Tokens the KV cache holds."""
    max_model_len: int | None = None
    """Longest prompt and output together, tokens."""
    in_flight_limit: int | None = None
    """Most requests at a time, from the profile or as the provider documents it."""
    salt_field: bool = False
    """cache_salt has a field of its own, beside the prompt."""
    metrics_urls: tuple[str, ...] = ()
    """Where vLLM's own counters can be read."""
    cache: CacheConfig | None = None


class Discovered(NamedTuple):
    info: EndpointInfo
    api_base: str
    """URL that /chat/completions is appended to."""
    warnings: list[Warning]


class Page(NamedTuple):
    """One fetched page; status None = no answer, then `fault` says why."""

    url: str
    status: int | None
    headers: Mapping[str, str]
    body: bytes
    fault: TransportFault | None

    @property
    def shown_url(self) -> str:
        return self.url.partition("?")[0]

    def json(self) -> Any:
        """The decoded body; None where it is no JSON."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, RecursionError, ValueError):
            return None


class Fetch(Protocol):
    async def __call__(self, url: str, payload: dict[str, Any] | None = None) -> Page: ...


async def discover(profile: EndpointProfile, model: str | None, fetch: Fetch, redact: Redactor) -> Discovered:
    """Ask for models (with and without /v1), version and metrics; decide dialect and model.

    ConfigError: key refused, no such path, model not served or not chosen. FailedError: cannot be reached, or the
    server fails.
    """
    root = profile.root_url
    bases: tuple[str, ...] = (root + "/v1", root)
    metrics_urls = profile.metrics_urls
    pages_of_servers: tuple[str, ...] = (f"{root}/version",)
    if profile.dialect == "deepseek":
        # Both paths are right; the documented one is without /v1. Nothing else is there to be asked for.
        bases = tuple(sorted(bases, key=lambda base: base != profile.url))
        pages_of_servers = ()
    elif not metrics_urls:
        metrics_urls = (root + "/metrics",)
    urls = (*[f"{base}/models" for base in bases], *pages_of_servers, *metrics_urls)
    pages = await asyncio.gather(*[fetch(url) for url in urls])
    lists, rest = pages[:2], pages[2:]
    version = _version(rest[0]) if pages_of_servers else None
    metrics_pages = rest[len(pages_of_servers) :]
    try:
        base, entries = await _served(profile, model, bases, lists, fetch, redact)
    except KvbenchError as error:
        hint = error.hint
        raise type(error)(shortened(error.message, redact), hint=hint and redact.text(hint)) from None
    dialect = profile.dialect
    if dialect == "auto" and {entry.get("owned_by") for entry in entries} == {deepseek.OWNER}:
        dialect = "deepseek"  # an aggregator lists other makers' models beside these
    names = tuple(entry["id"] for entry in entries)
    if model is None and len(names) == 1:
        model = names[0]  # its aliases below are no choice to be made
    if dialect == "deepseek":
        names = deepseek.with_aliases(names)
    chosen = _choose(model, names)
    entry = next((entry for entry in entries if entry["id"] == chosen), {})
    owner = entry.get("owned_by")
    if dialect == "auto":
        dialect = "vllm" if version is not None and owner in vllm.OWNERS else "openai"
    metrics, answering = _metrics(metrics_pages)
    cache = metrics.cache if metrics is not None else None
    info = EndpointInfo(
        dialect=dialect,
        model=chosen,
        models=names,
        server=_server_of_deepseek(lists) if dialect == "deepseek" and version is None else _server(owner, version),
        block_size=None if cache is None else cache.block_size,
        capacity_tokens=None if cache is None else cache.capacity_tokens,
        max_model_len=_first_int(entry, "max_model_len", "context_length", "context_window"),
        in_flight_limit=_in_flight_limit(profile, dialect, chosen),
        salt_field=dialect == "vllm",
        metrics_urls=answering,
        cache=cache,
    )
    return Discovered(info, base, _metrics_warnings(profile, metrics_pages, answering))


async def _served(
    profile: EndpointProfile,
    model: str | None,
    bases: tuple[str, ...],
    lists: list[Page],
    fetch: Fetch,
    redact: Redactor,
) -> tuple[str, list[dict[str, Any]]]:
    """The API's base URL and the models it lists (none, where it lists none but takes requests)."""
    for base, page in zip(bases, lists, strict=True):
        entries = _entries(page)
        if entries is not None:
            return base, entries
    if all(page.status in (404, 405) for page in lists) and model is not None:
        # No list of models is no proof of a wrong path. An empty request to the right one is refused as such.
        path = "/chat/completions" if profile.api == "chat" else "/completions"
        for base in bases:
            if (await fetch(base + path, {})).status in (400, 422):
                return base, []
    raise _not_found(profile, lists, redact)


def _entries(page: Page) -> list[dict[str, Any]] | None:
    value = page.json() if page.fault is None and page.status == 200 else None
    data = value.get("data") if isinstance(value, dict) else None
    if not isinstance(data, list):
        return None
    return [entry for entry in data if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


def _not_found(profile: EndpointProfile, lists: list[Page], redact: Redactor) -> KvbenchError:
    """Why no list of models came, by the most telling of the answers."""
    answered = [page for page in lists if page.status is not None]
    if not answered:
        fault = lists[0].fault
        kind: str = "protocol_error" if fault is None else fault.kind
        why = f"{profile.url}: {FAILURES[kind].sentence} ({fault})"
        return FailedError(why, hint=_HINTS.get(kind, "try again; see the server's log"))

    def telling(page: Page) -> int:
        status = page.status or 0
        return (
            0 if status in (401, 403) else 1 if status >= 500 or status == 429 else 2 if status not in (404, 405) else 3
        )

    page = min(answered, key=telling)
    status, url = page.status or 0, page.shown_url
    text = redact.text(error_text(page.body))[:_TEXT_SHOWN]
    if status in (401, 403):
        source = f" (key from {profile.key_source})" if profile.key_source is not None else " (no key was sent)"
        return ConfigError(f"{url}: the API key is refused, HTTP {status}{source}: {text}", hint=key_hint(profile))
    if status >= 500 or status == 429:
        return FailedError(
            f"{url}: HTTP {status}: {text}", hint="is the server still loading, or overloaded? try again"
        )
    if 300 <= status < 400:
        where = page.headers.get("location", "nowhere")
        return ConfigError(f"{url}: redirects to {where}; redirects are not followed", hint="give the final URL")
    path_hint = "check the path of the URL: the part before /v1/chat/completions, with or without /v1"
    if 200 <= status < 300:
        kind = page.headers.get("content-type", "no content-type").partition(";")[0]
        return ConfigError(f"{url}: answers with {kind}, not with a list of models: {text}", hint=path_hint)
    return ConfigError(f"{url}: HTTP {status}: {text}", hint=path_hint if status in (404, 405) else None)


def _in_flight_limit(profile: EndpointProfile, dialect: str, model: str) -> int | None:
    if profile.limits.in_flight is not None:
        return profile.limits.in_flight
    return deepseek.in_flight_limit(model) if dialect == "deepseek" else None


def _choose(model: str | None, names: tuple[str, ...]) -> str:
    """The model to use; ConfigError where that cannot be decided."""
    if model is None:
        if not names:
            raise ConfigError("the endpoint lists no model", hint="name one: --model M")
        raise ConfigError(f"the endpoint serves {len(names)} models: {_listed(names)}", hint="choose one: --model M")
    if names and model not in names:
        close = difflib.get_close_matches(model, names, n=3)
        first = [*close, *[n for n in names if n not in close]]
        gone = " (retired on 2026-07-24)" if model in deepseek.RETIRED else ""
        raise ConfigError(
            f"model {model!r} is not served{gone}; served: {_listed(first)}", hint="choose one: --model M"
        )
    return model


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MODELS_SHOWN
    return ", ".join(names[:_MODELS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _version(page: Page) -> str | None:
    value = page.json() if page.fault is None and page.status == 200 else None
    version = value.get("version") if isinstance(value, dict) else None
    return version if isinstance(version, str) and version else None


def _server(owner: Any, version: str | None) -> str | None:
    if owner == "vllm":
        return f"vLLM {version}" if version else "vLLM"
    if owner == llamacpp.OWNER:
        return llamacpp.SERVER
    return version if owner in vllm.OWNERS else None


def _server_of_deepseek(pages: list[Page]) -> str:
    simulated = any(page.headers.get("server", "").startswith(deepseek.SIMULATOR) for page in pages)
    return f"{deepseek.SIMULATOR} (DeepSeek API)" if simulated else "DeepSeek API"


def _metrics(pages: list[Page]) -> tuple[ServerMetrics | None, tuple[str, ...]]:
    """The servers' counters, and the URLs that have vLLM's."""
    found: list[ServerMetrics] = []
    urls: list[str] = []
    for page in pages:
        if page.fault is not None or page.status != 200:
            continue
        try:
            metrics = ServerMetrics.from_text(page.body.decode("utf-8", "replace"))
        except ValueError:
            continue
        if metrics != ServerMetrics():
            found.append(metrics)
            urls.append(page.url)
    return (ServerMetrics.total(found) if found else None), tuple(urls)


def _metrics_warnings(profile: EndpointProfile, pages: list[Page], answering: tuple[str, ...]) -> list[Warning]:
    """Only URLs that were asked for are missed."""
    missing = [page for page in pages if page.url in profile.metrics_urls and page.url not in answering]
    return [
        Warning(
            code="metrics_missing",
            message=f"{page.shown_url}: no vLLM metrics there "
            f"({page.fault if page.fault is not None else f'HTTP {page.status}'})",
            advice="check metrics_urls in the endpoint profile",
        )
        for page in missing
    ]


def _first_int(entry: dict[str, Any], *fields: str) -> int | None:
    for field in fields:
        value = entry.get(field)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
