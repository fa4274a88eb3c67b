"""Replay session trees: async workers that wait, build, send and record. When things are due is schedule.py's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from kvbench.model import Record, Session, Tree, Turn
from kvbench.replay.attempts import Attempts, Due, Sender, Spending
from kvbench.replay.hashed import HashPrompts
from kvbench.replay.limits import Limits
from kvbench.replay.opening import Begin, Opening, opening, start_point_s
from kvbench.replay.prompts import Prompt, SessionPrompts, instance_id, salt_for
from kvbench.replay.schedule import SECOND_NS, Arrival, arrivals, due_ns
from kvbench.replay.settings import RunSettings
from kvbench.replay.stopping import Stop
from kvbench.traces.native import TraceFile


class Observer(Protocol):
    """Is told what happens, as it happens; must return at once and raise only what must stop the run."""

    def record(self, record: Record) -> None: ...
    def tree_started(self, arrival: Arrival, root_id: str) -> None: ...
    def session_ended(self) -> None: ...
    def tree_ended(self, root_id: str, complete: bool) -> None: ...
    def measuring(self, at_ns: int) -> None:
        """Trees opened at their start points go on from now; not called where none are."""


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
    warm: dict[str, tuple[SessionPrompts, Record | None]] = field(default_factory=dict)
    """Of sessions under way at the start point: their prompts so far, and what their warm-up turn came to."""


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
        self._timer: asyncio.TimerHandle | None = None
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
        self._stop.begin()
        if self._settings.rules is None:
            self._stop_after_duration()
        try:
            async with asyncio.TaskGroup() as group:
                await self._start_trees(group)
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _stop_after_duration(self) -> None:
        if self._settings.duration_s is not None:
            self._timer = asyncio.get_running_loop().call_later(self._settings.duration_s, self.stop)

    # ------------------------------------------------------------------------------------------------- arrivals

    async def _start_trees(self, group: asyncio.TaskGroup) -> None:
        start_ns = self._now_ns()
        places = asyncio.Semaphore(self._settings.live_trees) if self._settings.live_trees is not None else None
        starts_s = [entry.start_s for entry in self._trace.tree_entries]
        first_s = min(starts_s, default=0.0)
        coming = arrivals(starts_s, self._settings)
        if self._settings.rules is not None and places is not None:
            await self._open_midway(group, coming, places)
        for arrival in coming:
            tree = self._trace.read_tree(arrival.index)
            if places is not None:
                await self._stop.unless(places.acquire())
            began_ns = self._now_ns() if arrival.at_ns is None else start_ns + arrival.at_ns
            if not await self._stop.until(began_ns):
                return
            live = self._open(tree, arrival)
            root = next(s for s in tree.sessions if s.session_id == tree.root_id)
            began = _Moment(began_ns, tree.start_s - first_s)
            group.create_task(self._replay_tree(live, [(root, 0, began)], places))

    async def _open_midway(
        self, group: asyncio.TaskGroup, coming: Iterator[Arrival], places: asyncio.Semaphore
    ) -> None:
        """As many trees as are kept live, each from its start point on; before that, what their sessions under way
        have sent last is sent as warm-up, all of it, and then they go on together."""
        settings = self._settings
        opened: list[tuple[_LiveTree, Opening]] = []
        for arrival in islice(coming, settings.live_trees):
            tree = self._trace.read_tree(arrival.index)
            at_s = start_point_s(tree, arrival, settings.seed, settings.max_pause_s)
            opened.append((self._open(tree, arrival), opening(tree, at_s, settings.max_pause_s)))
        async with asyncio.TaskGroup() as warming:
            for live, opens in opened:
                for begin in opens.begins:
                    if begin.warm:
                        warming.create_task(self._warm_up(live, begin))
        start_ns = self._now_ns()
        if not self._stop.stopped:
            self._observer.measuring(start_ns)
            self._stop_after_duration()

        def moment(since_s: float) -> _Moment:
            return _Moment(start_ns + round(since_s * settings.time_scale * SECOND_NS), 0.0)

        for live, opens in opened:
            for name, since_s in opens.done.items():
                live.ended[name].set_result(moment(since_s))
            await places.acquire()
            begins = [(begin.session, begin.turn, moment(begin.since_s)) for begin in opens.begins]
            group.create_task(self._replay_tree(live, begins, places))

    async def _warm_up(self, live: _LiveTree, begin: Begin) -> None:
        prompts = self._prompts(live, begin.session)
        *passed, turn = begin.session.turns[: begin.turn]
        for earlier in passed:
            prompts.pass_over(earlier)
        prompt = await self._prompt(prompts, turn, None)
        due = Due(turn, live.root_id, live.arrival.cycle, self._now_ns(), phase="warmup")
        live.warm[begin.session.session_id] = prompts, await self._attempts.send(due, prompt)

    def _open(self, tree: Tree, arrival: Arrival) -> _LiveTree:
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
        self._observer.tree_started(arrival, live.root_id)
        return live

    async def _replay_tree(
        self, live: _LiveTree, begins: Iterable[tuple[Session, int, _Moment]], place: asyncio.Semaphore | None
    ) -> None:
        """`begins`: sessions, each with its first turn and the moment that this turn's pause counts from."""
        self.live_trees += 1
        try:
            async with asyncio.TaskGroup() as group:
                for session, first, began in begins:
                    group.create_task(self._replay_session(group, live, session, began, first))
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        finally:
            self.live_trees -= 1
            if place is not None:
                place.release()
            self._observer.tree_ended(live.root_id, live.complete)

    # ------------------------------------------------------------------------------------------------- sessions

    async def _replay_session(
        self, group: asyncio.TaskGroup, live: _LiveTree, session: Session, began: _Moment, first: int = 0
    ) -> None:
        warm = live.warm.pop(session.session_id) if session.session_id in live.warm else None
        prompts, last = warm or (self._prompts(live, session), None)
        ended = began
        try:
            for turn in session.turns[first:]:
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
                if why := self._ends_session(last):
                    self._skip(live, session, turn.turn + 1, ended, why)
                    self._skip_children(live, turn, ended, why)
                    return
                for child in live.children.get((session.session_id, turn.turn), ()):
                    group.create_task(self._replay_session(group, live, child, ended))
        finally:
            self._end(live, session, ended)

    def _ends_session(self, last: Record) -> str | None:
        """Why nothing can follow a turn of its session; None where something can."""
        if not last.ok and self._settings.history == "live":
            return "an earlier turn of the session failed, and its history is live"
        if last.error_class == "context_overflow" and self._settings.rules is not None:
            return "an earlier prompt of the session did not fit the context, and later ones are longer"
        return None

    def _prompts(self, live: _LiveTree, session: Session) -> SessionPrompts:
        return SessionPrompts(
            self._trace.prefixes,
            salt=live.salt,
            salt_in_text=not self._sender.salt_field,
            live=self._settings.history == "live",
            resend_reasoning=self._resend_reasoning,
            hashed=self._hashed,
            turns=session.turns,
        )

    async def _prompt(self, prompts: SessionPrompts, turn: Turn, last: Record | None) -> Prompt:
        if self._hashed is None or self._hashed.as_ids:
            return prompts.next(turn, last)
        # Encoding a long text to check it takes tenths of a second, without holding the interpreter: not in the loop.
        return await asyncio.to_thread(prompts.next, turn, last)

    def _skip(self, live: _LiveTree, session: Session, first: int, at: _Moment, why: str) -> None:
        """The rest of the session are records of their own."""
        for turn in session.turns[first:]:
            self._attempts.skip(self._due(live, turn, at.ns), why)
            self._skip_children(live, turn, at, why)
        self._end(live, session, at)

    def _skip_children(self, live: _LiveTree, turn: Turn, at: _Moment, why: str) -> None:
        for child in live.children.get((turn.session_id, turn.turn), ()):
            self._skip(live, child, 0, at, why)

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
