"""Token ids of a chat prompt where the server tells none: by the profile's tokenizer, and a stand-in for the template.

What the template adds is not known, only how many tokens the answer reports: the first report's surplus is set before
every prompt, and what later ones differ by widens every expectation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import replace

from kvbench.model import Expectation
from kvbench.replay.hashed import MOST_TEMPLATE_TOKENS
from kvbench.replay.prompts import Prompt
from kvbench.traces.prefix import Rule

MARK = 0xFFFF0000
"""Stand-ins for special tokens begin here, above every tokenizer's ids."""
_ROLES = ("system", "user", "assistant", "tool", "developer")
_FILL, _TOOLS, _ANSWER, _END, _ROLE = range(5)
_KEPT_TEXTS = 4096


class LocalIds:
    """Prompts as ids under one tokenizer. slack_tokens: the most that any prompt's length was off so far."""

    def __init__(self, encode: Callable[[str], list[int]], name: str) -> None:
        self.name = name
        self.used = False
        self.slack_tokens = 0
        self._fill: int | None = None
        self._encode = lru_cache(_KEPT_TEXTS)(encode)

    def ids(self, prompt: Prompt) -> list[int]:
        """Each message's texts between marks of their own, the answer's mark at the end."""
        self.used = True
        ids: list[int] = []
        if prompt.tools:
            ids += [MARK + _TOOLS, *self._encode(msgspec.json.encode(prompt.tools).decode())]
        for message in prompt.messages or ():
            role = message.get("role")
            ids.append(MARK + _ROLE + (_ROLES.index(role) if role in _ROLES else len(_ROLES)))
            for text in _texts(message):
                ids += self._encode(text)
            if role == "assistant":
                ids.append(MARK + _END)
        return [*ids, MARK + _ANSWER]

    def aligned(self, ids: list[int], reported: int | None) -> list[int]:
        """`ids` at the length that was reported, as far as that can be: to be called in order of sending."""
        if not self.used:
            return ids
        surplus = 0 if reported is None else reported - len(ids)
        if self._fill is None:
            self._fill = surplus if 0 <= surplus <= MOST_TEMPLATE_TOKENS else 0
        if reported is not None:
            self.slack_tokens = max(self.slack_tokens, abs(surplus - self._fill))
        return [MARK + _FILL] * self._fill + ids

    def widened(self, rule: Rule, expectation: Expectation) -> Expectation:
        """The expectation with its source named, and room for positions that are off by the slack."""
        floor, ceiling, tokens = expectation.floor, expectation.ceiling, expectation.input_tokens
        if not self.used or floor is None or ceiling is None or tokens is None:
            return expectation
        slack, reason = self.slack_tokens, expectation.reason
        if slack:
            floor = rule.floor_tokens(floor - slack, tokens)
            ceiling = rule.ceiling_tokens(ceiling + slack, tokens)
            if floor < ceiling and reason is None:
                reason = f"the tokenizer's lengths are up to {slack} tokens off the server's"
        name = f"{expectation.rule} (ids by tokenizer {self.name})"
        return replace(expectation, rule=name, floor=floor, ceiling=ceiling, reason=reason)


def _texts(message: dict[str, Any]) -> list[str]:
    texts = [str(message[key]) for key in ("reasoning", "reasoning_content") if message.get(key)]
    content = message.get("content")
    if isinstance(content, list):
        texts += [str(part.get("text") or msgspec.json.encode(part).decode()) for part in content]
    elif content:
        texts.append(str(content))
    if message.get("tool_calls"):
        texts.append(msgspec.json.encode(message["tool_calls"]).decode())
    return texts
