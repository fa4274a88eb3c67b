"""What vLLM adds to OpenAI's shape: exact output lengths, a cache namespace, /tokenize, and its own way to be known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvbench.endpoints.dialects import openai
from kvbench.endpoints.dialects.openai import Prompt
from kvbench.model import Api, Message

OWNERS = frozenset({"vllm", "kvbench-sim"})
"""owned_by in /v1/models of servers that speak this dialect."""


def build_body(
    *,
    model: str | None,
    api: Api,
    stream: bool,
    messages: Sequence[Message] | None = None,
    prompt: Prompt | None = None,
    tools: Sequence[dict[str, Any]] = (),
    output_tokens: int | None = None,
    salt: str | None = None,
    free_output: bool = False,
) -> dict[str, Any]:
    """As `openai.build_body`; the output has exactly `output_tokens`, and the salt has a field of its own, so that it
    costs no token and keeps every length exact."""
    body = openai.build_body(
        model=model,
        api=api,
        stream=stream,
        messages=messages,
        prompt=prompt,
        tools=tools,
        output_tokens=output_tokens,
        free_output=free_output,
    )
    if output_tokens is not None and not free_output:
        body["min_tokens"] = output_tokens
        body["ignore_eos"] = True
    if salt is not None:
        body["cache_salt"] = salt
    return body


def tokenize_body(
    *, model: str | None, messages: Sequence[Message] | None, prompt: str | None, tools: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """Body of POST /tokenize (vllm/entrypoints/serve/tokenize/protocol.py): as the request itself would be rendered."""
    body: dict[str, Any] = {} if model is None else {"model": model}
    if messages is not None:
        body |= {"messages": list(messages), "add_generation_prompt": True}
        if tools:
            body["tools"] = list(tools)
    else:
        body["prompt"] = prompt
    return body
