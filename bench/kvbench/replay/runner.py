"""Replay session trees: async workers that wait, build, send and record. When things are due is schedule.py's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol

from msgspec.structs import replace

from kvbench.endpoints.failures import is_retryable
from kvbench.model import Clock, Phase, Record, Request, Session, Tree, Turn
from kvbench.replay.hashed import HashPrompts
from kvbench.replay.limits import Limits
from kvbench.replay.prompts import Prompt, SessionPrompts, instance_id, salt_for
from kvbench.replay.schedule import Arrival, arrivals, backoff_ns, due_ns
from kvbench.replay.settings import RunSettings
from kvbench.traces.native import TraceFile


class Sender(Protocol):
    """The seam to an endpoint."""

    @property
    def salt_field(self) -> bool:
        """It takes a cache salt beside the prompt."""

    def body(self, prompt: Prompt, output_tokens: int | None) -> dict[str, Any]: ...
    async def send(self, request: Request) -> Record: ...


class Observer(Protocol):
    """Is told what happens, as it happens; must return at once and raise only what must stop the run."""

    def record(self, record: Record) -> None: ...
    def tree_started(self, arrival: Arrival, root_id: str) -> None: ...
    def session_ended(self) -> None: ...
    def tree_ended(self, root_id: str, complete: bool) -> None: ...


class Spending(Protocol):
    """A limit on what may be spent: waits until what a body can cost is set aside, None where that might pass it; is
    told what became of it (settle), or that it was not sent (release)."""

    async def reserve(self, body: dict[str, Any]) -> Decimal | None: ...
    def settle(self, reserved: Decimal, record: Record) -> None: ...
    def release(self, reserved: Decimal | None) -> None: ...


@dataclass(frozen=True)
class _Moment:
    """When something happened: on the run's clock, and in the trace's own time (its starts and pauses alone)."""

    ns: int
    trace_s: float


@dataclass
class _LiveTree:
    tree: Tree
    arrival: Arrival
    root_id: str
    salt: str | None
    complete: bool = True
    children: dict[tuple[str, int], list[Session]] = field(default_factory=dict)
    ended: dict[str, asyncio.Future[_Moment]] = field(default_factory=dict)


class Runner:
    """Replays `trace` on `sender` by `settings`; every attempt becomes a Record given to `observer`.

    `stop()` lets what is in flight come to its end and starts nothing more; cancelling `run()` aborts, and what was
    in flight is recorded as cancelled.
    """

    def __init__(
        self,
        trace: TraceFile,
        sender: Sender,
        settings: RunSettings,
        limits: Limits,
        observer: Observer,
        now_ns: Callable[[], int],
        run_id: str,
        *,
        resend_reasoning: bool = False,
        hashed: HashPrompts | None = None,
        spending: Spending | None = None,
    ) -> None:
        self._spending = spending
        self._trace = trace
        self._sender = sender
        self._settings = settings
        self._limits = limits
        self._observer = observer
        self._now_ns = now_ns
        self._run_id = run_id
        self._resend_reasoning = resend_reasoning
        self._hashed = hashed
        self._turns_started = 0
        self._requests = 0
        self._stopping = False
        self._stopped: asyncio.Future[None] | None = None
        self.in_flight = 0
        self.live_trees = 0
        self.trace_s = 0.0
        """The latest turn so far in the trace's own time: starts and pauses, without what answers took."""

    def stop(self) -> None:
        """Start no further turn."""
        self._stopping = True
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(None)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        self._stopped = loop.create_future()
        if self._stopping:
            self._stopped.set_result(None)
        timer = None
        if self._settings.duration_s is not None:
            timer = loop.call_later(self._settings.duration_s, self.stop)
        try:
            async with asyncio.TaskGroup() as group:
                await self._start_trees(group)
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        finally:
            if timer is not None:
                timer.cancel()

    # ------------------------------------------------------------------------------------------------- arrivals

    async def _start_trees(self, group: asyncio.TaskGroup) -> None:
        start_ns = self._now_ns()
        places = asyncio.Semaphore(self._settings.live_trees) if self._settings.live_trees is not None else None
        starts_s = [entry.start_s for entry in self._trace.tree_entries]
        first_s = min(starts_s, default=0.0)
        for arrival in arrivals(starts_s, self._settings):
            tree = self._trace.read_tree(arrival.index)
            if places is not None:
                await self._unless_stopped(places.acquire())
            began_ns = self._now_ns() if arrival.at_ns is None else start_ns + arrival.at_ns
            if not await self._until(began_ns):
                return
            began = _Moment(began_ns, tree.start_s - first_s)
            group.create_task(self._replay_tree(tree, arrival, began, places))

    async def _replay_tree(self, tree: Tree, arrival: Arrival, began: _Moment, place: asyncio.Semaphore | None) -> None:
        live = _LiveTree(
            tree=tree,
            arrival=arrival,
            root_id=instance_id(tree.root_id, arrival.cycle),
            salt=salt_for(self._settings, self._run_id, tree.root_id, arrival.cycle),
        )
        loop = asyncio.get_running_loop()
        for session in tree.sessions:
            live.ended[session.session_id] = loop.create_future()
            if session.parent is not None:
                live.children.setdefault((session.parent.session_id, session.parent.turn), []).append(session)
        root = next(s for s in tree.sessions if s.session_id == tree.root_id)
        self._observer.tree_started(arrival, live.root_id)
        self.live_trees += 1
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._replay_session(group, live, root, began))
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        finally:
            self.live_trees -= 1
            if place is not None:
                place.release()
            self._observer.tree_ended(live.root_id, live.complete)

    # ------------------------------------------------------------------------------------------------- sessions

    async def _replay_session(
        self, group: asyncio.TaskGroup, live: _LiveTree, session: Session, began: _Moment
    ) -> None:
        prompts = SessionPrompts(
            self._trace.prefixes,
            salt=live.salt,
            salt_in_text=not self._sender.salt_field,
            live=self._settings.history == "live",
            resend_reasoning=self._resend_reasoning,
            hashed=self._hashed,
            turns=session.turns,
        )
        ended = began
        last: Record | None = None
        try:
            for turn in session.turns:
                waits = [ended]
                for name in turn.after:
                    if not await self._unless_stopped(asyncio.shield(live.ended[name])):
                        live.complete = False
                        return
                    waits.append(live.ended[name].result())
                scheduled_ns = due_ns([moment.ns for moment in waits], turn.delay_s, self._settings)
                prompt = await self._prompt(prompts, turn, last)
                if not await self._until(scheduled_ns):
                    live.complete = False
                    return
                sent = await self._attempts(live, turn, prompt, scheduled_ns)
                if sent is None:
                    live.complete = False
                    return
                last = sent
                ended_ns = last.clock.end if last.clock.end is not None else self._now_ns()
                ended = _Moment(ended_ns, max(moment.trace_s for moment in waits) + turn.delay_s)
                self.trace_s = max(self.trace_s, ended.trace_s)
                if not last.ok and self._settings.history == "live":
                    self._skip(live, session, turn.turn + 1, ended)
                    self._skip_children(live, turn, ended)
                    return
                for child in live.children.get((session.session_id, turn.turn), ()):
                    group.create_task(self._replay_session(group, live, child, ended))
        finally:
            self._end(live, session, ended)

    async def _prompt(self, prompts: SessionPrompts, turn: Turn, last: Record | None) -> Prompt:
        if self._hashed is None or self._hashed.as_ids:
            return prompts.next(turn, last)
        # Encoding a long text to check it takes tenths of a second, without holding the interpreter: not in the loop.
        return await asyncio.to_thread(prompts.next, turn, last)

    def _skip(self, live: _LiveTree, session: Session, first: int, at: _Moment) -> None:
        """With live history nothing can follow a failed turn: the rest of the session are records of their own."""
        for turn in session.turns[first:]:
            request = self._request(live, turn, {}, scheduled_ns=at.ns, due=at.ns, attempt=0)
            self._observer.record(
                _not_sent(request, "skipped", "an earlier turn of the session failed, and its history is live")
            )
            self._skip_children(live, turn, at)
        self._end(live, session, at)

    def _skip_children(self, live: _LiveTree, turn: Turn, at: _Moment) -> None:
        for child in live.children.get((turn.session_id, turn.turn), ()):
            self._skip(live, child, 0, at)

    def _end(self, live: _LiveTree, session: Session, at: _Moment) -> None:
        future = live.ended[session.session_id]
        if not future.done():
            future.set_result(at)
            self._observer.session_ended()

    # -------------------------------------------------------------------------------------------------- one turn

    async def _attempts(self, live: _LiveTree, turn: Turn, prompt: Prompt, scheduled_ns: int) -> Record | None:
        """Send a turn until it is answered, cannot be, or the retries are used up; returns the final record.

        None: the run was told to stop while the turn still waited for a limit, so it was never sent.
        """
        body = self._sender.body(prompt, turn.output_tokens)
        due = scheduled_ns
        phase: Phase | None = None
        attempt = 0
        while True:
            async with self._limits.slot() as wait_ns:
                if phase is None and self._stopping:
                    return None
                reserved: Decimal | None = None
                if self._spending is not None:
                    began_ns = self._now_ns()
                    reserved = await self._spending.reserve(body)
                    wait_ns += self._now_ns() - began_ns
                    if reserved is None:
                        self.stop()
                    if phase is None and self._stopping:
                        self._spending.release(reserved)
                        return None
                    if phase is not None and reserved is None:
                        return self._stopped_retry(live, turn, scheduled_ns, due, attempt, phase)
                if phase is None:
                    phase = "warmup" if self._turns_started < self._settings.warmup else "measure"
                    self._turns_started += 1
                request = self._request(live, turn, body, scheduled_ns=scheduled_ns, due=due, attempt=attempt)
                request = replace(request, phase=phase, limit_wait_ns=wait_ns)
                record = await self._send(request)
                if self._spending is not None and reserved is not None:
                    self._spending.settle(reserved, record)
            retry = not record.ok and attempt < self._settings.retries and is_retryable(record.error_class or "")
            record = replace(record, final=not retry)
            self._observer.record(record)
            if self._hashed is not None:
                self._hashed.learn(prompt.text_tokens, record)
            if not retry:
                return record
            ended_ns = record.clock.end if record.clock.end is not None else self._now_ns()
            due = ended_ns + backoff_ns(attempt, record.retry_after_s)
            attempt += 1
            if not await self._until(due):
                return self._stopped_retry(live, turn, scheduled_ns, due, attempt, phase)

    def _stopped_retry(
        self, live: _LiveTree, turn: Turn, scheduled_ns: int, due: int, attempt: int, phase: Phase
    ) -> Record:
        live.complete = False
        request = self._request(live, turn, {}, scheduled_ns=scheduled_ns, due=due, attempt=attempt)
        record = _not_sent(replace(request, phase=phase), "cancelled", "the run was stopped before this retry")
        self._observer.record(record)
        return record

    async def _send(self, request: Request) -> Record:
        self.in_flight += 1
        try:
            return await self._sender.send(request)
        except asyncio.CancelledError:
            self._observer.record(
                replace(
                    _not_sent(request, "cancelled", "the run was aborted while this request was in flight"),
                    clock=Clock(
                        scheduled=request.scheduled_ns,
                        due=request.due_ns,
                        limit_wait_ns=request.limit_wait_ns,
                        end=self._now_ns(),
                    ),
                )
            )
            raise
        finally:
            self.in_flight -= 1

    def _request(
        self, live: _LiveTree, turn: Turn, body: dict[str, Any], *, scheduled_ns: int, due: int, attempt: int
    ) -> Request:
        session_id = instance_id(turn.session_id, live.arrival.cycle)
        self._requests += 1
        return Request(
            request_id=f"{self._run_id[-6:]}-{self._requests:06d}",
            session_id=session_id,
            turn=turn.turn,
            body=body,
            api="completions" if "prompt" in body else "chat",
            attempt=attempt,
            root_id=live.root_id,
            scheduled_ns=scheduled_ns,
            due_ns=due,
            wanted_output_tokens=turn.output_tokens,
            wanted_input_tokens=turn.input_tokens if turn.hash_ids is not None else None,
        )

    # --------------------------------------------------------------------------------------------------- waiting

    async def _until(self, at_ns: int) -> bool:
        """Sleep until `at_ns`, never less; False as soon as the run is told to stop."""
        loop = asyncio.get_running_loop()
        while not self._stopping:
            left_ns = at_ns - self._now_ns()
            if left_ns <= 0:
                return True
            if left_ns < 1_000_000:
                await asyncio.sleep(0)  # the loop's timers have a resolution of 1 ms
                continue
            timer = loop.create_future()
            handle = loop.call_later((left_ns - 500_000) / 1e9, _set, timer)
            try:
                await self._unless_stopped(timer)
            finally:
                handle.cancel()
        return False

    async def _unless_stopped(self, waited: Any) -> bool:
        """Wait for an awaitable, or for the run to be told to stop: False then."""
        assert self._stopped is not None
        task = asyncio.ensure_future(waited)
        await asyncio.wait((task, self._stopped), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
        return not self._stopping


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _not_sent(request: Request, error_class: str, message: str) -> Record:
    return Record(
        request_id=request.request_id,
        session_id=request.session_id,
        turn=request.turn,
        attempt=request.attempt,
        phase=request.phase,
        root_id=request.root_id,
        clock=Clock(scheduled=request.scheduled_ns, due=request.due_ns),
        error_class=error_class,
        error_message=message,
        wanted_output_tokens=request.wanted_output_tokens,
        wanted_input_tokens=request.wanted_input_tokens,
    )


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first real error of a group: one failing session must not be shown as a tree of exceptions."""
    leaves: Iterable[BaseException] = errors.exceptions
    for error in leaves:
        return _first(error) if isinstance(error, BaseExceptionGroup) else error
    return errors
