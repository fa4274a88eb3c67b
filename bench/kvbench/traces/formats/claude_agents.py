"""Claude Code's sub-agents: whose calls are whose, and which call started each."""

from __future__ import annotations

import msgspec

from kvbench.traces.formats.agent_log import CLOCK_S, Called
from kvbench.traces.formats.claude_lines import Line, LoggedCall


class Agent(msgspec.Struct, eq=False):
    """One session to be: the session itself, or a sub-agent of it."""

    session: str
    key: str
    calls: list[LoggedCall]
    name: str = ""
    called: Called | None = None
    caller: Agent | None = None
    call_id: str = ""
    """The tool call that started it."""

    @property
    def end_s(self) -> float | None:
        return end_s(self.calls[-1])


def find_caller(agent: Agent, agents: list[Agent], lines: list[Line]) -> None:
    """By the agent's id in a tool's result; else by the prompt it was called with."""
    ids = {name for line in lines if line.agent_result == agent.key for name in _answers(line)}
    prompt = _first_text(agent.calls[0])
    taken = {other.call_id for other in agents}
    begin_s = start_s(agent.calls[0])
    best: tuple[Agent, int, str] | None = None
    for other in agents:
        if other is agent or _under(other, agent):
            continue
        for number, call in enumerate(other.calls):
            for block in call.tool_calls():
                name, given = str(block.get("id")), block.get("input")
                wanted = isinstance(given, dict) and prompt and given.get("prompt") == prompt
                if name in ids or (not ids and wanted and name not in taken and _before(call, begin_s)):
                    best = best or (other, number, name)
    if best is not None:
        caller, number, agent.call_id = best
        agent.caller, agent.called = caller, Called(caller.name, number, end_s(caller.calls[number]))


def start_s(call: LoggedCall) -> float | None:
    times = [line.at_s for line in call.new if line.at_s is not None]
    first = min((line.at_s for line in call.lines if line.at_s is not None), default=None)
    if not times:
        return first
    return max(times) if first is None else min(max(times), first)


def end_s(call: LoggedCall) -> float | None:
    return max((line.at_s for line in call.lines if line.at_s is not None), default=None)


def _before(call: LoggedCall, begin_s: float | None) -> bool:
    first = call.lines[0].at_s
    return first is None or begin_s is None or first <= begin_s + CLOCK_S


def _under(agent: Agent, other: Agent) -> bool:
    """Whether `agent` was called by `other`, or by what that called."""
    at: Agent | None = agent
    while at is not None:
        if at is other:
            return True
        at = at.caller
    return False


def _answers(line: Line) -> list[str]:
    return [str(block.get("tool_use_id")) for block in line.blocks() if block.get("type") == "tool_result"]


def _first_text(call: LoggedCall) -> str:
    for line in call.new:
        texts = [str(block.get("text") or "") for block in line.blocks() if block.get("type") == "text"]
        if any(texts):
            return "\n".join(texts)
    return ""
