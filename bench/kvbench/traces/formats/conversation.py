"""Requests that each carry their full list of messages, as the turns of native sessions.

A turn appends where its messages begin with all that its session's last turn sent, else it replaces the context.
Of the messages only digests stay in memory: one a session, and one a request where sessions have to be found.
"""

from __future__ import annotations

import msgspec

from kvbench.model import TurnRef
from kvbench.traces.formats.base import Import
from kvbench.traces.formats.calls import Call, CallSpool
from kvbench.traces.formats.links import Links
from kvbench.traces.formats.messages import NOTES as MESSAGE_NOTES
from kvbench.traces.formats.messages import answer_digest, digests
from kvbench.traces.formats.session_group import Ended, SessionGroup
from kvbench.traces.formats.sink import LoggedUsage
from kvbench.traces.formats.thread import CLOCK_S, Thread, runs_at
from kvbench.traces.lines import MAX_TIME_S, LineError
from kvbench.traces.prefix.marks import MarkedPrompt

BLOCK_SIZE = 64
"""Tokens of a made-up block, where a source has lengths and no text."""

NOTES = MESSAGE_NOTES | {
    "linked": "requests put into a session by their content: {n} (they begin with all that its last request sent; the "
    "source does not say whose they are)",
    "answer_differs": "of these, requests whose history holds another answer than was logged: {n}",
    "mid_history": "sessions whose first request has answers in its history: {n} (what came before it is not in the "
    "source, or was changed)",
    "replaced": "requests that do not begin with what their session sent before: {n} (they replace its context)",
    "branches": "requests beside the ones of their session, at the same time or of another agent: {n} (each begins a "
    "sub-agent's session, started by the request that had ended last)",
    "clipped_pauses": "requests that began before the one they follow had ended: {n} (they follow without a pause)",
    "pauses_with_answer": "pauses that hold the answer's own time too: {n} (the source does not say how long it took)",
    "out_of_order": "requests earlier than one that stands before them: {n} (put in the order of their times)",
    "no_time": "requests without a time: {n} (they go with the one before them, or at once)",
    "no_output_length": "requests whose answer's length is not said: {n} (the model decides, unless --output says)",
    "no_text": "requests without messages: {n} (their lengths are kept; what prompts shared is not known, so they "
    "share nothing)",
    "no_prompt": "requests with neither messages nor a prompt's length: {n}",
    "joined": "sub-agents that ended before their parent's next request: {n} (it waits for them)",
    "not_joined": "sub-agents that nothing waits for: {n}",
    "own_root": "sub-agents without a request before them that can have called them: {n} (they start on their own, as "
    "roots)",
}


class Conversations:
    """Takes a source's calls as they are found; `finish` writes them as turns, in the order of their times."""

    def __init__(self, target: Import) -> None:
        self._import = target
        self._sink = target.sink
        self._notes = target.sink.notes
        self._spool = CallSpool()
        target.resources.callback(self._spool.close)
        self._groups: dict[str, SessionGroup] = {}
        self._links = Links()
        self._next_id = 1
        self._textless = False
        self._base_s = 0.0

    @property
    def wants_marks(self) -> bool:
        """Whether somebody asks for the calls' usage, and so for their cache_control marks."""
        return self._sink.calls is not None

    def add(self, call: Call, marked: MarkedPrompt | None = None) -> None:
        """One request, of any time. Nothing is written yet; one without any prompt is dropped."""
        self._sink.used(
            LoggedUsage(
                line=call.line,
                file=self._import.log.file,
                model=call.model,
                usage=call.counted or call.usage,
                start_s=call.start_s,
                end_s=call.end_s,
                marked=marked,
            )
        )
        if not call.messages:
            call.messages = None
            if not call.input_tokens:
                self._import.drop("no_prompt", call.line, "neither messages nor a prompt's length")
                return
        self._spool.add(call)
        self._textless = self._textless or call.messages is None
        if call.session is not None:
            group = self._groups.setdefault(call.session, SessionGroup())
            group.parent = group.parent or (call.parent if call.parent != call.session else None)
            ends = [time for time in (call.start_s, call.end_s) if time is not None]
            group.last_end_s = max(group.last_end_s, *ends, float("-inf"))

    def finish(self) -> None:
        """Write all turns, and what holds for the whole source into the report."""
        notes, done = self._notes, self._import
        header = done.header
        if self._textless:
            header = msgspec.structs.replace(header, block_size=BLOCK_SIZE)
            done.block_size, done.block_size_from = BLOCK_SIZE, "of made-up blocks; the source has none"
        self._sink.header(header)
        base_s = self._spool.first_s
        if base_s is not None:
            self._base_s = base_s
            done.facts["times"] = "seconds since the earliest request"
            notes["no_time"] += self._spool.without_time
        elif len(self._spool):
            done.facts["times"] = "none in the source: sessions start at once, and turns follow without a pause"
        notes["out_of_order"] += self._spool.out_of_order
        for call in self._spool.ordered():
            if call.start_s is not None and call.start_s - self._base_s > MAX_TIME_S:
                too_late = "more than 31 years after the source's earliest request: times of different kinds?"
                self._import.error(call.line, LineError(too_late))
                continue
            self._place(call)
        for group in {id(group): group for group in self._groups.values()}.values():
            notes["not_joined"] += len(group.waiting) + len(group.agents)

    # ------------------------------------------------------------------------------------------ where a call belongs

    def _place(self, call: Call) -> None:
        if call.start_s is not None:
            call.start_s -= self._base_s
        if call.end_s is not None:
            call.end_s -= self._base_s
        chain = digests(call.messages or ())
        self._notes["no_text"] += call.messages is None
        group = self._groups[call.session] if call.session is not None else None
        thread = self._links.find(call, chain) if group is None or (call.weak and not group.made) else None
        if thread is not None:
            self._notes["linked"] += 1
            reply = (call.messages or [])[thread.length]
            other = reply.get("role") == "assistant" and thread.answer not in (None, answer_digest(reply))
            self._notes["answer_differs"] += other
        if call.session is not None and group is not None:
            before = self._groups.get(thread.group) if thread is not None and thread.group is not None else None
            if before is not None:  # What has a weak name of its own is what another began.
                before.last_end_s = max(before.last_end_s, group.last_end_s)
                self._groups[call.session] = before
            self._named(call, chain)
        elif thread is not None:
            self._write(thread, call, chain, delay_s=self._pause_s(thread, call))
        else:
            name = f"request{call.line}"
            if name in self._sink.names:  # Several on one line.
                name = f"{name}.{self._sink.turns}"
            thread = Thread(self._sink.name(name), hashed=call.messages is None)
            self._write(thread, call, chain, start_s=call.start_s or 0.0)

    def _named(self, call: Call, chain: list[bytes]) -> None:
        assert call.session is not None
        group = self._groups[call.session]
        thread = group.going_on(call, chain)
        if thread is not None:
            self._next(group, thread, call, chain)
            group.wrote(thread, call)
            return
        name = self._sink.name(f"{call.session}.{group.made}" if group.made else call.session)
        group.made += 1
        thread = Thread(name, hashed=call.messages is None)
        thread.group, thread.agent = call.session, call.agent
        caller = group.caller(call)
        beside = group.first is not None
        if beside:
            self._notes["branches"] += 1
            if caller is not None:
                group.waiting.append(thread)
        parent = self._groups.get(group.parent) if group.parent is not None else None
        if caller is None and parent is not None:
            caller = parent.caller(call)
            if caller is not None and call.session not in parent.agents:
                parent.agents.append(call.session)
        self._notes["own_root"] += caller is None and (beside or group.parent is not None)
        self._start(thread, caller, call, chain)
        group.add(thread)
        group.wrote(thread, call)

    def _start(self, thread: Thread, caller: Ended | None, call: Call, chain: list[bytes]) -> None:
        if caller is None:
            self._write(thread, call, chain, start_s=call.start_s or 0.0)
            return
        self._sink.sub_agents += 1
        thread.root = caller.thread.root
        pause_s = max((call.start_s or 0.0) - caller.end_s, 0.0)
        self._write(thread, call, chain, parent=TurnRef(caller.thread.name, caller.turn), delay_s=pause_s)

    def _next(self, group: SessionGroup, thread: Thread, call: Call, chain: list[bytes]) -> None:
        """A further turn. The first thread waits for what its group called and what has ended by now."""
        after: list[str] = []
        ends_s: list[float] = []
        if thread is group.first and call.start_s is not None:
            for branch in [each for each in group.waiting if each.root == thread.root and not runs_at(each, call)]:
                group.waiting.remove(branch)
                group.close(branch)  # Whatever it went on to do would have been waited for, too.
                self._links.remove(branch)
                after.append(branch.name)
                ends_s.append(branch.end_s or 0.0)
            for name in list(group.agents):
                agent = self._groups[name]
                names = [each.name for each in agent.threads if each.root == thread.root]
                if names and agent.last_end_s - self._base_s <= call.start_s + CLOCK_S:
                    group.agents.remove(name)
                    after.extend(names)
                    ends_s.append(agent.last_end_s - self._base_s)
            self._notes["joined"] += len(ends_s)
        self._write(thread, call, chain, delay_s=self._pause_s(thread, call, ends_s), after=tuple(after))

    def _pause_s(self, thread: Thread, call: Call, ends_s: list[float] | None = None) -> float:
        """From the end of all that the turn waits for to its start, never below 0."""
        if call.start_s is None or thread.end_s is None:
            return 0.0
        latest_s: float = max(ends_s or (), default=thread.end_s)
        pause_s = call.start_s - max(thread.end_s, latest_s)
        self._notes["clipped_pauses"] += pause_s < -CLOCK_S
        self._notes["pauses_with_answer"] += not thread.ends_known
        return max(pause_s, 0.0)

    # ------------------------------------------------------------------------------------------------------- writing

    def _write(
        self,
        thread: Thread,
        call: Call,
        chain: list[bytes],
        *,
        start_s: float | None = None,
        delay_s: float = 0.0,
        parent: TurnRef | None = None,
        after: tuple[str, ...] = (),
    ) -> None:
        if thread.turns == 0 and parent is None:
            self._notes["mid_history"] += any(message.get("role") == "assistant" for message in call.messages or ())
        linkable = call.session is None or call.weak
        if linkable and thread.length:
            self._links.remove(thread)
        ids = self._made_up_ids(call) if thread.hashed else None
        turn = thread.turn(
            call, self._notes, chain=chain, start_s=start_s, delay_s=delay_s, parent=parent, after=after, hash_ids=ids
        )
        thread.end_s = call.end_s if call.end_s is not None else call.start_s
        thread.ends_known = call.end_s is not None
        if linkable and thread.length:
            self._links.add(thread)
        self._sink.turn(turn)

    def _made_up_ids(self, call: Call) -> tuple[int, ...]:
        blocks = -(-(call.input_tokens or 1) // BLOCK_SIZE)
        first, self._next_id = self._next_id, self._next_id + blocks
        return tuple(range(first, first + blocks))
