"""SWE-agent trajectories (.traj): the history that its calls were made from, and what each step took.

What a history processor left out of a prompt is not in the file, unless its steps have the `query` that was sent.
"""

from __future__ import annotations

import re
from typing import Any

from kvbench.model import Message
from kvbench.traces.content_blocks import CHARS_PER_TOKEN
from kvbench.traces.formats import agent_log, messages, trajectories
from kvbench.traces.formats.agent_log import AgentLog
from kvbench.traces.formats.base import Format, Import
from kvbench.traces.formats.source import Head, SourceFile
from kvbench.traces.formats.trajectories import Talk, sent_message
from kvbench.traces.lines import MAX_TIME_S, LineError

_HISTORY = re.compile(rb'"history"\s*:\s*\[\s*(?=\{)')


class SweAgentConverter:
    def __init__(self, target: Import) -> None:
        self._import = target
        self._notes = target.sink.notes
        self._log = AgentLog(target)
        self._stats = self._stats_text = 0
        self._stats_calls = 0
        target.sink.header(target.header)

    def file(self, file: SourceFile) -> None:
        for line, obj in self._import.objects(file):
            try:
                self._trajectory(obj, line, file.path.name.partition(".")[0])
            except LineError as error:
                self._import.error(line, error)

    def end(self) -> None:
        done = self._import
        done.facts["calls"] = "every assistant message is a call; its prompt is the history before it"
        done.facts["times"] = "none in the source: sessions start at once; pauses are the steps' execution_time, if any"
        self._log.finish("tool schemas")
        if self._stats_calls:
            text = self._stats_text // CHARS_PER_TOKEN
            done.facts["the agent's own totals"] = (
                f"tokens_sent {self._stats:,} over {self._stats_calls:,} calls, where the histories come to about "
                f"{text:,} (estimated at 4 characters a token): tool schemas are not in the file, and what a history "
                "processor left out of the prompts is not told"
            )

    def _trajectory(self, obj: dict[str, Any], line: int, name: str) -> None:
        history, steps = obj.get("history"), obj.get("trajectory")
        if not isinstance(history, list):
            raise LineError("expected an array of messages", field="history")
        queries = _queries(steps)
        talks: dict[str, Talk] = {}
        answered = 0
        for index, message in enumerate(history):
            field = f"history[{index}]"
            self._import.units += 1
            agent = str(message.get("agent") or "") if isinstance(message, dict) else ""
            try:
                sent = _sent(message, self._notes, field)
            except LineError as error:
                self._import.drop("broken", line, f"{error.field}: {error.message}")
                continue
            talk = talks.setdefault(agent, Talk(self._import))
            if sent[0]["role"] == "assistant":
                if queries is not None and answered < len(queries):
                    talk.prompted(self._query(queries[answered], f"trajectory[{answered}].query"))
                    self._notes["queries"] += 1
                answered += 1
                talk.answer(sent[0], line, field)
            else:
                for each in sent:
                    talk.prompt(each, line, field)
        for number, (agent, talk) in enumerate(talks.items()):
            talk.finish()
            if len(talks) == 1:
                self._pauses(talk, steps)
            if talk.steps:
                self._notes["agents"] += number > 0
                self._log.session(self._import.sink.name(name if number == 0 else f"{name}.{agent}"), talk.steps)
        if not any(talk.steps for talk in talks.values()):
            self._import.drop("no_calls", line, "a trajectory without an answer of the model")
        self._totals(obj.get("info"), list(talks.values()))

    def _query(self, query: list[Any], field: str) -> list[Message]:
        return [
            message for index, each in enumerate(query) for message in _sent(each, self._notes, f"{field}[{index}]")
        ]

    def _pauses(self, talk: Talk, steps: Any) -> None:
        """The time that running a step's action took is the pause before the next call."""
        if not isinstance(steps, list) or len(steps) != len(talk.steps):
            return
        for before, step in zip(steps, talk.steps[1:], strict=False):
            took = before.get("execution_time") if isinstance(before, dict) else None
            if isinstance(took, (int, float)) and not isinstance(took, bool) and 0 <= took <= MAX_TIME_S:
                step.pause_s = float(took)

    def _totals(self, info: Any, talks: list[Talk]) -> None:
        stats = info.get("model_stats") if isinstance(info, dict) else None
        sent = stats.get("tokens_sent") if isinstance(stats, dict) else None
        if type(sent) is int and sent > 0:
            self._stats += sent
            self._stats_text += sum(talk.chars for talk in talks)
            self._stats_calls += sum(len(talk.steps) for talk in talks)


def _sent(message: Any, notes: Any, field: str) -> list[Message]:
    """With the id of the tool call it answers, which stands in a list of one."""
    if isinstance(message, dict):
        ids = message.get("tool_call_ids")
        if message.get("role") == "tool" and isinstance(ids, list) and ids:
            message = {**message, "tool_call_id": str(ids[0])}
        thinking = message.get("thinking_blocks")
        if isinstance(thinking, list) and thinking:
            texts = [str(block.get("thinking") or "") for block in thinking if isinstance(block, dict)]
            message = {**message, "reasoning_content": "\n".join(texts)}
    return sent_message(message, notes, field)


def _queries(steps: Any) -> list[list[Any]] | None:
    """What each step sent, where all of them have it."""
    if not isinstance(steps, list) or not steps:
        return None
    queries = [step.get("query") for step in steps if isinstance(step, dict)]
    if len(queries) != len(steps) or not all(isinstance(query, list) and query for query in queries):
        return None
    return [query for query in queries if isinstance(query, list)]


def _matches(head: Head) -> bool:
    fields = head.fields()
    if "history" not in fields and not {"trajectory", "environment"} <= fields:
        return False
    found = _HISTORY.search(head.text)
    if found is None:
        return {"trajectory", "environment"} <= fields
    return "role" in Head(head.text[found.end() :], None).fields()


SWE_AGENT = Format(
    name="swe-agent",
    about="SWE-agent trajectory",
    unit="message",
    matches=_matches,
    converter=SweAgentConverter,
    notes=messages.NOTES
    | agent_log.NOTES
    | trajectories.NOTES
    | {
        "queries": "calls whose prompt the file has as it was sent: {n}",
        "agents": "further agents in a history: {n} (each a session of its own, at the same time)",
    },
)
