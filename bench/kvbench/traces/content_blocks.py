"""Chained block hashes of turns that have text.

The prompt is rendered as the tool schemas (JSON), then each message's text and tool calls (JSON). Roles count no
token, but belong to the hash; a part that is not text stands as one token. Every message is cut into tokens by itself,
as chat templates put special tokens in between; the estimate of 4 characters a token runs on over message ends.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from kvbench.model import Message, SharedPrompt, Turn
from kvbench.traces.context import ContextBuilder
from kvbench.traces.prefix.blocks import common_prefix
from kvbench.traces.tokenizers import Tokenizer

CHARS_PER_TOKEN = 4
"""Of estimates, which are labelled as such: a tokenizer and the chat template are the endpoint's, not the trace's."""

_MARK_SHIFT = 24
"""Above code points (21 bits) and token ids: the first unit of a message carries its role there."""
_SIGN = -(1 << 63)


class ContentRule:
    """How text becomes units (32 bits each: a token id, or a character of the estimate); shared by all sessions."""

    def __init__(self, block_size: int, tokenizer: Tokenizer | None, prefixes: Mapping[str, SharedPrompt]) -> None:
        self.prefixes = prefixes
        self.units_per_token = CHARS_PER_TOKEN if tokenizer is None else 1
        self.units_per_block = block_size * self.units_per_token
        self.other_parts = 0
        self._tokenizer = tokenizer
        # Shared prompts are long and begin many sessions; their messages live as long as the trace.
        self._shared: dict[int, array[int] | None] = {
            id(message): None for prompt in prefixes.values() for message in prompt.messages
        }

    def tools(self, tools: Sequence[dict[str, Any]]) -> array[int]:
        return self._marked(self._encode(msgspec.json.encode(tools).decode()), "tools") if tools else array("I")

    def message(self, message: Message) -> array[int]:
        shared = self._shared.get(id(message), ())
        if isinstance(shared, array):
            return shared
        units = array("I")
        for text in self._texts(message):
            units.extend(self._encode(text) if isinstance(text, str) else text)
        self._marked(units, str(message.get("role")))
        if shared is None:
            self._shared[id(message)] = units
        return units

    def _texts(self, message: Message) -> Iterator[str | array[int]]:
        content = message.get("content")
        if isinstance(content, str):
            yield content
        elif isinstance(content, list):
            for part in content:
                if isinstance(part.get("text"), str):
                    yield part["text"]
                else:
                    self.other_parts += 1
                    mark = zlib.crc32(msgspec.json.encode(part)) & 0xFFFFF
                    yield array("I", [mark] * self.units_per_token)
        if message.get("tool_calls"):
            yield msgspec.json.encode(message["tool_calls"]).decode()

    def _encode(self, text: str) -> array[int]:
        if self._tokenizer is not None:
            return array("I", self._tokenizer.encode(text))
        units = array("I")
        units.frombytes(text.encode("utf-32-le", "surrogatepass"))
        return units

    @staticmethod
    def _marked(units: array[int], role: str) -> array[int]:
        if units:
            units[0] |= (zlib.crc32(role.encode()) % 255 + 1) << _MARK_SHIFT
        return units


class ContentBlocks:
    """The block hashes of one session; feed it the session's turns in order.

    Only the units of the last, open block are kept: a turn that goes back behind them is rendered again from its
    start, which costs what its own text is long.
    """

    def __init__(self, rule: ContentRule) -> None:
        self._rule = rule
        self._context = ContextBuilder(rule.prefixes)
        self._tools: tuple[dict[str, Any], ...] = ()
        self._messages: list[Message] = []
        self._units = 0
        self._open = array("I")
        self._hashes = array("q")

    def next(self, turn: Turn) -> tuple[int, Sequence[int], int]:
        """(leading blocks that are the previous turn's, hashes of the whole blocks after them, tokens)"""
        context = self._context.next(turn)
        messages = context.messages or []
        before = self._hashes
        known = len(self._messages)
        if context.tools == self._tools and messages[:known] == self._messages:
            kept = len(before)
            added = self._extend(messages[known:])
        else:
            self._units, self._open, self._hashes = 0, array("I"), array("q")
            self._append(self._rule.tools(context.tools))
            self._extend(messages)
            kept = common_prefix(before, self._hashes)
            added = self._hashes[kept:]
        self._tools, self._messages = context.tools, messages
        return kept, added, -(-self._units // self._rule.units_per_token)

    def _extend(self, messages: Sequence[Message]) -> array[int]:
        start = len(self._hashes)
        for message in messages:
            self._append(self._rule.message(message))
        return self._hashes[start:]

    def _append(self, units: array[int]) -> None:
        self._units += len(units)
        self._open.extend(units)
        width = self._rule.units_per_block
        whole = len(self._open) // width
        if not whole:
            return
        data = memoryview(self._open).cast("B")
        width *= self._open.itemsize
        value = self._hashes[-1] if self._hashes else 0
        for start in range(0, whole * width, width):
            block = hashlib.blake2b(value.to_bytes(8, "little", signed=True), digest_size=8)
            block.update(data[start : start + width])
            value = struct.unpack("<q", block.digest())[0] | _SIGN
            self._hashes.append(value)
        data.release()
        del self._open[: whole * self._rule.units_per_block]
