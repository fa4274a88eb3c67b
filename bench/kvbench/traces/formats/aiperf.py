"""AIPerf dag_jsonl: one session a line, with the sessions that its turns fork and spawn.

A turn's messages are added to those before; the answers are not in the file. A fork goes on with all that its parent
had sent, a spawn starts fresh. A session that others call is a template: each call makes one of its own.
"""

from __future__ import annotations

import tempfile
from typing import Annotated, Any, BinaryIO, cast

import msgspec
from msgspec import Meta

from kvbench.model import Message, Turn, TurnRef
from kvbench.traces.formats.base import Format, Import
from kvbench.traces.formats.messages import NOTES as MESSAGE_NOTES
from kvbench.traces.formats.messages import chat_messages, chat_tools
from kvbench.traces.formats.sink import temporary_file_failed
from kvbench.traces.formats.source import Head, SourceFile
from kvbench.traces.lines import LineError, convert_object

MAX_DEPTH = 100
MAX_SESSIONS = 1_000_000
"""Templates that call templates twice multiply: this many is no workload but a mistake."""

_Ms = Annotated[float, Meta(ge=0, le=1e12)]
_Id = Annotated[str, Meta(min_length=1)]


class _Fork(msgspec.Struct):
    child: _Id
    background: bool = False


class _Spawn(msgspec.Struct):
    children: Annotated[list[_Id], Meta(min_length=1)]
    join_at: int | None = None


class _Turn(msgspec.Struct):
    messages: Annotated[list[Message], Meta(min_length=1)]
    model: str | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    tools: list[dict[str, Any]] | None = None
    extra: dict[str, Any] | None = None
    extra_body: dict[str, Any] | None = None
    forks: list[_Id | _Fork] = []
    spawns: list[_Id | _Spawn] = []
    delay: _Ms | None = None


class _Session(msgspec.Struct):
    session_id: _Id
    turns: Annotated[list[_Turn], Meta(min_length=1)]
    pre_session_spawns: list[_Id] = []


class _Called(msgspec.Struct):
    """A session as it stands in the spool. called: where another calls it first; used: whether it was written."""

    line: int
    offset: int
    size: int
    called: bool = False
    used: bool = False


class _Start(msgspec.Struct):
    """How a session begins: after a turn of another, or on its own."""

    parent: TurnRef | None = None
    inherited: list[Message] = []
    tools: list[dict[str, Any]] | None = None
    model: str | None = None


class AiperfConverter:
    """The sessions of a source; those they call may stand anywhere in it."""

    def __init__(self, target: Import) -> None:
        self._import = target
        self._sink = target.sink
        self._notes = target.sink.notes
        self._sessions: dict[str, _Called] = {}
        self._calls: list[tuple[str, int, str, str | None]] = []
        self._written = 0
        try:
            self._spool = cast(BinaryIO, tempfile.TemporaryFile(buffering=1 << 20))  # noqa: SIM115
        except OSError as error:
            raise temporary_file_failed(error) from error
        target.resources.callback(self._spool.close)
        self._end = 0
        self._sink.header(target.header)

    def file(self, file: SourceFile) -> None:
        for line, obj in self._import.objects(file):
            self._import.units += 1
            try:
                self._read(obj, line)
            except LineError as error:
                self._import.error(line, error)

    def end(self) -> None:
        self._check_calls()
        for name, session in self._sessions.items():
            if not session.called:
                try:
                    self._write(name, _Start(), [])
                except LineError as error:
                    self._import.error(session.line, error)
        for name, session in self._sessions.items():
            if not session.used and not self._import.log.errors:
                self._import.error(
                    session.line,
                    LineError(f'session "{name}" is called only by those it calls itself', field="session_id"),
                )
        self._import.facts["times"] = "delay in ms; sessions start at once (--rate or --sessions spread them)"
        self._import.facts["max_tokens"] = "taken as the answer's length"

    def _read(self, obj: dict[str, Any], line: int) -> None:
        session = convert_object(obj, _Session)
        if session.session_id in self._sessions:
            before = self._sessions[session.session_id].line
            raise LineError(f'"{session.session_id}" is on line {before} already', field="session_id")
        for number, turn in enumerate(session.turns):
            field = f"turns[{number}]"
            for at, fork in enumerate(turn.forks):
                child = fork if isinstance(fork, str) else fork.child
                self._calls.append((child, line, f"{field}.forks[{at}]", self._import.log.file))
            for at, spawn in enumerate(turn.spawns):
                group = _Spawn([spawn]) if isinstance(spawn, str) else spawn
                if group.join_at is not None and not number < group.join_at < len(session.turns):
                    later = (
                        f"{number + 1} to {len(session.turns) - 1}"
                        if number + 1 < len(session.turns)
                        else "it has none"
                    )
                    raise LineError(
                        f"{group.join_at}; expected a later turn of the session: {later}",
                        field=f"{field}.spawns[{at}].join_at",
                    )
                self._calls.extend(
                    (child, line, f"{field}.spawns[{at}]", self._import.log.file) for child in group.children
                )
            turn.messages = chat_messages(turn.messages, self._notes, field=f"{field}.messages")
            turn.tools = chat_tools(turn.tools, self._notes, field=f"{field}.tools") if turn.tools else turn.tools
        self._calls.extend(
            (child, line, "pre_session_spawns", self._import.log.file) for child in session.pre_session_spawns
        )
        raw = msgspec.json.encode(session)
        try:
            self._spool.write(raw)
        except OSError as error:
            raise temporary_file_failed(error) from error
        self._sessions[session.session_id] = _Called(line, self._end, len(raw))
        self._end += len(raw)

    def _check_calls(self) -> None:
        for child, line, field, file in self._calls:
            called = self._sessions.get(child)
            if called is not None:
                called.called = True
                continue
            self._import.log.file = file
            known = ", ".join(list(self._sessions)[:8])
            self._import.error(line, LineError(f'no session "{child}" in the source; it has {known}', field=field))
        self._import.log.file = None
        if self._sessions and all(session.called for session in self._sessions.values()):
            self._import.error(0, LineError("every session is called by another: none begins", field="session_id"))

    def _write(self, name: str, start: _Start, path: list[str]) -> str | None:
        """Write a session and all it calls; returns the name it got. Raises LineError."""
        stored = self._sessions.get(name)
        if stored is None:  # Told before.
            return None
        if name in path:
            raise LineError(f"sessions call each other in a circle: {' -> '.join([*path, name])}", field="turns")
        if len(path) == MAX_DEPTH:
            raise LineError(f"sessions call each other more than {MAX_DEPTH} deep", field="turns")
        self._written += 1
        if self._written > MAX_SESSIONS:
            raise LineError(f"sessions that call each other make more than {MAX_SESSIONS:,}", field="turns")
        session = self._load(stored)
        self._notes["templates"] += stored.used
        stored.used = True
        taken = self._sink.name(name if name not in self._sink.names else f"{'/'.join([*path, name])}")
        path = [*path, name]
        for child in session.pre_session_spawns:
            self._notes["pre_session"] += 1
            self._sub_agent(child, _Start(parent=start.parent), path)
        context, tools, model = list(start.inherited), start.tools, start.model
        joins: dict[int, list[str]] = {}
        for number, turn in enumerate(session.turns):
            last = number == len(session.turns) - 1
            context.extend(turn.messages)
            changed = turn.tools if turn.tools is not None and turn.tools != tools else None
            tools = turn.tools if turn.tools is not None else tools
            given = turn.model if turn.model and turn.model != model else None
            model = turn.model or model
            self._turn(taken, number, turn, start, joins.get(number, []), stored.line, changed, given)
            ref = TurnRef(taken, number)
            for fork in turn.forks:
                child, background = (fork, False) if isinstance(fork, str) else (fork.child, fork.background)
                self._notes["forks_inside"] += not last and not background
                self._sub_agent(child, _Start(ref, list(context), tools, model), path)
            for spawn in turn.spawns:
                group = _Spawn([spawn]) if isinstance(spawn, str) else spawn
                for child in group.children:
                    made = self._sub_agent(child, _Start(ref), path)
                    if made is not None and not last:
                        joins.setdefault(group.join_at or number + 1, []).append(made)
                    self._notes["not_joined"] += last
        return taken

    def _sub_agent(self, name: str, start: _Start, path: list[str]) -> str | None:
        self._sink.sub_agents += start.parent is not None
        return self._write(name, start, path)

    def _turn(
        self,
        session: str,
        number: int,
        turn: _Turn,
        start: _Start,
        after: list[str],
        line: int,
        tools: list[dict[str, Any]] | None,
        model: str | None,
    ) -> None:
        first, root = number == 0, number == 0 and start.parent is None
        inherited = start.inherited if first else []
        delay_s = (turn.delay or 0.0) / 1000
        extra = (turn.extra or {}) | (turn.extra_body or {})
        self._notes["answers_missing"] += not first or bool(inherited)
        self._notes["row_extra"] += bool(extra)
        self._notes["no_output_length"] += turn.max_tokens is None
        if first and inherited:
            tools, model = start.tools if tools is None else tools, start.model if model is None else model
        self._sink.turn(
            Turn(
                session_id=session,
                turn=number,
                line=line,
                parent=start.parent if first else None,
                after=tuple(after),
                start_s=delay_s if root else None,
                delay_s=0.0 if root else delay_s,
                output_tokens=turn.max_tokens,
                append=(*inherited, *turn.messages),
                tools=tuple(tools) if tools is not None else None,
                model=model,
                extra={"extra": extra} if extra else {},
            )
        )

    def _load(self, stored: _Called) -> _Session:
        self._spool.seek(stored.offset)
        return msgspec.json.decode(self._spool.read(stored.size), type=_Session)


def _matches(head: Head) -> bool:
    fields = head.fields()
    return {"session_id", "turns"} <= fields and "kvbench_trace" not in fields


AIPERF = Format(
    name="aiperf",
    about="AIPerf dag_jsonl",
    unit="session line",
    matches=_matches,
    converter=AiperfConverter,
    notes=MESSAGE_NOTES
    | {
        "answers_missing": "turns whose history lacks the answers before them: {n} (the file has none; --history live "
        "puts a session's own in)",
        "row_extra": "turns with request fields of their own (extra, extra_body): {n} (kept, and not sent)",
        "no_output_length": "turns without max_tokens: {n} (the model decides how long the answer is, unless --output "
        "says)",
        "templates": "sessions made once more from a line that several turns call: {n}",
        "pre_session": "sessions that start with the one that calls them, before its first turn: {n} (nothing waits "
        "for them)",
        "forks_inside": "forks from a turn that others follow: {n} (their parent goes on beside them)",
        "not_joined": "sessions spawned by a last turn: {n} (nothing waits for them)",
    },
)
