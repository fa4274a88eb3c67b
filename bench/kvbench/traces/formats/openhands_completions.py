"""OpenHands' logs of its calls (`llm_completions/`): a file a call, with the prompt that was sent and the response.

Written from the project's source, without a sample. `fncall_messages` is what the prompt was made from where tools are
written into its text; what was sent is `messages`.
"""

from __future__ import annotations

from typing import Any

from kvbench.traces.formats.answers import answer_of
from kvbench.traces.formats.base import Format, Import
from kvbench.traces.formats.calls import Call, time_s
from kvbench.traces.formats.conversation import NOTES as CONVERSATION_NOTES
from kvbench.traces.formats.conversation import Conversations
from kvbench.traces.formats.messages import chat_messages, chat_tools
from kvbench.traces.formats.source import Head, SourceFile
from kvbench.traces.formats.usage import NOTES as USAGE_NOTES
from kvbench.traces.formats.usage import token_counts
from kvbench.traces.lines import LineError


class OpenHandsCompletionsConverter:
    def __init__(self, target: Import) -> None:
        self._import = target
        self._notes = target.sink.notes
        self._conversations = Conversations(target)

    def file(self, file: SourceFile) -> None:
        for line, obj in self._import.objects(file):
            self._import.units += 1
            try:
                self._add(obj, line)
            except LineError as error:
                self._import.error(line, error)

    def end(self) -> None:
        self._import.facts["sessions"] = "found by content: a call goes on with the one whose messages it begins with"
        self._conversations.finish()

    def _add(self, obj: dict[str, Any], line: int) -> None:
        response = obj.get("response") if isinstance(obj.get("response"), dict) else None
        arguments = obj.get("kwargs") if isinstance(obj.get("kwargs"), dict) else {}
        usage = response.get("usage") if response is not None else None
        counts = token_counts(usage, self._notes)
        model = response.get("model") if response is not None else None
        messages = chat_messages(obj.get("messages"), self._notes)
        tools = chat_tools((arguments or {}).get("tools"), self._notes, field="kwargs.tools")
        self._conversations.add(
            Call(
                line=line,
                messages=messages,
                tools=tools,
                answer=answer_of(response, self._notes),
                model=model if isinstance(model, str) and model else None,
                start_s=time_s(obj.get("timestamp"), "timestamp"),
                input_tokens=counts.input_tokens,
                output_tokens=counts.output_tokens,
                cached_tokens=counts.cached_tokens,
                usage=usage if isinstance(usage, dict) else None,
            )
        )


def _matches(head: Head) -> bool:
    fields = head.fields()
    return {"messages", "response"} <= fields and bool(fields & {"kwargs", "fncall_messages"})


OPENHANDS_COMPLETIONS = Format(
    name="openhands-completions",
    about="OpenHands completions",
    unit="call",
    matches=_matches,
    converter=OpenHandsCompletionsConverter,
    notes=CONVERSATION_NOTES | USAGE_NOTES,
)
