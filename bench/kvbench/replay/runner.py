"""Replay session trees: async workers that wait, build, send and record. When things are due is schedule.py's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from kvbench.model import Record, Session, Tree, Turn
from kvbench.replay.attempts import Attempts, Due, Sender, Spending
from kvbench.replay.hashed import HashPrompts
from kvbench.replay.limits import Limits
from kvbench.replay.prompts import Prompt, SessionPrompts, instance_id, salt_for
from kvbench.replay.schedule import Arrival, arrivals, due_ns
from kvbench.replay.settings import RunSettings
from kvbench.replay.stopping import Stop
from kvbench.traces.native import TraceFile


class Observer(Protocol):
    """Is told what happens, as it happens; must return at once and raise only what must stop the run."""

    def record(self, record: Record) -> None: ...
    def tree_started(self, arrival: Arrival, root_id: str) -> None: ...
    def session_ended(self) -> None: ...
    def tree_ended(self, root_id: str, complete: bool) -> None: ...


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
        self._trace = trace
        self._sender = sender
        self._settings = settings
        self._observer = observer
        self._now_ns = now_ns
        self._run_id = run_id
        self._resend_reasoning = resend_reasoning
        self._hashed = hashed
        self._stop = Stop(now_ns)
        self._attempts = Attempts(
            sender,
            limits,
            self._stop,
            observer.record,
            now_ns,
            run_id,
            retries=settings.retries,
            warmup=settings.warmup,
            hashed=hashed,
            spending=spending,
        )
        self.live_trees = 0
        self.trace_s = 0.0
        """The latest turn so far in the trace's own time: starts and pauses, without what answers took."""

    @property
    def in_flight(self) -> int:
        return self._attempts.in_flight

    def stop(self) -> None:
        """Start no further turn."""
        self._stop.stop()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        self._stop.begin()
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
                await self._stop.unless(places.acquire())
            began_ns = self._now_ns() if arrival.at_ns is None else start_ns + arrival.at_ns
            if not await self._stop.until(began_ns):
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
                    if not await self._stop.unless(asyncio.shield(live.ended[name])):
                        live.complete = False
                        return
                    waits.append(live.ended[name].result())
                scheduled_ns = due_ns([moment.ns for moment in waits], turn.delay_s, self._settings)
                prompt = await self._prompt(prompts, turn, last)
                if not await self._stop.until(scheduled_ns):
                    live.complete = False
                    return
                sent = await self._attempts.send(self._due(live, turn, scheduled_ns), prompt)
                if sent is None or sent.error_class == "cancelled":
                    live.complete = False
                if sent is None:
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
            why = "an earlier turn of the session failed, and its history is live"
            self._attempts.skip(self._due(live, turn, at.ns), why)
            self._skip_children(live, turn, at)
        self._end(live, session, at)

    def _skip_children(self, live: _LiveTree, turn: Turn, at: _Moment) -> None:
        for child in live.children.get((turn.session_id, turn.turn), ()):
            self._skip(live, child, 0, at)

    def _due(self, live: _LiveTree, turn: Turn, scheduled_ns: int) -> Due:
        return Due(turn, live.root_id, live.arrival.cycle, scheduled_ns)

    def _end(self, live: _LiveTree, session: Session, at: _Moment) -> None:
        future = live.ended[session.session_id]
        if not future.done():
            future.set_result(at)
            self._observer.session_ended()


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first real error of a group: one failing session must not be shown as a tree of exceptions."""
    leaves: Iterable[BaseException] = errors.exceptions
    for error in leaves:
        return _first(error) if isinstance(error, BaseExceptionGroup) else error
    return errors
