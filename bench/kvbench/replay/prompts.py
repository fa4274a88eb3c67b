"""What a turn of a replayed session sends: its context, with the salt and the history that were asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvbench.errors import RefusedError
from kvbench.model import Message, Record, SharedPrompt, Turn
from kvbench.replay.hashed import HashedSession, HashPrompts
from kvbench.replay.settings import RunSettings
from kvbench.traces.context import Context, ContextBuilder

ANY_BYTES = 1 << 40


@dataclass(frozen=True)
class Prompt:
    """One turn's prompt: either messages or token_ids, the other is None. `salt` separates cache namespaces; where the
    endpoint has no field for it, it already stands in the prompt. resent_bytes bounds the tokens of the session's
    previous output that the prompt repeats. text_tokens: of a message made from hash ids, without the chat template."""

    messages: list[Message] | None
    tools: tuple[dict[str, Any], ...]
    model: str | None
    salt: str | None
    resent_bytes: int = 0
    token_ids: list[int] | None = None
    text_tokens: int | None = None


def instance_id(session_id: str, cycle: int) -> str:
    """The id of a session used again (--duration) differs by cycle; the first use keeps the trace's id."""
    return session_id if cycle == 0 else f"{session_id}~{cycle}"


def salt_for(settings: RunSettings, run_id: str, root_id: str, cycle: int) -> str | None:
    """`run`: one salt for all trees, so that what sessions share stays shared; a tree used again gets that of its
    cycle, so that it does not hit its own earlier use. `tree`: one a root tree and use. `none`: no salt."""
    if settings.salt == "none":
        return None
    scope = f"{run_id}/{cycle}" if settings.salt == "run" else f"{run_id}/{cycle}/{root_id}"
    return hashlib.sha256(scope.encode("utf-8", "backslashreplace")).hexdigest()[:16]


class SessionPrompts:
    """The prompts of one session; feed it the session's turns in order, each with the final record of the one before.

    Live history (`live`): the text just received replaces the recorded answer. resend_reasoning: the endpoint wants
    the reasoning that led to it back, where the prompt has tools. Turns without text need `hashed`, which says how
    their prompts are made, and all of the session's `turns`.
    """

    def __init__(
        self,
        prefixes: Mapping[str, SharedPrompt],
        *,
        salt: str | None,
        salt_in_text: bool,
        live: bool,
        resend_reasoning: bool = False,
        hashed: HashPrompts | None = None,
        turns: Sequence[Turn] = (),
    ) -> None:
        self._hashed = hashed
        self._blocks = None
        if hashed is not None and turns and turns[0].hash_ids is not None:
            self._blocks = HashedSession(hashed, turns)
        self._context = ContextBuilder(prefixes)
        self._salt = salt
        self._salt_in_text = salt_in_text and salt is not None
        self._live = live
        self._resend_reasoning = resend_reasoning
        self._had_tools = False
        self._previous_length = 0

    def next(self, turn: Turn, last: Record | None, text_tokens: int | None = None) -> Prompt:
        """text_tokens: the length to give a text that is made from hash ids, if not the one that fits."""
        if self._live and last is not None:
            # An answer that was not thought about is still asked for its reasoning: an empty one.
            reasoning = (last.reasoning_text or "") if self._resend_reasoning and self._had_tools else None
            self._context.replace_last_assistant(last.output_text or "", reasoning)
        context = self._context.next(turn)
        self._had_tools = bool(context.tools)
        messages = context.messages
        if messages is None:
            return self._from_blocks(turn, context, last, text_tokens)
        resent = 0
        if last is not None and self._previous_length < len(messages):
            resent = resent_bytes(last, messages[self._previous_length])
        self._previous_length = len(messages)
        if self._salt_in_text and messages:
            messages[0] = _salted(messages[0], f"[{self._salt}] ")
        return Prompt(messages=messages, tools=context.tools, model=context.model, salt=self._salt, resent_bytes=resent)

    def pass_over(self, turn: Turn) -> None:
        """Go on to the session's next turn without sending it: it is a part of what comes after."""
        context = self._context.next(turn)
        self._had_tools = bool(context.tools)
        if context.messages is not None:
            self._previous_length = len(context.messages)
        elif self._blocks is not None:
            self._blocks.next(turn, context.hash_ids or (), context.kept, None)

    def _from_blocks(self, turn: Turn, context: Context, last: Record | None, text_tokens: int | None) -> Prompt:
        assert self._blocks is not None
        assert self._hashed is not None
        output_ids = None
        if self._live and last is not None:
            output_ids = last.output_token_ids
            if output_ids is None:
                raise RefusedError(
                    f"session {turn.session_id!r}, turn {turn.turn - 1}: the answer came without the ids of its "
                    "tokens, which live history of a trace with hash ids goes on with",
                    hint="leave --history live out",
                )
        self._blocks.next(turn, context.hash_ids or (), context.kept, output_ids)
        salt = self._salt if self._salt_in_text else None
        if self._hashed.as_ids:
            ids = self._blocks.token_ids(salt)
            return Prompt(None, (), context.model, self._salt, token_ids=ids)
        text, tokens = self._blocks.text(salt, text_tokens)
        return Prompt([{"role": "user", "content": text}], (), context.model, self._salt, text_tokens=tokens)


def resent_bytes(last: Record, message: Message) -> int:
    """An upper bound on the generated tokens that `message`, sent right after the previous prompt, repeats.

    A repeated token stands for at least one byte of text, so the bytes that both texts begin with bound it. Tool
    calls are rendered by a template that is not known here: where both have some, there is no bound.
    """
    if message.get("role") != "assistant":
        return 0
    if last.tool_calls and message.get("tool_calls"):
        return ANY_BYTES
    texts = [_text(message.get("content"))]
    texts.extend(str(message[key]) for key in ("reasoning", "reasoning_content") if message.get(key))
    received = [text for text in (last.output_text, last.reasoning_text) if text]
    if len(texts) > 1 and last.reasoning_text:
        return ANY_BYTES
    return max((_common_bytes(a, b) for a in texts for b in received), default=0)


def _common_bytes(a: str, b: str) -> int:
    left, right = a.encode("utf-8", "backslashreplace"), b.encode("utf-8", "backslashreplace")
    for i, (x, y) in enumerate(zip(left, right, strict=False)):
        if x != y:
            return i
    return min(len(left), len(right))


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _salted(message: Message, salt: str) -> Message:
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [{"type": "text", "text": salt}, *content]}
    return {**message, "content": salt + (content or "")}
