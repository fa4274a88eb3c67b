"""vLLM's routes to the engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from kvbench import __version__
from kvbench.sim.api import Answer, ApiError, Plan, plan_chat, plan_completion, tokenize, too_many
from kvbench.sim.http import Connection, HttpRequest
from kvbench.sim.parameters import Preset
from kvbench.sim.prometheus import render
from kvbench.sim.service import Route, Service

_STARTED = int(time.time())


class VllmService(Service):
    """Speaks as vLLM's OpenAI-compatible server does."""

    def _dialect_routes(self) -> dict[str, tuple[str, Route]]:
        routes: dict[str, tuple[str, Route]] = {
            "/health": ("GET", lambda _, connection: connection.respond(200, b"")),
            "/version": ("GET", self._version),
            "/v1/models": ("GET", self._models),
            "/v1/chat/completions": ("POST", lambda *args: self._generate(plan_chat, *args)),
            "/v1/completions": ("POST", lambda *args: self._generate(plan_completion, *args)),
            "/tokenize": ("POST", self._render_tokens),
            "/reset_prefix_cache": ("POST", self._reset),
        }
        if self._preset.tells_metrics:
            routes["/metrics"] = ("GET", self._render_metrics)
        return routes

    def _needs_key(self, path: str) -> bool:
        return path.startswith("/v1/")

    def _wrong_key(self) -> bytes:
        return b'{"error":"Unauthorized"}'

    def _too_many(self, limit: int) -> ApiError:
        return too_many(limit)

    def _generate(self, plan_of: Callable[[bytes, Preset], Plan], request: HttpRequest, connection: Connection) -> None:
        plan = plan_of(bytes(request.body), self._preset)
        self._check_room()
        self._start(plan, Answer, request, connection)

    def _version(self, request: HttpRequest, connection: Connection) -> None:
        connection.respond(200, msgspec.json.encode({"version": f"kvbench-sim {__version__}"}))

    def _models(self, request: HttpRequest, connection: Connection) -> None:
        model: dict[str, Any] = {
            "id": self._preset.model,
            "object": "model",
            "created": _STARTED,
            "owned_by": "kvbench-sim",
            "root": self._preset.model,
            "parent": None,
            "max_model_len": self._preset.max_model_len,
        }
        connection.respond(200, msgspec.json.encode({"object": "list", "data": [model]}))

    def _render_metrics(self, request: HttpRequest, connection: Connection) -> None:
        self._settle()
        text = render(self._preset, list(zip(self._metrics, self._cluster.engines, strict=True)))
        connection.respond(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")

    def _tokenize(self, body: bytes) -> bytes:
        return tokenize(body, self._preset)

    def _reset(self, request: HttpRequest, connection: Connection) -> None:
        self._settle()
        connection.respond(200, msgspec.json.encode({"reset": self._cluster.reset_cache()}))
