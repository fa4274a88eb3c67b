"""Codex rollouts: a file a session, whose items are what was sent to the model and what came back, in order.

A call is what came back until its token count; its prompt is all items before, and the session's instructions.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kvbench.errors import InputError
from kvbench.model import Message
from kvbench.traces.formats import agent_log, messages
from kvbench.traces.formats.agent_log import AgentLog, Called, OtherLines, Step
from kvbench.traces.formats.base import Format, Import
from kvbench.traces.formats.calls import time_s
from kvbench.traces.formats.codex_items import OUTPUTS, Chat, call_counts, chat_item, usage_counts
from kvbench.traces.formats.messages import answer_digest
from kvbench.traces.formats.sink import LoggedUsage
from kvbench.traces.formats.source import Head, SourceFile
from kvbench.traces.formats.usage import NOTES as USAGE_NOTES
from kvbench.traces.lines import LineError

_MISSING = "tool schemas, encrypted reasoning and what the provider adds"


class _Glance(msgspec.Struct):
    timestamp: Any = None
    type: Any = None


class _Session:
    """One rollout on its way to calls."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.parent: str | None = None
        self.model: str | None = None
        self.chat = Chat()
        """All that was sent or came back, to be cut and replaced."""
        self.sent = 0
        """How many of its messages the last call sent or got."""
        self.anew = False
        """Whether the context was replaced since the last call."""
        self.user_turns: list[int] = []
        self.steps: list[Step] = []
        self.new_lines: list[int] = []
        self.new_s: float | None = None
        self.out = Chat()
        self.out_lines: list[int] = []
        self.out_s: float | None = None
        self.held: list[tuple[int, float | None, list[Message]]] = []
        """What came for the next call before the answer was counted."""
        self.total: tuple[int, ...] | None = None
        self.counted = 0
        """The line of the last token count."""
        self.last_s = float("-inf")


class CodexConverter:
    """Rollouts one at a time, in the order of their first lines; sub-agents' find their caller by time."""

    def __init__(self, target: Import) -> None:
        self._import = target
        self._notes = target.sink.notes
        self._log = AgentLog(target)
        self._files: list[tuple[float, str, SourceFile]] = []
        self._seen: set[tuple[tuple[int, ...], bytes]] = set()
        """Calls of all sessions: a fork, or a sub-agent, may begin with a copy of another session's."""
        self._ends: dict[str, tuple[str, list[float | None], float | None]] = {}
        self._others = OtherLines(target)
        self._lines = 0

    def file(self, file: SourceFile) -> None:
        """Only looked over, for the time that all count from."""
        first_s = float("inf")
        decode = msgspec.json.Decoder(_Glance).decode
        for _, raw in file.values():
            try:
                at_s = time_s(decode(raw).timestamp, "timestamp")
            except (msgspec.MsgspecError, RecursionError, LineError):
                continue  # Told when the session is converted.
            first_s = first_s if at_s is None else min(first_s, at_s)
        self._files.append((first_s, str(file.path), file))

    def end(self) -> None:
        self._files.sort(key=lambda each: each[:2])
        first_s = min((each[0] for each in self._files), default=float("inf"))
        self._log.base_s = None if first_s == float("inf") else first_s
        self._import.sink.header(self._import.header)
        for _, path, file in self._files:
            self._import.log.file = path if self._import.directory else None
            session = _Session(file.path.stem.partition(".")[0])
            try:
                for number, obj in self._import.objects(file, drop="no_object"):
                    self._lines += 1
                    self._line(session, number, obj)
            except InputError as error:
                self._log.input_error(error, path)
            self._close(session)
            self._rest(session)
            self._write(session)
        self._import.log.file = None
        self._finish()

    # ------------------------------------------------------------------------------------------------------ one line

    def _line(self, session: _Session, number: int, obj: dict[str, Any]) -> None:
        kind, payload = obj.get("type"), obj.get("payload")
        try:
            at_s = time_s(obj.get("timestamp"), "timestamp")
            if not isinstance(payload, dict):
                raise LineError("expected an object", field="payload")
            if at_s is not None:
                self._notes["out_of_order"] += at_s < session.last_s
                session.last_s = max(session.last_s, at_s)
            if kind == "session_meta":
                self._meta(session, payload)
            elif kind == "turn_context":
                model = payload.get("model")
                session.model = model if isinstance(model, str) and model else session.model
                self._notes["setting_lines"] += 1
            elif kind == "compacted":
                self._compacted(session, number, at_s, payload)
            elif kind == "response_item":
                self._item(session, number, at_s, payload)
            elif kind == "event_msg" and payload.get("type") == "token_count":
                self._token_count(session, number, at_s, payload)
            else:
                if kind == "event_msg":
                    self._event(session, payload)
                self._others.add(number, f"{kind} {payload.get('type')}" if "type" in payload else str(kind))
        except LineError as error:
            self._import.drop("broken", number, f"{error.field}: {error.message}" if error.field else error.message)

    def _meta(self, session: _Session, payload: dict[str, Any]) -> None:
        self._notes["setting_lines"] += 1
        name = payload.get("id")
        if session.steps or session.chat.messages:
            return  # Of the session that this one was forked from.
        session.name = name if isinstance(name, str) and name else session.name
        instructions = payload.get("base_instructions", payload.get("instructions"))
        text = instructions.get("text") if isinstance(instructions, dict) else instructions
        if isinstance(text, str) and text:
            session.chat.add([{"role": "system", "content": text}])
        source = payload.get("source")
        spawned = source.get("subagent") if isinstance(source, dict) else None
        spawn = spawned.get("thread_spawn") if isinstance(spawned, dict) else None
        parent = spawn.get("parent_thread_id") if isinstance(spawn, dict) else None
        session.parent = parent if isinstance(parent, str) else None

    def _item(self, session: _Session, number: int, at_s: float | None, payload: dict[str, Any]) -> None:
        kind = payload.get("type")
        made = chat_item(payload, self._notes)
        if made is None:
            self._others.add(number, f"response_item {kind}")
        elif kind in OUTPUTS and not (kind == "message" and payload.get("role") != "assistant"):
            if session.held:
                self._close(session)
            session.out.add(made)
            session.out_lines.append(number)
            session.out_s = at_s if at_s is not None else session.out_s
        elif session.out_lines:
            session.held.append((number, at_s, made))
        else:
            self._prompt(session, number, at_s, made)

    def _prompt(self, session: _Session, number: int, at_s: float | None, made: list[Message]) -> None:
        session.chat.add(made)
        session.new_lines.append(number)
        session.new_s = at_s if at_s is not None else session.new_s

    def _token_count(self, session: _Session, number: int, at_s: float | None, payload: dict[str, Any]) -> None:
        info = payload.get("info")
        counts = usage_counts(info) if info is not None else None
        if counts is None:
            self._others.add(number, "token_count without usage")
            return
        total, last = counts
        if total == session.total:
            self._others.add(number, "token_count told again")
            return
        grown = tuple(now - before for now, before in zip(total, session.total or (0,) * len(total), strict=True))
        self._notes["usage_gaps"] += grown != tuple(last.get(name) or 0 for name in _COUNTED)
        session.total = total
        if not session.out_lines:
            self._import.drop("usage_only", number, "a call of which nothing but its usage is logged")
            self._import.sink.used(
                LoggedUsage(
                    line=number,
                    file=self._import.log.file,
                    model=session.model,
                    usage=last,
                    start_s=session.new_s if session.new_s is not None else at_s,
                    end_s=at_s,
                )
            )
            return
        session.counted = number
        self._close(session, last)

    def _event(self, session: _Session, payload: dict[str, Any]) -> None:
        kind, turns = payload.get("type"), payload.get("num_turns")
        if kind == "user_message":
            at = next((i for i in range(len(session.chat.messages) - 1, -1, -1) if session.chat.is_user(i)), None)
            if at is not None and at not in session.user_turns:
                session.user_turns.append(at)
        elif kind == "thread_rolled_back" and type(turns) is int and 0 < turns <= len(session.user_turns):
            self._close(session)
            session.chat.cut(session.user_turns[-turns])
            del session.user_turns[-turns:]
            session.anew = True

    def _compacted(self, session: _Session, number: int, at_s: float | None, payload: dict[str, Any]) -> None:
        self._close(session)
        history = payload.get("replacement_history")
        first = [message for message in session.chat.messages[:1] if message["role"] == "system"]
        session.chat = Chat()
        session.user_turns.clear()
        session.chat.add(first)
        session.anew = True
        if isinstance(history, list) and history:
            for item in history:
                made = chat_item(item, self._notes) if isinstance(item, dict) else None
                session.chat.add(made or [])
        else:
            self._notes["compacted_guess"] += 1
            session.chat.add([{"role": "user", "content": str(payload.get("message") or "")}])
        session.new_lines.append(number)
        session.new_s = at_s if at_s is not None else session.new_s

    # ------------------------------------------------------------------------------------------------------ one call

    def _close(self, session: _Session, usage: dict[str, Any] | None = None) -> None:
        """The answer so far is a whole one; without usage or anything to read in it, it broke off."""
        if session.out_lines:
            answer = session.out.answer()
            if usage is None and answer is None:
                for line in session.out_lines:
                    self._import.drop("unfinished", line, "an answer that breaks off")
            elif len(session.chat.messages) == 0:
                for line in (*session.out_lines, *([session.counted] if usage is not None else [])):
                    self._import.drop("no_prompt", line, "a call without any message before it")
            else:
                self._call(session, answer or {"role": "assistant", "content": ""}, usage)
            session.out, session.out_lines, session.out_s = Chat(), [], None
        held, session.held = session.held, []
        for number, at_s, made in held:
            self._prompt(session, number, at_s, made)

    def _call(self, session: _Session, answer: Message, usage: dict[str, Any] | None) -> None:
        if usage is not None and session.total is not None:
            same = (session.total, answer_digest(answer))
            if same in self._seen:
                self._repeated(session, answer)
                return
            self._seen.add(same)
        sent = session.chat.messages
        counts = call_counts(usage, self._notes)
        whole = list(sent) if session.anew or not session.steps else None
        session.steps.append(
            Step(
                line=session.out_lines[0],
                new=sent[session.sent :] if whole is None else [],
                answer=answer,
                context=None if whole is None else lambda: whole,
                start_s=session.new_s if session.new_s is not None else session.out_s,
                end_s=session.out_s,
                model=session.model,
                input_tokens=counts.input_tokens,
                output_tokens=counts.output_tokens,
                cached_tokens=counts.cached_tokens,
                usage=usage,
            )
        )
        self._notes["usage_lines"] += usage is not None
        self._notes["answer_lines"] += len(session.out_lines)
        self._notes["prompt_lines"] += len(session.new_lines)
        session.chat.add([answer])
        session.sent = len(session.chat.messages)
        session.anew = False
        session.new_lines, session.new_s = [], None

    def _repeated(self, session: _Session, answer: Message) -> None:
        for line in (*session.new_lines, *session.out_lines, session.counted):
            self._import.drop("repeated_call", line, "of a call that another session has already")
        session.chat.add([answer])
        session.anew = True
        session.new_lines, session.new_s = [], None

    def _rest(self, session: _Session) -> None:
        for line in session.new_lines:
            self._import.drop("unanswered", line, "a message that no logged call answers")

    def _write(self, session: _Session) -> None:
        if not session.steps:
            return
        name = self._import.sink.name(session.name)
        called: Called | None = None
        begin_s = session.steps[0].start_s
        tree_s = begin_s
        if session.parent is not None:
            parent, ends, parent_tree_s = self._ends.get(session.parent, ("", [], None))
            if begin_s is not None:
                before = [turn for turn, end_s in enumerate(ends) if end_s is not None and end_s <= begin_s]
                if before:
                    called, tree_s = Called(parent, before[-1], ends[before[-1]]), parent_tree_s
            self._notes["own_root"] += called is None
            self._notes["not_joined"] += called is not None
        self._log.session(name, session.steps, called, tree_s)
        self._ends.setdefault(session.name, (name, [step.end_s for step in session.steps], tree_s))

    def _finish(self) -> None:
        done = self._import
        done.units = self._lines + done.sink.dropped["no_object"]
        self._others.finish()
        done.facts["calls"] = (
            "all items that came back until a token count are one call, with that count's last usage; its prompt is "
            "all items before, and the session's instructions"
        )
        done.facts["times"] = (
            "a call begins with the last item before it and ends with the last item of its answer; trace time counts "
            "from the first line"
        )
        self._log.finish(_MISSING)
        self._log.require_calls()


_COUNTED = ("input_tokens", "cached_input_tokens", "output_tokens")


def _matches(head: Head) -> bool:
    value = head.value if isinstance(head.value, dict) else {}
    kinds = ("session_meta", "response_item", "turn_context", "event_msg", "compacted")
    fields = head.fields()
    return {"timestamp", "type", "payload"} <= fields and (not value or value.get("type") in kinds)


CODEX = Format(
    name="codex",
    about="Codex rollout",
    unit="line",
    matches=_matches,
    converter=CodexConverter,
    notes=messages.NOTES
    | USAGE_NOTES
    | agent_log.NOTES
    | {
        "answer_lines": "lines that are answers of the model: {n} (one an item)",
        "prompt_lines": "lines that are messages to the model: {n}",
        "setting_lines": "lines with a session's settings: {n} (instructions and model are taken)",
        "usage_lines": "token counts that end a call: {n}",
        "usage_gaps": "token counts whose total grew by other than the last call's: {n} (calls between them are not in "
        "the log)",
        "out_of_order": "lines earlier than one that stands before them: {n} (taken in the order of the file)",
        "server_tools": "tools that ran on the provider's side: {n} (left off)",
        "compacted_guess": "compactions that do not say what the context became: {n} (taken as the instructions and "
        "the summary)",
        "other_kinds": "lines of other kinds, which are no messages: {n}",
        "broken": "lines not shaped as expected: {n}",
        "usage_only": "calls of which nothing but their usage is logged: {n}",
        "repeated_call": "lines of calls that another session has already, as forks and sub-agents copy them: {n} "
        "(context only)",
        "unfinished": "items of answers that break off: {n}",
        "unanswered": "messages that no logged call answers: {n}",
    },
)
