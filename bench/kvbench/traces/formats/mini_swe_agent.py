"""mini-SWE-agent trajectories (.traj.json): the list of messages, in later versions with each response and its time."""

from __future__ import annotations

from typing import Any

from kvbench.traces.formats import agent_log, messages, trajectories
from kvbench.traces.formats.agent_log import AgentLog
from kvbench.traces.formats.base import Format, Import
from kvbench.traces.formats.source import Head, SourceFile
from kvbench.traces.formats.trajectories import Talk, sent_message, stamp_s
from kvbench.traces.lines import LineError

_OWN_ROLES = ("exit", "environment")
"""Messages that end a run, or are the agent's own, and are never sent."""


class MiniSweAgentConverter:
    """A trajectory a file: an array of messages, or an object that has them."""

    def __init__(self, target: Import) -> None:
        self._import = target
        self._notes = target.sink.notes
        self._log = AgentLog(target)
        self._talks: list[tuple[str, Talk]] = []
        target.sink.header(target.header)

    def file(self, file: SourceFile) -> None:
        name = file.path.name.partition(".")[0]
        lone: Talk | None = None
        for line, obj in self._import.objects(file):
            if "messages" not in obj:
                if lone is None:
                    lone = Talk(self._import)
                    self._talks.append((name, lone))
                self._message(lone, obj, line, "message")
                continue
            found = obj["messages"]
            if not isinstance(found, list):
                self._import.error(line, LineError("expected an array of messages", field="messages"))
                continue
            talk = Talk(self._import, model=_model(obj))
            self._talks.append((str(obj.get("instance_id") or name), talk))
            for index, message in enumerate(found):
                self._message(talk, message, line, f"messages[{index}]")

    def end(self) -> None:
        """All at the end: what time counts from is known then."""
        done = self._import
        starts = [step.start_s for _, talk in self._talks for step in talk.steps if step.start_s is not None]
        self._log.base_s = min(starts, default=None)
        done.facts["calls"] = "every assistant message is a call; its prompt is all messages before it"
        done.facts["times"] = (
            "a call begins with the last message before it; trace time counts from the first"
            if starts
            else "none in the source: sessions start at once, and turns follow without a pause"
        )
        for name, talk in sorted(
            self._talks, key=lambda each: each[1].steps[0].start_s or 0.0 if each[1].steps else 0.0
        ):
            talk.finish()
            if talk.steps:
                self._log.session(done.sink.name(name), talk.steps)
            else:
                done.drop("no_calls", 0, f"{name}: a trajectory without an answer of the model")
        self._log.finish("tool schemas")

    def _message(self, talk: Talk, message: Any, line: int, field: str) -> None:
        self._import.units += 1
        role = message.get("role") if isinstance(message, dict) else None
        if role in _OWN_ROLES:
            self._import.drop("own_roles", line, f"{field}: a message of role {role}, which is not sent")
            return
        try:
            sent = sent_message(message, self._notes, field)
        except LineError as error:
            self._import.drop("broken", line, f"{error.field}: {error.message}")
            return
        extra = _object(message.get("extra"))
        at_s = stamp_s(extra.get("timestamp", message.get("timestamp")))
        if message["role"] != "assistant":
            for each in sent:
                talk.prompt(each, line, field, at_s)
            return
        response = _object(extra.get("response"))
        done = talk.answer(sent[0], line, field, at_s, response.get("usage"))
        if done and at_s is None:
            talk.steps[-1].start_s = stamp_s(response.get("created"))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _model(obj: dict[str, Any]) -> str | None:
    found: Any = obj
    for name in ("info", "config", "model", "model_name"):
        found = _object(found).get(name)
    return found if isinstance(found, str) and found else None


def _matches(head: Head) -> bool:
    fields = head.fields()
    if "trajectory_format" in fields:
        return b"mini-swe-agent" in head.text
    if {"messages", "info"} <= fields:
        return b'"model_stats"' in head.text or b'"mini_version"' in head.text
    return head.text.startswith(b"[") and {"role", "content"} <= fields


MINI_SWE_AGENT = Format(
    name="mini-swe-agent",
    about="mini-SWE-agent trajectory",
    unit="message",
    matches=_matches,
    converter=MiniSweAgentConverter,
    notes=messages.NOTES
    | agent_log.NOTES
    | trajectories.NOTES
    | {"own_roles": "messages of the agent's own, which are not sent: {n}"},
)
