"""What DeepSeek's API adds to OpenAI's shape, as its documentation says (api-docs.deepseek.com, November 2026).

Thinking is on unless a request says otherwise, its text comes as `reasoning_content`, and a request with tools has to
send it back with every earlier assistant message (else 400). There is no ignore_eos: an answer may end before
max_tokens. There is no cache salt either; `user_id` (extra_body) partitions the cache further. While a request waits
the API sends `: keep-alive` comments, or blank lines where the answer is no stream; neither is a token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvbench.endpoints.dialects import openai
from kvbench.endpoints.dialects.openai import Prompt
from kvbench.model import Api, Message

URL = "https://api.deepseek.com"
MODEL = "deepseek-flash"
KEY_ENV = "DEEPSEEK_API_KEY"
OWNER = "deepseek"
"""owned_by in /models."""
SIMULATOR = "kvbench-sim"
"""How the simulated endpoint names itself. It tells a prompt's token ids, which the API does not."""
SIMULATOR_TOKENIZE_PATH = "/sim/tokenize"

FLASH = (MODEL, "deepseek-v4-flash", "deepseek-v4-flash-vision-exp")
"""Names of one model: the second and third are aliases, billed as the first, and need not be listed."""
PRO = "deepseek-v4-pro"
RETIRED = frozenset({"deepseek-chat", "deepseek-reasoner"})
"""Retired on 2026-07-24, 15:59 UTC."""

_IN_FLIGHT_LIMITS = {**dict.fromkeys(FLASH, 2500), PRO: 500}

WAIT_LIMIT_S = 600.0
"""The API closes a connection whose request has not begun to be inferred by then."""


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
    thinking: bool | None = None,
) -> dict[str, Any]:
    """As `openai.build_body`. thinking: None leaves it to the API, which thinks. Reasoning in `messages` goes by its
    name here, whichever of the two names the trace uses."""
    body = openai.build_body(
        model=model,
        api=api,
        stream=stream,
        messages=None if messages is None else [_renamed(message) for message in messages],
        prompt=prompt,
        tools=tools,
        output_tokens=output_tokens,
        salt=salt,
        free_output=free_output,
    )
    if thinking is not None:
        body["thinking"] = {"type": "enabled" if thinking else "disabled"}
    return body


def _renamed(message: Message) -> Message:
    if "reasoning" not in message:
        return message
    renamed = {key: value for key, value in message.items() if key != "reasoning"}
    renamed.setdefault("reasoning_content", message["reasoning"])
    return renamed


def with_aliases(listed: Iterable[str]) -> tuple[str, ...]:
    """The models that can be asked for, where /models lists these: Flash under each of its names."""
    names = tuple(listed)
    return names if not set(FLASH) & set(names) else (*names, *(name for name in FLASH if name not in names))


def in_flight_limit(model: str) -> int | None:
    """Requests that an account may have in flight at a time on `model`; one more is answered with 429."""
    return _IN_FLIGHT_LIMITS.get(model)
