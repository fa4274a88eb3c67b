"""A tokenizer of the simulation's own: each four bytes of UTF-8 are one token.

It costs a copy of the text and nothing else, has no collisions, and tokenises every piece of a message by itself, so
what is appended later never shifts an earlier id. Token ids are held as bytes, four a token, little-endian; a prompt
of n tokens is 4 n bytes. UTF-8 has no byte 0xFF, so ids from 0xFFFFFF00 up are free for the template's own marks.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

TOKEN_BYTES = 4
VOCABULARY = 2**32

_SPECIAL = 0xFFFFFF00


def _mark(number: int) -> bytes:
    return struct.pack("<I", _SPECIAL + number)


START, SEPARATOR, END, TOOLS, CALL = (_mark(number) for number in range(5))
_ROLES = {role: _mark(16 + n) for n, role in enumerate(("system", "developer", "user", "assistant", "tool"))}
GENERATION_PROMPT = START + _ROLES["assistant"] + SEPARATOR


class PromptError(Exception):
    """A prompt the simulated model cannot take; the text is fit for the answer to the client."""


def encode_text(text: str) -> bytes:
    """Token ids of a text, the last one padded with zero bytes."""
    raw = text.encode("utf-8", "surrogatepass")
    return raw + b"\0" * (-len(raw) % TOKEN_BYTES)


def encode_ids(ids: Sequence[int]) -> bytes:
    """Token ids given as numbers; PromptError where one is no id."""
    try:
        tokens = array("I", ids)
    except (OverflowError, TypeError):
        raise PromptError(f"Token ids must be integers from 0 to {VOCABULARY - 1}.") from None
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tobytes()


def decode_ids(tokens: bytes) -> list[int]:
    """Token ids as numbers."""
    ids = array("I", tokens)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tolist()


def encode_chat(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    *,
    add_generation_prompt: bool = True,
    keep_reasoning: bool = False,
) -> bytes:
    """Token ids of a chat: tool schemas, then messages: START role SEPARATOR [call id SEPARATOR] content calls END.

    PromptError for a message that is not text. Call ids are rendered too: a client that loses one is found out.
    keep_reasoning: the reasoning_content of a message comes before its content, as it was generated; else it is left
    out.
    """
    parts: list[bytes] = []
    if tools:
        parts += (TOOLS, encode_text(msgspec.json.encode(tools).decode()), END)
    for message in messages:
        role = message.get("role")
        if not isinstance(role, str):
            raise PromptError("Every message needs a role.")
        parts += (START, _ROLES.get(role) or encode_text(role), SEPARATOR)
        answers = message.get("tool_call_id")
        if answers is not None:
            parts += (encode_text(str(answers)), SEPARATOR)
        if keep_reasoning:
            parts.append(_encode_content(message.get("reasoning_content")))
        parts.append(_encode_content(message.get("content")))
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list):
            raise PromptError("The tool_calls of a message must be a list, or null.")
        for call in calls:
            parts += (CALL, *_encode_call(call))
        parts.append(END)
    if add_generation_prompt:
        parts.append(GENERATION_PROMPT)
    return b"".join(parts)


def _encode_content(content: object) -> bytes:
    if content is None:
        return b""
    if isinstance(content, str):
        return encode_text(content)
    if isinstance(content, list):
        texts = []
        for part in content:
            text = part.get("text") if isinstance(part, dict) else part
            if not isinstance(text, str):
                kind = part.get("type") if isinstance(part, dict) else type(part).__name__
                raise PromptError(f"The simulated model takes text only, not a part of type {kind!r}.")
            texts.append(encode_text(text))
        return b"".join(texts)
    raise PromptError("The content of a message must be text, a list of parts, or null.")


def _encode_call(call: object) -> tuple[bytes, ...]:
    if not isinstance(call, dict):
        raise PromptError("Every tool call must be an object.")
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise PromptError("Every tool call needs a function with a name.")
    arguments = function.get("arguments") or ""
    if not isinstance(arguments, str):
        arguments = msgspec.json.encode(arguments).decode()
    call_id = encode_text(str(call.get("id") or ""))
    return call_id, SEPARATOR, encode_text(function["name"]), SEPARATOR, encode_text(arguments)
