"""The loop that moves tokens from the engine to the sockets, and vLLM's routes to it."""

from __future__ import annotations

import asyncio
import hmac
import os
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from kvbench import __version__
from kvbench.sim.api import Answer, ApiError, Plan, plan_chat, plan_completion, tokenize
from kvbench.sim.engine import NS, Engine, Job
from kvbench.sim.http import Connection, HttpRequest
from kvbench.sim.presets import Preset, parameters
from kvbench.sim.prometheus import ServerMetrics
from kvbench.sim.timer import DeadlineTimer
from kvbench.sim.tokenizer import TOKEN_BYTES, decode_ids

_TRUTH_KEPT = 100_000


class Truth(msgspec.Struct, kw_only=True):
    """What happened to one request; `_ns` are time.monotonic_ns() of this machine, None = did not happen.

    planned_first_token_ns is the engine's own time: no scheduling noise of this machine is in it. queue_wait_ns: from
    reaching the scheduler (arrival + frontend_s) to the first step. evicted_blocks: cached blocks of others that were
    evicted to make room for this request.
    """

    request_id: str
    response_id: str
    stream: bool
    arrival_ns: int
    scheduled_ns: int | None
    planned_first_token_ns: int | None
    first_token_write_ns: int | None
    last_write_ns: int | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_wait_ns: int | None
    evicted_blocks: int
    preemptions: int
    finish_reason: str


class AnswerBytes(Protocol):
    """What a dialect makes of one request's tokens."""

    plan: Plan
    response_id: str

    @property
    def finish_reason(self) -> str: ...
    def role_event(self) -> bytes: ...
    def token_event(self, number: int, *, last: bool) -> bytes: ...
    def end_events(self, cached_tokens: int) -> bytes: ...
    def whole(self, cached_tokens: int) -> bytes: ...


Route = Callable[[HttpRequest, Connection], None]


class Exchange:
    """A generation under way: whose it is, and what is still to be written."""

    def __init__(self, connection: Connection, answer: AnswerBytes, request_id: str, job: Job) -> None:
        self.connection = connection
        self.answer = answer
        self.request_id = request_id
        self.job = job
        self.unsent: list[bytes] = []
        self.new_tokens = 0
        self.last = False
        self.last_token_ns = 0
        self.first_write_ns: int | None = None
        self.last_write_ns: int | None = None
        self.head_sent = False
        self.timers: dict[str, asyncio.TimerHandle] = {}


class Service:
    """Answers requests from one engine; `api_key` None = no key is needed. A dialect's class adds the routes."""

    def __init__(
        self,
        preset: Preset,
        loop: asyncio.AbstractEventLoop,
        *,
        time_scale: float = 1.0,
        api_key: str | None = None,
        truth_fd: int | None = None,
    ) -> None:
        self._preset = preset
        self._loop = loop
        self._engine = Engine(preset, trace_time_scale=time_scale)
        self._metrics = ServerMetrics(preset)
        self._timer = DeadlineTimer(loop, self._advance)
        self._api_key = api_key
        self._truth: deque[bytes] = deque(maxlen=_TRUTH_KEPT)
        self._truth_fd = truth_fd
        self._of_job: dict[Job, Exchange] = {}
        self._of_connection: dict[Connection, Exchange] = {}
        self._started = int(time.time())
        self._routes: dict[str, tuple[str, Route]] = {
            "/sim/truth": ("GET", self._render_truth),
            "/sim/parameters": ("GET", self._render_parameters),
            "/sim/tokenize": ("POST", self._render_tokens),
            **self._dialect_routes(),
        }

    def _dialect_routes(self) -> dict[str, tuple[str, Route]]:
        """Method and handler by path."""
        raise NotImplementedError

    def _needs_key(self, path: str) -> bool:
        raise NotImplementedError

    def _wrong_key(self) -> bytes:
        """The body of a 401."""
        raise NotImplementedError

    def _tokenize(self, body: bytes) -> bytes:
        """Token ids (four bytes each) of a prompt or a chat, as a generation would see it."""
        raise NotImplementedError

    def _ended(self, exchange: Exchange) -> None:
        """The exchange is over, complete or not; its connection is not yet free for the next."""
        for timer in exchange.timers.values():
            timer.cancel()

    def close(self) -> None:
        self._timer.close()

    def handle(self, request: HttpRequest, connection: Connection) -> None:
        method, route = self._routes.get(request.path, ("", None))
        if route is None:
            connection.respond(404, b'{"detail":"Not Found"}')
        elif request.method != method:
            connection.respond(405, b'{"detail":"Method Not Allowed"}')
        elif self._needs_key(request.path) and not self._allowed(request):
            connection.respond(401, self._wrong_key())
        else:
            try:
                route(request, connection)
            except ApiError as error:
                connection.respond(error.status, msgspec.json.encode(error.body))

    def disconnected(self, connection: Connection) -> None:
        exchange = self._of_connection.pop(connection, None)
        if exchange is None:
            return
        now_ns = time.monotonic_ns()
        del self._of_job[exchange.job]
        self._engine.abort(exchange.job, now_ns)
        self._ended(exchange)
        self._metrics.aborted()
        self._log(exchange, "abort")
        self._advance()

    def _allowed(self, request: HttpRequest) -> bool:
        if self._api_key is None:
            return True
        given = request.headers.get("authorization", "")
        return hmac.compare_digest(given.encode(), f"Bearer {self._api_key}".encode())

    # ---- generation

    def _start(
        self,
        plan: Plan,
        answer_of: Callable[[Plan, Preset, str], AnswerBytes],
        request: HttpRequest,
        connection: Connection,
    ) -> Exchange:
        request_id = request.headers.get("x-request-id") or uuid.uuid4().hex
        job = self._engine.submit(plan.prompt, plan.output, salt=plan.salt, now_ns=request.arrival_ns)
        exchange = Exchange(connection, answer_of(plan, self._preset, request_id), request_id, job)
        self._of_job[job] = self._of_connection[connection] = exchange
        if plan.stream:
            exchange.head_sent = True
            connection.start_stream()
        self._timer.arm(self._engine.next_ns())
        return exchange

    def _advance(self) -> None:
        """Write what the engine has sampled by now: one write a stream, whatever a late wake-up has gathered."""
        now_ns = time.monotonic_ns()
        ready: dict[Exchange, None] = {}
        for token in self._engine.run_until(now_ns):
            exchange = self._of_job.get(token.job)
            if exchange is None:
                continue
            ready[exchange] = None
            exchange.new_tokens += 1
            exchange.last, exchange.last_token_ns = token.last, token.at_ns
            if exchange.answer.plan.stream:
                if token.number == 0 and exchange.answer.plan.chat:
                    exchange.unsent.append(exchange.answer.role_event())
                exchange.unsent.append(exchange.answer.token_event(token.number, last=token.last))
        # First tokens first: their lateness would be read as TTFT, that of the others is lost in the step's length.
        for exchange in sorted(ready, key=lambda exchange: exchange.first_write_ns is not None):
            self._write(exchange)
        self._timer.arm(self._engine.next_ns())

    def _write(self, exchange: Exchange) -> None:
        job, answer = exchange.job, exchange.answer
        if exchange.last:
            # Answering may at once start the connection's next request: this one must be out of the books by then.
            del self._of_job[job], self._of_connection[exchange.connection]
        now_ns = time.monotonic_ns()
        if exchange.first_write_ns is None:
            exchange.first_write_ns = now_ns
            self._metrics.first_token(job, now_ns)
        else:
            self._metrics.inter_token.observe((now_ns - (exchange.last_write_ns or now_ns)) / NS)
        for _ in range(exchange.new_tokens - 1):  # written together after a late wake-up
            self._metrics.inter_token.observe(0.0)
        exchange.new_tokens, exchange.last_write_ns = 0, now_ns
        if exchange.last:
            self._metrics.finished(job, exchange.last_token_ns, now_ns)
            self._ended(exchange)
        if answer.plan.stream:
            if exchange.last:
                exchange.unsent.append(answer.end_events(job.cached_tokens))
            data = b"".join(exchange.unsent)
            exchange.unsent.clear()
            exchange.connection.send(data, last=exchange.last)
        elif exchange.last:
            whole = answer.whole(job.cached_tokens)
            if exchange.head_sent:
                exchange.connection.send(whole, last=True)
            else:
                exchange.connection.respond(200, whole)
        if exchange.last:
            self._log(exchange, answer.finish_reason)

    def _log(self, exchange: Exchange, finish_reason: str) -> None:
        job = exchange.job
        truth = Truth(
            request_id=exchange.request_id,
            response_id=exchange.answer.response_id,
            stream=exchange.answer.plan.stream,
            arrival_ns=job.arrival_ns,
            scheduled_ns=job.scheduled_ns,
            planned_first_token_ns=job.first_token_ns,
            first_token_write_ns=exchange.first_write_ns,
            last_write_ns=exchange.last_write_ns,
            prompt_tokens=job.prompt_tokens,
            cached_tokens=job.cached_tokens,
            output_tokens=job.sampled,
            queue_wait_ns=None if job.scheduled_ns is None else job.scheduled_ns - job.ready_ns,
            evicted_blocks=job.evicted_blocks,
            preemptions=job.preemptions,
            finish_reason=finish_reason,
        )
        line = msgspec.json.encode(truth) + b"\n"
        self._truth.append(line)
        if self._truth_fd is not None:
            os.write(self._truth_fd, line)

    def _render_truth(self, request: HttpRequest, connection: Connection) -> None:
        connection.respond(200, b"".join(self._truth), "application/x-ndjson")

    def _render_parameters(self, request: HttpRequest, connection: Connection) -> None:
        rows = parameters(self._preset)
        connection.respond(200, msgspec.json.encode({"preset": self._preset.name, "parameters": rows}))

    def _render_tokens(self, request: HttpRequest, connection: Connection) -> None:
        tokens = self._tokenize(bytes(request.body))
        answer = {
            "count": len(tokens) // TOKEN_BYTES,
            "max_model_len": self._preset.max_model_len,
            "tokens": decode_ids(tokens),
            "token_strs": None,
        }
        connection.respond(200, msgspec.json.encode(answer))


class VllmService(Service):
    """Speaks as vLLM's OpenAI-compatible server does."""

    def _dialect_routes(self) -> dict[str, tuple[str, Route]]:
        return {
            "/health": ("GET", lambda _, connection: connection.respond(200, b"")),
            "/version": ("GET", self._version),
            "/metrics": ("GET", self._render_metrics),
            "/v1/models": ("GET", self._models),
            "/v1/chat/completions": ("POST", lambda *args: self._generate(plan_chat, *args)),
            "/v1/completions": ("POST", lambda *args: self._generate(plan_completion, *args)),
            "/tokenize": ("POST", self._render_tokens),
            "/reset_prefix_cache": ("POST", self._reset),
        }

    def _needs_key(self, path: str) -> bool:
        return path.startswith("/v1/")

    def _wrong_key(self) -> bytes:
        return b'{"error":"Unauthorized"}'

    def _generate(self, plan_of: Callable[[bytes, Preset], Plan], request: HttpRequest, connection: Connection) -> None:
        self._start(plan_of(bytes(request.body), self._preset), Answer, request, connection)

    def _version(self, request: HttpRequest, connection: Connection) -> None:
        connection.respond(200, msgspec.json.encode({"version": f"kvbench-sim {__version__}"}))

    def _models(self, request: HttpRequest, connection: Connection) -> None:
        model: dict[str, Any] = {
            "id": self._preset.model,
            "object": "model",
            "created": self._started,
            "owned_by": "kvbench-sim",
            "root": self._preset.model,
            "parent": None,
            "max_model_len": self._preset.max_model_len,
        }
        connection.respond(200, msgspec.json.encode({"object": "list", "data": [model]}))

    def _render_metrics(self, request: HttpRequest, connection: Connection) -> None:
        self._advance()
        text = self._metrics.render(self._engine)
        connection.respond(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")

    def _tokenize(self, body: bytes) -> bytes:
        return tokenize(body, self._preset)

    def _reset(self, request: HttpRequest, connection: Connection) -> None:
        self._advance()
        connection.respond(200, msgspec.json.encode({"reset": self._engine.reset_cache()}))
