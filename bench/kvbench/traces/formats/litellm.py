"""LiteLLM's StandardLoggingPayload, one a line: what its callbacks and its proxy log of each call.

`cache_hit` is LiteLLM's own cache of responses, not the model's KV cache: such calls never reached the endpoint.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kvbench.model import Message
from kvbench.traces.formats.answers import answer_of, json_of
from kvbench.traces.formats.base import Format, Import
from kvbench.traces.formats.calls import Call, Seen, TimeUnits
from kvbench.traces.formats.conversation import NOTES as CONVERSATION_NOTES
from kvbench.traces.formats.conversation import Conversations
from kvbench.traces.formats.messages import chat_messages, chat_tools
from kvbench.traces.formats.source import Head, SourceFile
from kvbench.traces.formats.usage import NOTES as USAGE_NOTES
from kvbench.traces.formats.usage import token_counts
from kvbench.traces.lines import LineError, convert_object
from kvbench.traces.prefix.marks import MARK, MarkedPrompt, marked_prompt

_Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_CHAT = ("completion", "acompletion", "anthropic_messages", "aanthropic_messages")
_REDACTED = "redacted-by-litellm"
_CUT = "litellm_truncated"


class _Payload(msgspec.Struct):
    id: str | None = None
    trace_id: str | None = None
    call_type: str | None = None
    status: str | None = None
    cache_hit: bool | str | None = None
    start: float | str | None = msgspec.field(name="startTime", default=None)
    end: float | str | None = msgspec.field(name="endTime", default=None)
    completion_start: float | str | None = msgspec.field(name="completionStartTime", default=None)
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    model: str | None = None
    messages: Any = None
    response: Any = None
    metadata: Any = None
    model_parameters: Any = None


class LiteLlmConverter:
    """The payloads of a source, in any order."""

    def __init__(self, target: Import) -> None:
        self._import = target
        self._notes = target.sink.notes
        self._conversations = Conversations(target)
        self._units = TimeUnits()
        self._seen = Seen()

    def file(self, file: SourceFile) -> None:
        for line, obj in self._import.objects(file):
            self._import.units += 1
            inner = obj.get("standard_logging_object")
            try:
                self._add(inner if isinstance(inner, dict) else obj, line)
            except LineError as error:
                self._import.error(line, error)

    def end(self) -> None:
        self._conversations.finish()
        self._import.facts["sessions"] = (
            "calls of one trace_id, and those that go on from them by content (LiteLLM gives each call an id of its "
            "own, unless its caller does)"
        )

    def _add(self, obj: dict[str, Any], line: int) -> None:
        payload = convert_object(obj, _Payload)
        left_out = self._left_out(payload)
        if left_out is not None:
            self._import.drop(left_out[0], line, left_out[1])
            return
        notes: Counter[str] = Counter()
        usage = self._usage(payload)
        counts = token_counts(usage, notes)
        start_s = self._units.seconds(payload.start, "startTime")
        end_s = self._units.seconds(payload.end, "endTime")
        first_s = self._units.seconds(payload.completion_start, "completionStartTime")
        ttft_s = None
        # Where nothing was streamed, both are the end.
        if None not in (start_s, end_s, first_s) and start_s <= first_s < end_s:  # type: ignore[operator]
            ttft_s = round(first_s - start_s, 6)  # type: ignore[operator]
        messages = self._messages(payload, notes)
        parameters = payload.model_parameters if isinstance(payload.model_parameters, dict) else {}
        self._notes.update(notes)
        self._conversations.add(
            Call(
                line=line,
                messages=messages,
                tools=chat_tools(parameters.get("tools"), self._notes, field="model_parameters.tools"),
                answer=answer_of(payload.response, self._notes) if messages else None,
                session=payload.trace_id or None,
                weak=True,
                model=payload.model or None,
                start_s=start_s,
                end_s=end_s,
                ttft_s=ttft_s,
                input_tokens=payload.prompt_tokens or counts.input_tokens,
                output_tokens=self._output_tokens(payload, counts.output_tokens),
                cached_tokens=counts.cached_tokens,
                usage=usage,
            ),
            self._marked(payload, parameters) if messages and self._conversations.wants_marks else None,
        )

    @staticmethod
    def _marked(payload: _Payload, parameters: dict[str, Any]) -> MarkedPrompt:
        found = payload.messages
        if isinstance(found, str):
            found = json_of(found, "messages")
        if isinstance(found, dict):
            found = found.get("messages", [found])
        return marked_prompt(parameters.get("tools"), parameters.get("system"), found, last=parameters.get(MARK))

    def _left_out(self, payload: _Payload) -> tuple[str, str] | None:
        if payload.call_type and payload.call_type not in _CHAT:
            return "other_calls", f'call_type "{payload.call_type[:40]}", which is no chat'
        if payload.status == "failure":
            return "failed", "status failure"
        if payload.cache_hit in (True, "True", "true"):
            return "answered_by_cache", "cache_hit: LiteLLM answered it itself"
        if payload.id and self._seen.again(payload.id):
            return "again", f'id "{payload.id[:60]}" stands before it already'
        return None

    def _usage(self, payload: _Payload) -> dict[str, Any] | None:
        """The provider's report, which alone tells of cached tokens."""
        metadata = payload.metadata if isinstance(payload.metadata, dict) else {}
        response = payload.response if isinstance(payload.response, dict) else {}
        for usage in (metadata.get("usage_object"), response.get("usage")):
            if isinstance(usage, dict):
                return usage
        return None

    def _output_tokens(self, payload: _Payload, reported: int | None) -> int | None:
        """LiteLLM writes 0 and 0 where the provider reported nothing."""
        if payload.prompt_tokens == 0:
            self._notes["usage_placeholder"] += 1
            return reported
        return reported if payload.completion_tokens is None else payload.completion_tokens

    def _messages(self, payload: _Payload, notes: Counter[str]) -> list[Message] | None:
        found = payload.messages
        if isinstance(found, str) and found.lstrip().startswith("["):
            found = json_of(found, "messages")
        if isinstance(found, dict):
            found = found.get("messages", [found])
        if found is None or found == [] or isinstance(found, str):
            return None
        messages = chat_messages(found, notes)
        if all(message.get("content") == _REDACTED for message in messages):
            return None
        text = msgspec.json.encode(messages)
        if _CUT.encode() in text:
            notes["cut"] += 1
        return messages


def _matches(head: Head) -> bool:
    fields = head.fields()
    return ({"startTime", "endTime"} <= fields and "attributes" not in fields) or "standard_logging_object" in fields


LITELLM = Format(
    name="litellm",
    about="LiteLLM",
    unit="payload",
    matches=_matches,
    converter=LiteLlmConverter,
    notes=CONVERSATION_NOTES
    | USAGE_NOTES
    | {
        "other_calls": "payloads of calls that are no chat (embeddings, images ...): {n}",
        "failed": "payloads of calls that failed: {n}",
        "answered_by_cache": "payloads of calls that LiteLLM's own cache answered, so the endpoint never saw them: {n}",
        "again": "payloads whose id stands before them already: {n}",
        "cut": "prompts that LiteLLM had cut to a length in its log: {n} (sent as they are there)",
    },
)
