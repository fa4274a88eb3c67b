"""The loop that moves tokens from the engine to the sockets; a dialect's class adds the routes."""

from __future__ import annotations

import asyncio
import heapq
import hmac
import itertools
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from kvbench.sim.account import Account, Bill
from kvbench.sim.api import ApiError, Plan
from kvbench.sim.cluster import Cluster
from kvbench.sim.costs import NS
from kvbench.sim.http import Connection, HttpRequest, chunk
from kvbench.sim.job import Job, Token
from kvbench.sim.misreports import misreport
from kvbench.sim.parameters import Preset
from kvbench.sim.prometheus import ServerMetrics
from kvbench.sim.settings import parameters
from kvbench.sim.timer import DeadlineTimer
from kvbench.sim.tokenizer import TOKEN_BYTES, decode_ids
from kvbench.sim.truth import Lateness, TruthLog, truth_of

_RENDERED_AT_A_TIME = 32
"""Chunks made ready between two looks at the sockets: a fraction of a millisecond."""
_STEP_NS_PER_REQUEST = 6_000
"""What computing a step takes for each request in it, roughly."""
_LATEST_OF_STEP = 0.75
"""Part of a step's length within which the step after it is computed: its chunks must not be late for that."""


class AnswerBytes(Protocol):
    """What a dialect makes of one request's tokens."""

    plan: Plan
    response_id: str

    @property
    def finish_reason(self) -> str: ...
    def role_event(self) -> bytes: ...
    def token_events(self, start: int, stop: int, *, last: bool) -> bytes: ...
    def end_events(self, cached_tokens: int) -> bytes: ...
    def whole(self, cached_tokens: int) -> bytes: ...


Route = Callable[[HttpRequest, Connection], None]


class Exchange:
    """A generation under way: whose it is, and how far it has been written."""

    def __init__(self, connection: Connection, answer: AnswerBytes, request_id: str, job: Job) -> None:
        self.connection = connection
        self.answer = answer
        self.request_id = request_id
        self.job = job
        self.faults: tuple[str, ...] = ()
        self.first_write_ns: int | None = None
        self.last_write_ns: int | None = None
        self.head_sent = False
        self.timers: dict[str, asyncio.TimerHandle] = {}


class _Due:
    """A chunk that is to leave, and its bytes once they are ready."""

    __slots__ = ("data", "exchange", "token")

    def __init__(self, exchange: Exchange, token: Token) -> None:
        self.exchange = exchange
        self.token = token
        self.data: bytes | None = None


class Service:
    """Answers requests from one cluster of engines; `api_key` None = no key is needed."""

    def __init__(
        self,
        preset: Preset,
        loop: asyncio.AbstractEventLoop,
        *,
        time_scale: float = 1.0,
        api_key: str | None = None,
        truth_fd: int | None = None,
        on_truth_failure: Callable[[OSError], None] = lambda _: None,
    ) -> None:
        self._preset = preset
        self._loop = loop
        self._cluster = Cluster(preset, trace_time_scale=time_scale)
        self._metrics = [ServerMetrics() for _ in self._cluster.engines]
        self._account = Account(preset)
        self._timer = DeadlineTimer(loop, self._advance)
        self._api_key = api_key
        self._truth = TruthLog(truth_fd, on_truth_failure)
        self._lateness = Lateness()
        self._of_job: dict[Job, Exchange] = {}
        self._of_connection: dict[Connection, Exchange] = {}
        self._due: list[tuple[int, int, _Due]] = []
        self._order = itertools.count()
        self._to_render: deque[_Due] = deque()
        self._ended: list[Exchange] = []
        self._rendering = False
        self._advancing = False
        self._routes: dict[str, tuple[str, Route]] = {
            "/sim/truth": ("GET", self._render_truth),
            "/sim/parameters": ("GET", self._render_parameters),
            "/sim/lateness": ("GET", self._render_lateness),
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

    def _too_many(self, limit: int) -> ApiError:
        raise NotImplementedError

    def _tokenize(self, body: bytes) -> bytes:
        """Token ids (four bytes each) of a prompt or a chat, as a generation would see it."""
        raise NotImplementedError

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
        exchange = self._of_connection.get(connection)
        if exchange is None:
            return
        self._settle()
        self._cluster.abort(exchange.job, time.monotonic_ns())
        self._metrics[exchange.job.replica].aborted()
        self._forget(exchange)
        self._close_books(exchange, "abort")
        self._advance()

    def _allowed(self, request: HttpRequest) -> bool:
        if self._api_key is None:
            return True
        given = request.headers.get("authorization", "")
        return hmac.compare_digest(given.encode(), f"Bearer {self._api_key}".encode())

    # ---- generation

    def _check_room(self) -> None:
        limit = self._preset.max_in_flight
        if limit is not None and len(self._of_job) >= limit:
            raise self._too_many(limit)

    def _start(
        self,
        plan: Plan,
        answer_of: Callable[[Plan, Preset, str], AnswerBytes],
        request: HttpRequest,
        connection: Connection,
    ) -> Exchange:
        request_id = request.headers.get("x-request-id") or uuid.uuid4().hex
        faults = misreport(plan, self._account, self._preset)
        job = self._cluster.submit(plan.prompt, plan.output, salt=plan.salt, now_ns=request.arrival_ns)
        exchange = Exchange(connection, answer_of(plan, self._preset, request_id), request_id, job)
        exchange.faults = faults
        self._of_job[job] = self._of_connection[connection] = exchange
        if plan.stream:
            exchange.head_sent = True
            connection.start_stream()
        self._advance()
        return exchange

    def _advance(self) -> None:
        """Send what is due by now and let the engines go on."""
        if self._advancing:  # an answer's end has brought the next request of its connection
            return
        self._advancing = True
        try:
            self._timer.arm(self._go_on())
        finally:
            self._advancing = False
        if self._to_render and not self._rendering:
            self._rendering = True
            self._loop.call_soon(self._render_some)

    def _go_on(self) -> int | None:
        """When to go on next. While chunks leave one after the other, the engines' next step is not computed between
        two of them, unless that would make the step itself late."""
        while True:
            now_ns = self._send_due()
            next_due_ns = self._due[0][0] if self._due else None
            event_ns = self._cluster.next_ns()
            if event_ns is None or event_ns > now_ns:
                # Where the loop was late by a whole step, the engine has ended what was sent only now.
                self._settle_books()
                return min((at for at in (next_due_ns, event_ns) if at is not None), default=None)
            takes_ns = self._cluster.running * _STEP_NS_PER_REQUEST
            behind = now_ns - event_ns > self._cluster.step_ns * _LATEST_OF_STEP
            if next_due_ns is not None and next_due_ns < now_ns + takes_ns and not behind:
                return next_due_ns
            self._run_engines(now_ns)

    def _run_engines(self, now_ns: int) -> None:
        for token in self._cluster.run_until(now_ns):
            self._metrics[token.job.replica].generation_tokens += token.stop - token.number
        for token in self._cluster.take_planned():
            exchange = self._of_job.get(token.job)
            if exchange is not None:
                due = _Due(exchange, token)
                heapq.heappush(self._due, (token.at_ns, next(self._order), due))
                if exchange.answer.plan.stream:
                    self._to_render.append(due)
        self._settle_books()

    def _settle_books(self) -> None:
        if self._ended:
            unsettled = [exchange for exchange in self._ended if exchange.job.last_token_ns is None]
            for exchange in self._ended:
                if exchange.job.last_token_ns is not None:
                    self._metrics[exchange.job.replica].finished(exchange.job, exchange.last_write_ns or 0)
                    self._close_books(exchange, exchange.answer.finish_reason)
            self._ended = unsettled

    def _settle(self) -> None:
        """Bring engines and books up to now, for whoever asks about them."""
        self._run_engines(time.monotonic_ns())

    def _send_due(self) -> int:
        """The time when nothing more was due."""
        now_ns = time.monotonic_ns()
        while self._due and self._due[0][0] <= now_ns:
            due = heapq.heappop(self._due)[2]
            if due.token.job in self._of_job:
                self._send(due, now_ns)
            now_ns = time.monotonic_ns()
        return now_ns

    def _render_some(self) -> None:
        """Get chunks ready before they are due, a few at a time: what comes in must not wait for it."""
        self._rendering = False
        for _ in range(min(_RENDERED_AT_A_TIME, len(self._to_render))):
            due = self._to_render.popleft()
            if due.data is None:
                due.data = self._render(due.exchange, due.token)
        self._advance()

    def _render(self, exchange: Exchange, token: Token) -> bytes:
        answer = exchange.answer
        events = answer.token_events(token.number, token.stop, last=token.last)
        if token.number == 0 and answer.plan.chat:
            events = answer.role_event() + events
        if token.last:
            events += answer.end_events(self._reported(exchange.job))
        return chunk(events, last=token.last)

    def _send(self, due: _Due, now_ns: int) -> None:
        exchange, token = due.exchange, due.token
        if exchange.answer.plan.stream:
            if due.data is None:
                due.data = self._render(exchange, token)
            self._lateness.note(now_ns - token.at_ns, first=token.number == 0)
            exchange.connection.send(due.data)
        due.data = b""
        metrics = self._metrics[token.job.replica]
        if exchange.first_write_ns is None:
            exchange.first_write_ns = now_ns
            metrics.first_token(token.job, now_ns)
        else:
            metrics.inter_token.observe((now_ns - (exchange.last_write_ns or now_ns)) / NS)
        exchange.last_write_ns = now_ns
        if token.last:
            self._end(exchange)

    def _end(self, exchange: Exchange) -> None:
        """Answering may at once start the connection's next request: this one must be out of the way by then. Its
        books are closed when the engine has come as far."""
        self._forget(exchange)
        self._ended.append(exchange)
        if exchange.answer.plan.stream:
            exchange.connection.end()
            return
        whole = exchange.answer.whole(self._reported(exchange.job))
        if exchange.head_sent:
            exchange.connection.send(chunk(whole, last=True))
            exchange.connection.end()
        else:
            exchange.connection.respond(200, whole)

    def _forget(self, exchange: Exchange) -> None:
        del self._of_job[exchange.job], self._of_connection[exchange.connection]
        for timer in exchange.timers.values():
            timer.cancel()

    def _reported(self, job: Job) -> int:
        """Cached tokens as usage has them."""
        return job.cached_tokens - job.cached_tokens % self._preset.reported_granularity_tokens

    def _close_books(self, exchange: Exchange, finish_reason: str) -> None:
        """The exchange is over, complete or not."""
        truth = truth_of(
            exchange.job,
            request_id=exchange.request_id,
            response_id=exchange.answer.response_id,
            stream=exchange.answer.plan.stream,
            first_write_ns=exchange.first_write_ns,
            last_write_ns=exchange.last_write_ns,
            reported_tokens=self._reported(exchange.job),
            finish_reason=finish_reason,
            bill=self._bill(exchange, complete=finish_reason != "abort"),
        )
        self._truth.add(truth)

    def _bill(self, exchange: Exchange, *, complete: bool) -> Bill | None:
        """None where nothing has a price, or nothing was begun."""
        job = exchange.job
        if not self._account.has_prices or job.scheduled_ns is None:
            return None
        reported = self._reported(job)
        return self._account.charge(
            hit_tokens=reported,
            miss_tokens=job.prompt_tokens - reported,
            output_tokens=job.sampled,
            at_ns=job.arrival_ns,
            faults=exchange.faults,
            overcount_tokens=exchange.answer.plan.overcount_tokens if complete else 0,
            input_overcount_tokens=exchange.answer.plan.input_overcount_tokens if complete else 0,
        )

    # ---- what it tells of itself

    def _render_truth(self, request: HttpRequest, connection: Connection) -> None:
        self._settle()
        connection.respond(200, self._truth.render(), "application/x-ndjson")

    def _render_parameters(self, request: HttpRequest, connection: Connection) -> None:
        rows = parameters(self._preset)
        connection.respond(200, msgspec.json.encode({"preset": self._preset.name, "parameters": rows}))

    def _render_lateness(self, request: HttpRequest, connection: Connection) -> None:
        connection.respond(200, msgspec.json.encode(self._lateness.summary()))

    def _render_tokens(self, request: HttpRequest, connection: Connection) -> None:
        tokens = self._tokenize(bytes(request.body))
        answer: dict[str, Any] = {
            "count": len(tokens) // TOKEN_BYTES,
            "max_model_len": self._preset.max_model_len,
            "tokens": decode_ids(tokens),
            "token_strs": None,
        }
        connection.respond(200, msgspec.json.encode(answer))
