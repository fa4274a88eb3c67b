"""The calls of an agent's log, in the order in which its sessions made them, as native turns.

A log of this kind holds each message once: a call adds to what its session sent before, unless its context was rewound
or compacted. So its turns cost what they add, however long a session is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kvbench.errors import InputError
from kvbench.model import Message, Recorded, Turn, TurnRef
from kvbench.traces.content_blocks import CHARS_PER_TOKEN
from kvbench.traces.formats.base import Import
from kvbench.traces.formats.sink import SHOWN_DROPPED, LoggedUsage
from kvbench.traces.lines import MAX_TIME_S

CLOCK_S = 0.5
"""A log dates lines as they are written: what is written this much later may have happened before."""

PLACEHOLDER_CHARS_PER_TOKEN = 8
"""An answer with more text than this a token cannot have been counted to its end; code and prose have 3 to 6."""

NOTES = {
    "replaced": "calls whose context does not go on from the call before (rewound, compacted, or begun anew): {n} "
    "(they replace it)",
    "clipped_pauses": "calls that began before the one they follow had ended: {n} (they follow without a pause)",
    "no_time": "calls without a time: {n} (they follow at once)",
    "pauses_with_answer": "pauses that hold the answer's own time too: {n} (the log does not say how long it took)",
    "no_new_message": "calls with nothing new after the answer before them: {n} (their prompt ends with that answer)",
    "placeholder_output": "answers whose logged length is a placeholder from the stream's start: {n} (their length is "
    "estimated from their text instead, at 4 characters a token)",
    "no_usage": "calls without usage: {n} (their answer's length is estimated from its text, at 4 characters a token)",
    "joined": "sub-agents whose result their caller's next call holds: {n} (it waits for them)",
    "not_joined": "sub-agents that nothing waits for: {n}",
    "own_root": "sub-agents whose caller was not found: {n} (they start on their own, as roots)",
    "started_early": "sub-agents that began before the answer that called them had ended: {n} (they start at its end)",
    "no_object": "lines that are no JSON object: {n}",
    "no_prompt": "calls without any message before them: {n}",
}


class Step(msgspec.Struct, kw_only=True):
    """One call to a model. times are Unix seconds, None where the log has none.

    new: what it adds to the call before it, that one's answer not included. context: the whole prompt, where it does
    not go on from there; asked for only then. answer: what came back, as the next call's prompt holds it.
    """

    line: int
    new: list[Message]
    answer: Message
    context: Callable[[], list[Message]] | None = None
    tools: list[dict[str, Any]] | None = None
    start_s: float | None = None
    end_s: float | None = None
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    usage: dict[str, Any] | None = None
    pause_s: float | None = None
    """The pause before it, where the log has that and no times."""
    streamed_to_end: bool = True
    """Whether the log says that the answer was logged after its end."""
    waits: list[tuple[str, float]] = []
    """Sub-agents' sessions whose results `new` holds, and when each ended."""


class Called(msgspec.Struct):
    """What started a sub-agent: a turn, and when it ended."""

    session: str
    turn: int
    end_s: float | None


class OtherLines:
    """Lines that are no part of any call: counted by kind, and told after all that may have been meant as one."""

    def __init__(self, target: Import) -> None:
        self._import = target
        self._kinds: Counter[str] = Counter()
        self._first: list[tuple[str | None, int, str]] = []

    def add(self, line: int, kind: str) -> None:
        self._kinds[kind] += 1
        if len(self._first) < SHOWN_DROPPED:
            self._first.append((self._import.log.file, line, f"a line of type {kind}"))

    def finish(self) -> None:
        sink = self._import.sink
        for file, line, reason in self._first:
            sink.drop("other_kinds", line, reason, file)
        sink.dropped["other_kinds"] += self._kinds.total() - len(self._first)
        if self._kinds:
            kinds = ", ".join(f"{kind} {n:,}" for kind, n in sorted(self._kinds.items()))
            self._import.facts["other kinds of lines"] = kinds


class AgentLog:
    """Writes sessions, and keeps what the report says of all of them."""

    def __init__(self, target: Import) -> None:
        self._import = target
        self._sink = target.sink
        self.base_s: float | None = None
        """What trace time counts from; set before the first session is written."""
        self._usage_tokens = self._text_chars = self._compared = 0

    def session(
        self, name: str, steps: Sequence[Step], called: Called | None = None, tree_s: float | None = None
    ) -> None:
        """A session's calls as turns. tree_s: when the first call of its tree began; None: with this one."""
        notes = self._sink.notes
        begin_s = steps[0].start_s
        tree_s = begin_s if tree_s is None else tree_s
        before: Step | None = None
        chars = 0
        model: str | None = None
        tools: list[dict[str, Any]] | None = None
        for number, step in enumerate(steps):
            append: list[Message] | None = None
            replace: list[Message] | None = None
            if step.context is not None and number:
                replace = step.context()
                notes["replaced"] += 1
                chars = sum(map(message_chars, replace))
            elif step.context is not None:
                append = step.context()
                chars = sum(map(message_chars, append))
            else:
                append = step.new if before is None else [before.answer, *step.new]
                notes["no_new_message"] += before is not None and not step.new
                chars += sum(map(message_chars, append))
            self._compare(step, chars)
            self._used(step)
            ref: TurnRef | None = None
            start_s: float | None = None
            pause_s = 0.0
            if number:
                pause_s = self._pause_s(step, before)
            elif called is not None:
                ref = TurnRef(called.session, called.turn)
                pause_s = self._after_s(step, called)
            else:
                start_s = self._trace_s(step)
            self._sink.turn(
                Turn(
                    session_id=name,
                    turn=number,
                    line=step.line,
                    parent=ref,
                    after=tuple(session for session, _ in step.waits) if number else (),
                    start_s=start_s,
                    delay_s=round(pause_s, 6),
                    input_tokens=step.input_tokens or None,
                    output_tokens=self._output_tokens(step),
                    append=None if append is None else tuple(append),
                    messages=None if replace is None else tuple(replace),
                    tools=tuple(step.tools or ()) if step.tools != tools else None,
                    model=step.model if step.model and step.model != model else None,
                    recorded=_recorded(step, tree_s),
                )
            )
            before, model, tools = step, step.model or model, step.tools
            notes["no_time"] += step.start_s is None and step.pause_s is None
        self._sink.sub_agents += called is not None

    def finish(self, missing: str) -> None:
        """Compare what the log says the prompts' lengths were to what its text comes to; `missing`: what it lacks."""
        if not self._compared:
            self._import.facts["lengths"] = (
                f"not in the source, and neither is what prompts had besides this text: {missing}"
            )
            return
        text = self._text_chars // CHARS_PER_TOKEN
        share = text / self._usage_tokens if self._usage_tokens else 1.0
        why = f"the rest, {missing}, is not in the log" if share < 1 else "what the usage counts cannot be this text"
        self._import.facts["lengths"] = (
            f"input_tokens are those logged, {self._usage_tokens:,} over {self._compared:,} calls. A run sends the "
            f"log's text, about {text:,} tokens (estimated at 4 characters a token; {share:.0%}): {why}"
        )

    def require_calls(self) -> None:
        """A log from which no call came is an error, unless something else is wrong with it."""
        log = self._import.log
        if not self._sink.turns and not log.errors:
            log.error(0, "no call to a model in it that could be sent", hint="see kvbench trace validate")

    def input_error(self, error: InputError, path: Any) -> None:
        """What reading a file found, told as the conversion's other problems are."""
        if self._import.log.strict:
            raise error
        where = f"{path}:{error.line}: " if error.line else f"{path}: "
        self._import.log.error(error.line or 0, str(error).removeprefix(where), hint=error.hint)

    def _used(self, step: Step) -> None:
        most: int | None = None
        if step.output_tokens is not None and _is_placeholder(step):
            # No token is less than a byte.
            most = len(msgspec.json.encode(step.answer))
        self._sink.used(
            LoggedUsage(
                line=step.line,
                file=self._import.log.file,
                model=step.model,
                usage=step.usage,
                start_s=step.start_s,
                end_s=step.end_s,
                output_most=most,
            )
        )

    def _compare(self, step: Step, chars: int) -> None:
        if step.input_tokens:
            self._compared += 1
            self._usage_tokens += step.input_tokens
            self._text_chars += chars

    def _trace_s(self, step: Step) -> float:
        if step.start_s is None or self.base_s is None:
            return 0.0
        return round(min(max(step.start_s - self.base_s, 0.0), MAX_TIME_S), 6)

    def _pause_s(self, step: Step, before: Step | None) -> float:
        if step.pause_s is not None:
            return step.pause_s
        ends = [end for _, end in step.waits]
        if before is not None and before.end_s is not None:
            ends.append(before.end_s)
        elif before is not None and before.start_s is not None and step.start_s is not None:
            self._sink.notes["pauses_with_answer"] += 1
            ends.append(before.start_s)
        if step.start_s is None or not ends:
            return 0.0
        pause_s = step.start_s - max(ends)
        self._sink.notes["clipped_pauses"] += pause_s < -CLOCK_S
        return min(max(pause_s, 0.0), MAX_TIME_S)

    def _after_s(self, step: Step, called: Called) -> float:
        if step.start_s is None or called.end_s is None:
            return 0.0
        pause_s = step.start_s - called.end_s
        self._sink.notes["started_early"] += pause_s < -CLOCK_S
        return min(max(pause_s, 0.0), MAX_TIME_S)

    def _output_tokens(self, step: Step) -> int:
        chars = message_chars(step.answer)
        tokens = step.output_tokens
        if tokens is None:
            self._sink.notes["no_usage"] += 1
        elif _is_placeholder(step):
            self._sink.notes["placeholder_output"] += 1
        else:
            self._sink.notes["zero_output"] += tokens == 0
            return max(tokens, 1)
        return max(-(-chars // CHARS_PER_TOKEN), 1)


def _is_placeholder(step: Step) -> bool:
    """Whether the answer's logged length is one from its stream's start."""
    chars = message_chars(step.answer)
    return not step.streamed_to_end and chars > PLACEHOLDER_CHARS_PER_TOKEN * (step.output_tokens or 0)


def message_chars(message: Message) -> int:
    """Characters of a message that a model reads or wrote."""
    content = message.get("content")
    total = len(content) if isinstance(content, str) else 0
    if isinstance(content, list):
        total += sum(len(part["text"]) for part in content if isinstance(part.get("text"), str))
    total += len(message.get("reasoning_content") or "")
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        total += len(str(function.get("name", ""))) + len(str(function.get("arguments", "")))
    return total


def _recorded(step: Step, tree_s: float | None) -> Recorded | None:
    at_s = e2e_s = None
    if step.start_s is not None and tree_s is not None:
        at_s = round(min(max(step.start_s - tree_s, 0.0), MAX_TIME_S), 6)
        if step.end_s is not None and 0 <= step.end_s - step.start_s <= MAX_TIME_S:
            e2e_s = round(step.end_s - step.start_s, 6)
    if (at_s, step.cached_tokens, step.usage) == (None, None, None):
        return None
    return Recorded(at_s=at_s, e2e_s=e2e_s, cached_tokens=step.cached_tokens, usage=step.usage)
