"""Claude Code's session logs: a file a session, a line a content block; sub-agents inline or in files of their own.

The format is undocumented and changes. One call to the model is all lines of one message.id; the last has its usage.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from kvbench.errors import InputError
from kvbench.model import Message
from kvbench.traces.formats import agent_log, messages
from kvbench.traces.formats.agent_log import CLOCK_S, AgentLog, OtherLines, Step
from kvbench.traces.formats.base import Format, Import
from kvbench.traces.formats.calls import time_s
from kvbench.traces.formats.claude_agents import Agent, end_s, find_caller, start_s
from kvbench.traces.formats.claude_lines import SIDECHAIN, Group, Line, LoggedCall, message_line, tool_results
from kvbench.traces.formats.messages import chat_messages, digest
from kvbench.traces.formats.sink import LoggedUsage
from kvbench.traces.formats.source import Head, SourceFile
from kvbench.traces.formats.usage import NOTES as USAGE_NOTES
from kvbench.traces.formats.usage import token_counts
from kvbench.traces.lines import LineError

_MISSING = "the system prompt, tool schemas and what the client adds to messages"
_SYNTHETIC = "<synthetic>"


class _Glance(msgspec.Struct):
    """What decides which files belong together, and what time counts from."""

    type: Any = None
    timestamp: Any = None
    sessionId: Any = None


class _File(msgspec.Struct):
    source: SourceFile
    sessions: set[str]
    first_s: float
    last_s: float


class ClaudeCodeConverter:
    """Sessions one at a time, each with the files of its sub-agents; what is in memory is one session's lines."""

    def __init__(self, target: Import) -> None:
        self._import = target
        self._notes = target.sink.notes
        self._files: list[_File] = []
        self._log = AgentLog(target)
        self._calls_seen: set[tuple[str, bytes]] = set()
        self._others = OtherLines(target)
        self._lines = 0

    def file(self, file: SourceFile) -> None:
        """Only looked over: a session may be in several files, and is converted when all are known."""
        sessions: set[str] = set()
        first_s, last_s = float("inf"), float("-inf")
        decode = msgspec.json.Decoder(_Glance).decode
        for _, raw in file.values():
            try:
                glance = decode(raw)
                if isinstance(glance.sessionId, str):
                    sessions.add(glance.sessionId)
                if glance.type in ("user", "assistant"):
                    at_s = time_s(glance.timestamp, "timestamp")
                    if at_s is not None:
                        first_s, last_s = min(first_s, at_s), max(last_s, at_s)
            except (msgspec.MsgspecError, RecursionError, LineError):
                continue  # Told when the session is converted.
        self._files.append(_File(file, sessions, first_s, last_s))

    def end(self) -> None:
        first_s = min((file.first_s for file in self._files), default=float("inf"))
        self._log.base_s = None if first_s == float("inf") else first_s
        self._import.sink.header(self._import.header)
        for files in _together(self._files):
            self._group(files)
        self._import.log.file = None
        self._finish()

    def _group(self, files: list[_File]) -> None:
        group = Group()
        for file in files:
            path = str(file.source.path)
            self._import.log.file = path if self._import.directory else None
            try:
                for number, obj in self._import.objects(file.source, drop="no_object"):
                    self._line(obj, number, file.source.path, group)
            except InputError as error:
                self._log.input_error(error, path)
        calls = group.calls()
        self._notes.update(group.notes)
        for line in group.repeated:
            self._drop("repeated_line", line, "a line that is there already, word for word")
        calls = [call for call in calls if self._usable(call)]
        self._sessions(calls, group.lines)
        again = {id(line) for call in calls if call.repeated for line in call.new}
        for line in group.lines:
            if line.user and not line.used and id(line) in again:
                self._drop("repeated_call", line, "a message to a call that is in the log already")
            elif line.user and not line.used:
                self._drop("unanswered", line, "a message that no logged call answers")
            self._notes["prompt_lines"] += line.user and line.used

    def _line(self, obj: dict[str, Any], number: int, path: Path, group: Group) -> None:
        self._lines += 1
        group.link(obj)
        try:
            line = message_line(obj, number, self._import.log.file, path.stem.partition(".")[0])
        except LineError as error:
            self._import.drop("broken", number, f"{error.field}: {error.message}" if error.field else error.message)
            return
        if line is None:
            kind = obj.get("type")
            self._others.add(number, kind if isinstance(kind, str) else "none")
        elif not line.user and (obj.get("isApiErrorMessage") is True or line.message.get("model") == _SYNTHETIC):
            self._import.drop("synthetic", number, "written by the client in the model's place (an error, or a stop)")
        else:
            group.lines.append(line)

    def _usable(self, call: LoggedCall) -> bool:
        """Whether there is anything to send. What had no prompt is left out, and nothing follows it."""
        while call.before is not None and call.before.message_id == "":
            call.before = call.before.before
        if not call.new and call.before is None:
            for line in call.lines:
                self._drop("no_prompt", line, "a call without any message before it")
            self._used(call)
            call.message_id = ""
            return False
        return True

    def _sessions(self, calls: list[LoggedCall], lines: list[Line]) -> None:
        agents: dict[tuple[str, str], Agent] = {}
        for call in calls:
            first = call.lines[0]
            same = (call.message_id, digest([line.message["content"] for line in call.lines]))
            if same in self._calls_seen:
                call.repeated = True
                for line in call.lines:
                    self._drop("repeated_call", line, f"call {call.message_id} is in the log already")
                continue
            self._calls_seen.add(same)
            agents.setdefault((first.session, first.agent), Agent(first.session, first.agent, [])).calls.append(call)
        inline: Counter[str] = Counter()
        for agent in agents.values():
            named = agent.session
            if agent.key.startswith(SIDECHAIN):
                inline[agent.session] += 1
                named += f".agent{inline[agent.session]}"
            elif agent.key:
                named += f".{agent.key}"
            agent.name = self._import.sink.name(named)
        results = tool_results(lines)
        for agent in agents.values():
            if agent.key:
                find_caller(agent, list(agents.values()), lines)
        for agent in agents.values():
            if agent.caller is None:
                self._notes["own_root"] += bool(agent.key)
                self._write(agent, list(agents.values()), results, start_s(agent.calls[0]))

    def _write(self, agent: Agent, agents: list[Agent], results: dict[str, Line], tree_s: float | None) -> None:
        own = [other for other in agents if other.caller is agent]
        steps: list[Step] = []
        for number, call in enumerate(agent.calls):
            step = self._step(call, agent.calls[number - 1] if number else None)
            held = {id(line) for line in call.new}
            for other in own:
                answer = results.get(other.call_id)
                if answer is not None and id(answer) in held and number > (other.called.turn if other.called else 0):
                    ended_s = other.end_s
                    if ended_s is None or step.start_s is None or ended_s <= step.start_s + CLOCK_S:
                        step.waits.append((other.name, ended_s if ended_s is not None else step.start_s or 0.0))
            steps.append(step)
        joined = sum(len(step.waits) for step in steps)
        self._notes["joined"] += joined
        self._notes["not_joined"] += len(own) - joined
        self._log.session(agent.name, steps, agent.called, tree_s)
        for other in own:
            self._write(other, agents, results, tree_s)

    def _step(self, call: LoggedCall, previous: LoggedCall | None) -> Step:
        last = _last(call)
        logged = last.message.get("usage")
        counts = token_counts(logged, self._notes)
        model = last.message.get("model")
        goes_on = previous is not None and call.before is previous
        self._notes["answer_lines"] += len(call.lines)
        return Step(
            line=call.lines[0].number,
            new=self._new(call) if goes_on else [],
            answer=self._answer(call),
            context=None if goes_on else lambda: self._context(call),
            start_s=start_s(call),
            end_s=end_s(call),
            model=model if isinstance(model, str) and model else None,
            input_tokens=counts.input_tokens,
            output_tokens=counts.output_tokens,
            cached_tokens=counts.cached_tokens,
            usage=logged if isinstance(logged, dict) else None,
            streamed_to_end=last.message.get("stop_reason") is not None,
        )

    def _used(self, call: LoggedCall) -> None:
        last = _last(call)
        model, usage = last.message.get("model"), last.message.get("usage")
        self._import.sink.used(
            LoggedUsage(
                line=last.number,
                file=last.file,
                model=model if isinstance(model, str) else None,
                usage=usage if isinstance(usage, dict) else None,
                start_s=start_s(call),
                end_s=end_s(call),
            )
        )

    def _context(self, call: LoggedCall) -> list[Message]:
        way: list[LoggedCall] = []
        at: LoggedCall | None = call
        seen: set[int] = set()
        while at is not None and id(at) not in seen:
            seen.add(id(at))
            way.append(at)
            at = at.before
        out: list[Message] = []
        for each in reversed(way):
            out.extend(self._new(each))
            if each is not call:
                out.append(self._answer(each))
        return out

    def _new(self, call: LoggedCall) -> list[Message]:
        """What a call adds: first the results of the tools its predecessor called, in that order, each once."""
        order = {}
        if call.before is not None:
            order = {str(block.get("id")): at for at, block in enumerate(call.before.tool_calls())}
        results: dict[str, Message] = {}
        rest: list[Message] = []
        for line in call.new:
            counted = Counter[str]() if line.used else self._notes
            line.used = True
            for message in chat_messages([{**line.message, "role": "user"}], counted):
                name = message.get("tool_call_id")
                if name in order:
                    counted["answered_twice"] += name in results
                    results[name] = message
                else:
                    rest.append(message)
        return [results[name] for name in sorted(results, key=order.__getitem__)] + rest

    def _answer(self, call: LoggedCall) -> Message:
        blocks = [block for line in call.lines for block in line.blocks()]
        counted = Counter[str]() if call.lines[0].used else self._notes
        for line in call.lines:
            line.used = True
        kinds = {block.get("type") for block in blocks}
        if kinds <= {"text"}:
            return {"role": "assistant", "content": "\n".join(str(block.get("text") or "") for block in blocks)}
        return chat_messages([{"role": "assistant", "content": blocks}], counted)[0]

    def _drop(self, code: str, line: Line, reason: str) -> None:
        self._import.sink.drop(code, line.number, reason, line.file)

    def _finish(self) -> None:
        done = self._import
        done.units = self._lines + done.sink.dropped["no_object"]
        self._others.finish()
        done.facts["calls"] = (
            "all lines of one message.id are one call, with the usage of the last; input tokens are uncached, read and "
            "written ones together"
        )
        done.facts["times"] = (
            "a call begins with the last message before it and ends with the last line of its answer; trace time "
            "counts from the first line"
        )
        self._log.finish(_MISSING)
        self._log.require_calls()


def _together(files: list[_File]) -> list[list[_File]]:
    """Files that share a session, by time; of those that begin alike, as resumed ones do, the longest first."""
    groups: list[tuple[set[str], list[_File]]] = []
    for file in files:
        names, joined = set(file.sessions), [file]
        rest = []
        for group in groups:
            if group[0] & names:
                names |= group[0]
                joined = group[1] + joined
            else:
                rest.append(group)
        groups = [*rest, (names, joined)]

    def place(group: list[_File]) -> tuple[float, float, str]:
        last_s = max(file.last_s for file in group)
        return min(file.first_s for file in group), -last_s, str(group[0].source.path)

    return sorted((group for _, group in groups), key=place)


def _last(call: LoggedCall) -> Line:
    """The line with the usage of the answer's end. Of lines of one moment that is the one with the most output: what is
    counted only grows, and the order of a log's lines does not matter."""

    def place(line: Line) -> tuple[float, int, int]:
        usage = line.message.get("usage")
        output = usage.get("output_tokens") if isinstance(usage, dict) else None
        return line.place[0], output if type(output) is int else -1, line.number

    return max(call.lines, key=place)


def _matches(head: Head) -> bool:
    fields = head.fields()
    if "agentType" in fields and not fields - {"agentType", "description", "name", "toolUseId", "worktreePath"}:
        return True  # Beside a sub-agent's file; it holds no line of the log.
    if {"version", "entries"} <= fields and b'"sessionId"' in head.text:
        return True  # The index of a project's sessions.
    if "type" not in fields or "kvbench_trace" in fields:
        return False
    return b'"sessionId"' in head.text and any(
        name in head.text for name in (b'"parentUuid"', b'"leafUuid"', b'"isSnapshotUpdate"')
    )


CLAUDE_CODE = Format(
    name="claude-code",
    about="Claude Code session log",
    unit="line",
    matches=_matches,
    converter=ClaudeCodeConverter,
    notes=messages.NOTES
    | USAGE_NOTES
    | agent_log.NOTES
    | {
        "answer_lines": "lines that are answers of the model: {n} (one a content block)",
        "prompt_lines": "lines that are messages to the model: {n}",
        "loose": "messages that name nothing they follow: {n} (put after the one before them)",
        "lost_parent": "messages that follow a line which is not there: {n} (put after the one before them)",
        "answered_twice": "tool calls with two results: {n} (the last is sent)",
        "other_kinds": "lines of other kinds, which are no messages: {n}",
        "broken": "messages not shaped as expected: {n}",
        "synthetic": "answers that the client wrote in the model's place: {n}",
        "unanswered": "messages that no logged call answers: {n}",
        "repeated_line": "lines that are there already: {n}",
        "repeated_call": "lines of calls that are there already, as resumed sessions have them: {n} (context only)",
    },
)
