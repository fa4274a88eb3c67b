"""What a source names one session: the thread of its first request, and those that ran beside it."""

from __future__ import annotations

import heapq

import msgspec

from kvbench.traces.formats.calls import Call
from kvbench.traces.formats.thread import CLOCK_S, Thread, follows, runs_at


class Ended(msgspec.Struct, frozen=True, order=True):
    """A request of a group by its end; number: which of the group's it was."""

    end_s: float
    number: int
    turn: int
    thread: Thread


class SessionGroup:
    """Its threads, and what of it has ended. Calls come in the order of their starts, so time only goes on."""

    def __init__(self) -> None:
        self.first: Thread | None = None
        self.threads: dict[Thread, None] = {}
        """Those that may go on: what was waited for is not gone on with."""
        self.made = 0
        self.parent: str | None = None
        self.last_end_s = float("-inf")
        """Of all its calls, those to come too."""
        self.waiting: list[Thread] = []
        """Branches that nothing has waited for yet."""
        self.agents: list[str] = []
        """Sessions it called that nothing has waited for yet."""
        self._alike: dict[tuple[bool, str | None], dict[Thread, None]] = {}
        self._running: list[Ended] = []
        self._ended: Ended | None = None
        self._written = 0

    def add(self, thread: Thread) -> None:
        self.first = self.first or thread
        self.threads[thread] = None
        self._alike.setdefault((thread.hashed, thread.agent), {})[thread] = None

    def close(self, thread: Thread) -> None:
        """Something waits for the thread's end: it does not go on."""
        self.threads.pop(thread, None)
        self._alike[(thread.hashed, thread.agent)].pop(thread, None)

    def going_on(self, call: Call, chain: list[bytes]) -> Thread | None:
        """The thread whose next turn `call` is: the latest whose context it extends, else the first that is free."""
        alike = self._alike.get((call.messages is None, call.agent), {})
        for thread in reversed(alike):
            if thread.extended_by(chain) and follows(thread, call):
                return thread
        if call.nested:
            return None
        return next((thread for thread in alike if not runs_at(thread, call)), None)

    def wrote(self, thread: Thread, call: Call) -> None:
        """The thread's last turn is `call`."""
        self._settle(call)
        end_s = thread.end_s if thread.end_s is not None else 0.0
        heapq.heappush(self._running, Ended(end_s, self._written, thread.turns - 1, thread))
        self._written += 1

    def caller(self, call: Call) -> Ended | None:
        """The request that had ended last when `call` began; None: none had."""
        self._settle(call)
        return self._ended

    def _settle(self, call: Call) -> None:
        while self._running and (call.start_s is None or self._running[0].end_s <= call.start_s + CLOCK_S):
            ended = heapq.heappop(self._running)
            self._ended = ended if self._ended is None else max(self._ended, ended)
