"""How llama.cpp's server tells the token ids of a prompt: it renders the messages, and tokenizes the text, apart.

Its cache goes by slots: a request hits the longest common prefix with what its slot served last, token by token. So no
rule of blocks holds by itself; where a run has no more live sessions than the server has slots, blocks of one token do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvbench.model import Message

OWNER = "llamacpp"
"""owned_by in /v1/models."""
SERVER = "llama.cpp"


def template_body(messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Body of POST /apply-template, whose answer is {"prompt": text}."""
    body: dict[str, Any] = {"messages": list(messages)}
    return body | {"tools": list(tools)} if tools else body


def tokenize_body(prompt: str) -> dict[str, Any]:
    """Body of POST /tokenize: as a prompt is, with the tokens that begin it, and the template's own as such."""
    return {"content": prompt, "add_special": True, "parse_special": True}
