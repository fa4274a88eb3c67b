"""Lines of Claude Code's session logs: which are messages, what each follows, and which make one call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from kvbench.traces.formats.calls import time_s
from kvbench.traces.formats.messages import chat_messages
from kvbench.traces.lines import LineError

SIDECHAIN = "sidechain "
"""What begins the made-up name of an inline sub-agent."""

_NOTHING, _LOST = "names nothing", "names what is not there"


class Line(msgspec.Struct, kw_only=True, eq=False):
    """One line that holds a message. parent: the message line it follows, None at the beginning of a context."""

    file: str | None
    number: int
    user: bool
    uuid: str
    says: str | None
    """The uuid it names as its parent."""
    at_s: float | None
    session: str
    agent: str
    """Empty: the session itself."""
    sidechain: bool
    starts: bool
    message: dict[str, Any]
    agent_result: str | None = None
    """A tool result's own word on which sub-agent it is of."""
    parent: Line | None = None
    call: LoggedCall | None = None
    used: bool = False

    @property
    def place(self) -> tuple[float, int]:
        return (self.at_s if self.at_s is not None else float("-inf"), self.number)

    def blocks(self) -> list[dict[str, Any]]:
        content = self.message["content"]
        return content if isinstance(content, list) else [{"type": "text", "text": content}]


class LoggedCall(msgspec.Struct, eq=False):
    """The lines of one message.id: one call, its answer's content blocks over as many lines."""

    message_id: str
    lines: list[Line]
    before: LoggedCall | None = None
    """The call whose answer its prompt holds last."""
    new: list[Line] = []
    """User lines between that answer and its own."""
    repeated: bool = False

    @property
    def place(self) -> tuple[float, int]:
        return self.lines[0].place

    def tool_calls(self) -> list[dict[str, Any]]:
        return [block for line in self.lines for block in line.blocks() if block.get("type") == "tool_use"]


class Group:
    """The lines of sessions that share files, and what they follow."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.links: dict[str, str | None] = {}
        """Of every line with a uuid, messages or not, the uuid it follows."""
        self.boundaries: set[str] = set()
        self.repeated: list[Line] = []
        self.notes: Counter[str] = Counter()
        self._by_uuid: dict[str, Line] = {}

    def link(self, obj: dict[str, Any]) -> None:
        """What a line follows, whatever it holds: messages follow each other over lines of other kinds."""
        uuid, parent = obj.get("uuid"), obj.get("parentUuid")
        if isinstance(uuid, str):
            self.links.setdefault(uuid, parent if isinstance(parent, str) else None)
            if obj.get("subtype") == "compact_boundary":
                self.boundaries.add(uuid)

    def calls(self) -> list[LoggedCall]:
        """All calls by time, each with what its prompt adds to the call before it."""
        self.lines.sort(key=lambda line: line.place)
        self._drop_repeats()
        self._by_uuid = {line.uuid: line for line in self.lines if line.uuid}
        self._follow()
        self._name_sidechains()
        calls: dict[tuple[str, str, str], LoggedCall] = {}
        for line in self.lines:
            if not line.user:
                message_id = str(line.message.get("id") or line.uuid or f"line {line.number}")
                key = (line.session, line.agent, message_id)
                line.call = calls.setdefault(key, LoggedCall(message_id, []))
                line.call.lines.append(line)
        results = self._results()
        for call in calls.values():
            self._prompt(call, results)
        return sorted(calls.values(), key=lambda call: call.place)

    def _drop_repeats(self) -> None:
        """A line that is there twice word for word; the same uuid over another message is two lines."""
        seen: dict[str, list[Line]] = {}
        kept = []
        for line in self.lines:
            same = seen.setdefault(line.uuid, []) if line.uuid else []
            if any(each.message == line.message and each.session == line.session for each in same):
                self.repeated.append(line)
            else:
                same.append(line)
                kept.append(line)
        self.lines = kept

    def _follow(self) -> None:
        memo: dict[str, Line | str | None] = {}
        children = {line.says for line in self.lines} | set(self.links.values())
        last: dict[tuple[str, str], Line] = {}
        for line in self.lines:
            key = (line.session, line.agent)
            found: Line | str | None = _NOTHING
            if line.starts:
                found = None
            elif line.says is not None:
                found = self._resolved(line.says, memo)
            if found is line:
                found = _LOST
            if isinstance(found, str):
                before = last.get(key)
                inline = line.sidechain and not line.agent
                loose = before is not None and not inline and not (line.uuid in children and _leads_to(before, line))
                self.notes["loose"] += loose and found == _NOTHING
                self.notes["lost_parent"] += found == _LOST
                found = before if loose else None
            line.parent = found
            if not (line.sidechain and not line.agent):
                last[key] = line
        self._break_circles()

    def _resolved(self, uuid: str, memo: dict[str, Line | str | None]) -> Line | str | None:
        """The message line that `uuid` is or leads to; None where a context begins; else how the way ends."""
        way: list[str] = []
        found: Line | str | None = _LOST
        at: str | None = uuid
        seen: set[str] = set()
        while at is not None and at not in seen:
            if at in self._by_uuid:
                found = self._by_uuid[at]
                break
            if at in memo:
                found = memo[at]
                break
            if at in self.boundaries:
                found = None
                break
            seen.add(at)
            way.append(at)
            if at in self.links and self.links[at] is None:
                found = _NOTHING
                break
            at = self.links.get(at)
        for each in way:
            memo[each] = found
        return found

    def _break_circles(self) -> None:
        done: set[int] = set()
        for line in self.lines:
            way: dict[int, Line] = {}
            at: Line | None = line
            while at is not None and id(at) not in done and id(at) not in way:
                way[id(at)] = at
                at = at.parent
            if at is not None and id(at) in way:
                self.notes["lost_parent"] += 1
                at.parent = None
            done.update(way)

    def _name_sidechains(self) -> None:
        """Inline sub-agents have no name: a chain is one, under its first line's."""
        roots: dict[int, str] = {}
        for line in self.lines:
            if not line.sidechain or line.agent:
                continue
            way = []
            at = line
            while id(at) not in roots and at.parent is not None and at.parent.sidechain:
                way.append(at)
                at = at.parent
            name = roots.setdefault(id(at), f"{SIDECHAIN}{at.uuid or at.number}")
            for each in (*way, line):
                roots[id(each)] = name
        for line in self.lines:
            if id(line) in roots and not line.agent:
                line.agent = roots[id(line)]

    def _results(self) -> dict[int, list[Line]]:
        """User lines with tool results, by the call (its id()) that is nearest above them."""
        above: dict[int, LoggedCall | None] = {}
        found: dict[int, list[Line]] = {}
        for line in self.lines:
            if not line.user:
                continue
            way: list[Line] = []
            at: Line | None = line
            while at is not None and at.user and id(at) not in above:
                way.append(at)
                at = at.parent
            call = None if at is None else at.call if not at.user else above[id(at)]
            for each in way:
                above[id(each)] = call
            if call is not None and any(block.get("type") == "tool_result" for block in line.blocks()):
                found.setdefault(id(call), []).append(line)
        return found

    def _prompt(self, call: LoggedCall, results: dict[int, list[Line]]) -> None:
        """A call's prompt goes up from the first of its lines that follows something else, to the call before.

        Results of tools that ran at once hang off the lines that called them, beside the way up; they belong to it.
        """
        first = next((line for line in call.lines if line.parent is None or line.parent.call is not call), None)
        at = None if first is None else first.parent
        new: list[Line] = []
        while at is not None and (at.user or at.call is call):
            if at.user:
                new.append(at)
            at = at.parent
        new.reverse()
        call.before = None if at is None else at.call
        if call.before is not None:
            called = {str(block.get("id")) for block in call.before.tool_calls()}
            there = {id(line) for line in new}
            for line in results.get(id(call.before), ()):
                if id(line) not in there and called & _answered(line) and line.agent == call.before.lines[0].agent:
                    new.append(line)
        call.new = new


def message_line(obj: dict[str, Any], number: int, file: str | None, stem: str) -> Line | None:
    """A line as a message; None where its kind is another. Raises LineError where it should be one and is not."""
    kind = obj.get("type")
    if kind not in ("user", "assistant"):
        return None
    message = obj.get("message")
    if not isinstance(message, dict):
        raise LineError("no message in it", field="message")
    content = message.get("content")
    blocks = isinstance(content, list) and all(isinstance(block, dict) for block in content)
    if not (isinstance(content, str) or blocks):
        raise LineError("neither text nor content blocks", field="message.content")
    if kind == "assistant" and message.get("usage") is not None and not isinstance(message["usage"], dict):
        raise LineError("expected an object", field="message.usage")
    try:  # What cannot be sent is left out here, so that it is told of its line.
        chat_messages([{"role": kind, "content": content}], Counter(), field="message")
    except LineError as error:
        raise LineError(error.message, field=(error.field or "").replace("message[0]", "message", 1)) from None
    result = obj.get("toolUseResult")
    agent = obj.get("agentId")
    sidechain = obj.get("isSidechain") is True
    return Line(
        file=file,
        number=number,
        user=kind == "user",
        uuid=_text(obj, "uuid") or "",
        says=_text(obj, "parentUuid"),
        at_s=time_s(obj.get("timestamp"), "timestamp"),
        session=_text(obj, "sessionId") or stem,
        agent=agent if isinstance(agent, str) and sidechain else "",
        sidechain=sidechain,
        starts=obj.get("isCompactSummary") is True,
        message=message,
        agent_result=_text(result, "agentId") if isinstance(result, dict) else None,
    )


def tool_results(lines: Iterable[Line]) -> dict[str, Line]:
    """Which line answers each tool call; the last, where several do."""
    return {name: line for line in lines for name in _answered(line)}


def _answered(line: Line) -> set[str]:
    return {str(block.get("tool_use_id")) for block in line.blocks() if block.get("type") == "tool_result"}


def _leads_to(line: Line | None, target: Line) -> bool:
    seen: set[int] = set()
    while line is not None and id(line) not in seen:
        if line is target:
            return True
        seen.add(id(line))
        line = line.parent
    return False


def _text(obj: dict[str, Any], name: str) -> str | None:
    value = obj.get(name)
    return value if isinstance(value, str) and value else None
