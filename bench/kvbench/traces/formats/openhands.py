"""OpenHands trajectories: an event stream of actions and observations (trajectory.json), or rows that hold one each.

Written from the project's source, without a sample. An agent's action carries the response that it came from; what
the prompt's other messages looked like is rebuilt from the events.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kvbench.model import Message
from kvbench.traces.formats import agent_log, messages, trajectories
from kvbench.traces.formats.agent_log import AgentLog, OtherLines
from kvbench.traces.formats.base import Format, Import
from kvbench.traces.formats.source import Head, SourceFile
from kvbench.traces.formats.trajectories import Talk, sent_message, stamp_s
from kvbench.traces.lines import LineError

_SILENT = ("agent_state_changed", "null", "recall", "condensation_request", "change_agent_state", "loop_recovery")
"""Events that are no message to the model, or one that only the agent's templates can write."""


class _Stream:
    """One conversation's events on their way to calls."""

    def __init__(self, target: Import) -> None:
        self.talk = Talk(target)
        self.context: list[tuple[int | None, Message]] = []
        """What is sent, each with the event it is of."""
        self.response: str | None = None
        self.open_calls: set[str] = set()


class _Event(msgspec.Struct):
    """One event, and where it stands."""

    obj: dict[str, Any]
    line: int
    field: str

    @property
    def number(self) -> int | None:
        value = self.obj.get("id")
        return value if type(value) is int else None

    @property
    def at_s(self) -> float | None:
        return stamp_s(self.obj.get("timestamp"))


class OpenHandsConverter:
    def __init__(self, target: Import) -> None:
        self._import = target
        self._notes = target.sink.notes
        self._log = AgentLog(target)
        self._others = OtherLines(target)
        self._streams: list[tuple[str, _Stream]] = []
        target.sink.header(target.header)

    def file(self, file: SourceFile) -> None:
        name = file.path.name.partition(".")[0]
        lone: _Stream | None = None
        for line, obj in self._import.objects(file):
            history = obj.get("history")
            if history is None:
                if lone is None:
                    lone = _Stream(self._import)
                    self._streams.append((name, lone))
                self._event(lone, obj, line, "event")
            elif isinstance(history, list):
                stream = _Stream(self._import)
                self._streams.append((str(obj.get("instance_id") or name), stream))
                for index, event in enumerate(history):
                    self._event(stream, event, line, f"history[{index}]")
            else:
                self._import.error(line, LineError("expected an array of events", field="history"))

    def end(self) -> None:
        done = self._import
        starts = [step.start_s for _, each in self._streams for step in each.talk.steps if step.start_s is not None]
        self._log.base_s = min(starts, default=None)
        done.facts["calls"] = (
            "actions of one response are a call, with the response's own message and usage; its prompt is rebuilt from "
            "the events before it"
        )
        done.facts["times"] = "a call begins with the last event before it and ends with its first action"
        for name, stream in self._streams:
            stream.talk.finish()
            if stream.talk.steps:
                self._log.session(done.sink.name(name), stream.talk.steps)
            else:
                done.drop("no_calls", 0, f"{name}: a trajectory without an answer of the model")
        self._others.finish()
        self._log.finish("messages that the agent's templates write (workspace and skill notes), cut observations")

    def _event(self, stream: _Stream, event: Any, line: int, field: str) -> None:
        self._import.units += 1
        try:
            if not isinstance(event, dict):
                raise LineError("an event is an object", field=field)
            if "kind" in event and "action" not in event:
                what = f'an event of the newer SDK ("kind": "{event["kind"]}"), which is not read'
                raise LineError(what, field=field)
            if "observation" in event:
                self._observation(stream, _Event(event, line, field))
            else:
                self._action(stream, _Event(event, line, field))
        except LineError as error:
            self._import.drop("broken", line, f"{error.field}: {error.message}" if error.field else error.message)

    def _action(self, stream: _Stream, event: _Event) -> None:
        kind, source, args = event.obj.get("action"), event.obj.get("source"), _object(event.obj.get("args"))
        response = _object(_object(event.obj.get("tool_call_metadata")).get("model_response"))
        content = args.get("content")
        text = content if isinstance(content, str) else ""
        if kind == "system":
            tools = args.get("tools")
            stream.talk.tools = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else None
            self._sent(stream, event, {"role": "system", "content": text})
        elif kind == "message" and source == "user":
            self._sent(stream, event, {"role": "user", "content": text})
        elif kind == "condensation":
            self._condensed(stream, args)
            self._others.add(event.line, "agent condensation")
        elif response:
            self._responded(stream, event, response)
        elif source != "agent" or kind in _SILENT or not isinstance(kind, str):
            self._others.add(event.line, f"{source} {kind}")
        elif kind == "message":
            self._answered(stream, event, {"role": "assistant", "content": text})
        else:
            self._notes["answer_guess"] += 1
            said = [args.get(name) for name in ("thought", "command", "code", "content", "path")]
            guess = "\n".join(part for part in said if isinstance(part, str) and part)
            self._answered(stream, event, {"role": "assistant", "content": guess})

    def _responded(self, stream: _Stream, event: _Event, response: dict[str, Any]) -> None:
        """The first action of a response is its call; further ones are of the same."""
        name = str(response.get("id") or event.number)
        if name == stream.response:
            self._notes["same_response"] += 1
            return
        choices = response.get("choices")
        choice = _object(choices[0]) if isinstance(choices, list) and choices else {}
        said = {"role": "assistant", **_object(choice.get("message"))}
        message = {**sent_message(said, self._notes, event.field)[0], "role": "assistant"}
        stream.response = name
        model = response.get("model")
        stream.talk.model = model if isinstance(model, str) and model else stream.talk.model
        self._answered(stream, event, message, response.get("usage"))
        calls = message.get("tool_calls") or ()
        stream.open_calls.update(str(call.get("id")) for call in calls if isinstance(call, dict))

    def _answered(self, stream: _Stream, event: _Event, message: Message, usage: Any = None) -> None:
        if stream.talk.answer(message, event.line, event.field, event.at_s, usage):
            stream.context.append((event.number, message))

    def _observation(self, stream: _Stream, event: _Event) -> None:
        kind, content = event.obj.get("observation"), event.obj.get("content")
        call = _object(event.obj.get("tool_call_metadata")).get("tool_call_id")
        if not isinstance(content, str):
            raise LineError("expected text", field=f"{event.field}.content")
        if isinstance(call, str) and call in stream.open_calls:
            stream.open_calls.discard(call)
            self._sent(stream, event, {"role": "tool", "tool_call_id": call, "content": content})
        elif kind in _SILENT or event.obj.get("cause") is None:
            self._others.add(event.line, f"observation {kind}")
        else:
            self._sent(stream, event, {"role": "user", "content": content})

    def _sent(self, stream: _Stream, event: _Event, message: Message) -> None:
        stream.talk.prompt(message, event.line, event.field, event.at_s)
        stream.context.append((event.number, message))

    @staticmethod
    def _condensed(stream: _Stream, args: dict[str, Any]) -> None:
        """Some events are forgotten, and a summary may stand in their place."""
        first, last = args.get("forgotten_events_start_id"), args.get("forgotten_events_end_id")
        listed = args.get("forgotten_event_ids")
        gone = {each for each in listed if type(each) is int} if isinstance(listed, list) else set()
        if type(first) is int and type(last) is int and last - first < 1_000_000:
            gone.update(range(first, last + 1))
        stream.context = [each for each in stream.context if each[0] is None or each[0] not in gone]
        summary, offset = args.get("summary"), args.get("summary_offset")
        if isinstance(summary, str) and summary:
            at = offset if type(offset) is int and 0 <= offset <= len(stream.context) else 0
            stream.context.insert(at, (None, {"role": "user", "content": summary}))
        stream.talk.replace([message for _, message in stream.context])


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _matches(head: Head) -> bool:
    fields = head.fields()
    if "history" in fields and "instance_id" in fields:
        return b'"role"' not in head.text or b'"source"' in head.text
    return "source" in fields and bool(fields & {"action", "observation"})


OPENHANDS = Format(
    name="openhands",
    about="OpenHands trajectory",
    unit="event",
    matches=_matches,
    converter=OpenHandsConverter,
    notes=messages.NOTES
    | agent_log.NOTES
    | trajectories.NOTES
    | {
        "answers": "events that are answers of the model: {n}",
        "prompts": "events that are messages to the model: {n}",
        "unanswered": "events after the last answer: {n}",
        "broken": "events not shaped as expected: {n}",
        "same_response": "further actions of a response that has one: {n}",
        "answer_guess": "actions without the response they came from: {n} (its text is put together from the action)",
        "other_kinds": "events that are no messages: {n}",
    },
)
