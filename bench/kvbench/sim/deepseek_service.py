"""DeepSeek's routes to the engine: under / and /v1, with a concurrency limit, signs of life and a balance."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from kvbench.sim import deepseek
from kvbench.sim.api import ApiError
from kvbench.sim.http import Connection, HttpRequest, chunk
from kvbench.sim.parameters import Preset
from kvbench.sim.service import Exchange, Route, Service


class DeepSeekService(Service):
    """Speaks as the DeepSeek API does."""

    def __init__(self, preset: Preset, loop: asyncio.AbstractEventLoop, **options: Any) -> None:
        super().__init__(preset, loop, **options)
        self._generations = 0

    def _dialect_routes(self) -> dict[str, tuple[str, Route]]:
        routes: dict[str, tuple[str, Route]] = {
            "/models": ("GET", self._models),
            "/chat/completions": ("POST", self._chat),
            "/user/balance": ("GET", self._balance),
        }
        return routes | {f"/v1{path}": route for path, route in routes.items()}

    def _too_many(self, limit: int) -> ApiError:
        return deepseek.too_many(limit)

    def _needs_key(self, path: str) -> bool:
        return not path.startswith("/sim/")

    def _wrong_key(self) -> bytes:
        return msgspec.json.encode(deepseek.wrong_key().body)

    def _tokenize(self, body: bytes) -> bytes:
        return deepseek.tokenize(body, self._preset)

    def _models(self, request: HttpRequest, connection: Connection) -> None:
        connection.respond(200, msgspec.json.encode(deepseek.models(self._preset)))

    def _balance(self, request: HttpRequest, connection: Connection) -> None:
        self._settle()
        connection.respond(200, msgspec.json.encode(self._account.balance()))

    def _chat(self, request: HttpRequest, connection: Connection) -> None:
        preset = self._preset
        plan = deepseek.plan_chat(bytes(request.body), preset)
        if self._ended:  # their charges are still to come
            self._settle()
        if not self._account.is_available:
            raise deepseek.no_balance()
        self._check_room()
        self._generations += 1
        if preset.insufficient_resource_every and self._generations % preset.insufficient_resource_every == 0:
            plan.output.cut(-(-plan.output.length_tokens // 2))
            plan.finish_reason = "insufficient_system_resource"
        exchange = self._start(plan, deepseek.DeepSeekAnswer, request, connection)
        if exchange.job not in self._of_job:  # answered already
            return
        if preset.keep_alive_s is not None:
            self._show_life_later(exchange, preset.keep_alive_s)
        if preset.begin_within_s is not None:
            exchange.timers["begin"] = self._loop.call_later(preset.begin_within_s, self._give_up, exchange)

    def _show_life_later(self, exchange: Exchange, every_s: float) -> None:
        exchange.timers["life"] = self._loop.call_later(every_s, self._show_life, exchange, every_s)

    def _show_life(self, exchange: Exchange, every_s: float) -> None:
        """A comment until the stream's first token, a blank line until an answer that is no stream."""
        stream = exchange.answer.plan.stream
        if exchange.first_write_ns is not None and stream:
            return
        if not exchange.head_sent:
            exchange.head_sent = True
            exchange.connection.start_stream(b"application/json")
        exchange.connection.send(chunk(b": keep-alive\n\n" if stream else b"\n"))
        self._show_life_later(exchange, every_s)

    def _give_up(self, exchange: Exchange) -> None:
        if exchange.job.scheduled_ns is None:
            exchange.connection.close()
