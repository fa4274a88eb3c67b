"""OpenAI's HTTP shape, which all dialects here build on: request bodies, and what an answer's events mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvbench.endpoints.failures import error_of
from kvbench.model import Api, Message

ABNORMAL_FINISH = {
    "error": "stream_error",
    "abort": "aborted",
    "aborted": "aborted",
    "insufficient_system_resource": "insufficient_resources",
}
"""finish_reasons that mean the server gave the answer up, and which failure each is: vLLM abort, DeepSeek aborted and
insufficient_system_resource, OpenRouter error."""

Prompt = str | Sequence[int]


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
    """The JSON object of one request. `messages` for chat, `prompt` (text or token ids) for completions.

    free_output: the model decides how much it writes, so no length is sent. salt: see `salted_messages` and
    `salted_prompt`.
    """
    body: dict[str, Any] = {}
    if model is not None:
        body["model"] = model
    if api == "chat":
        if messages is None:
            raise ValueError("api chat needs messages")
        body["messages"] = list(messages) if salt is None else salted_messages(messages, salt)
        if tools:
            body["tools"] = list(tools)
    else:
        if prompt is None:
            raise ValueError("api completions needs a prompt")
        salted = prompt if salt is None else salted_prompt(prompt, salt)
        body["prompt"] = salted if isinstance(salted, str) else list(salted)
    if output_tokens is not None and not free_output:
        body["max_tokens"] = output_tokens
    body["stream"] = stream
    if stream:
        body["stream_options"] = {"include_usage": True}
    return body


def salted_messages(messages: Sequence[Message], salt: str) -> list[Message]:
    """`messages` with the salt as the first text of the first message, so that no prefix is shared across salts."""
    if not messages:
        return []
    first = dict(messages[0])
    content = first.get("content")
    if isinstance(content, list):
        first["content"] = [{"type": "text", "text": f"[{salt}]"}, *content]
    else:
        first["content"] = f"[{salt}] {content or ''}"
    return [first, *messages[1:]]


def salted_prompt(prompt: Prompt, salt: str) -> Prompt:
    """Text: the salt comes first. Token ids that mean a salt are the prompt maker's to choose: no vocabulary is known
    here."""
    if not isinstance(prompt, str):
        raise ValueError("a prompt of token ids has to carry its salt already")
    return f"[{salt}] {prompt}"


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    token_ids: msgspec.Raw | None = None
    logprobs: msgspec.Raw | None = None
    usage: msgspec.Raw | None = None


class _PlainEvent(msgspec.Struct):
    """The shape of nearly every event of a stream: one choice, a piece of text, nothing else of interest."""

    choices: list[_Choice]
    id: str | None = None
    model: str | None = None
    usage: msgspec.Raw | None = None
    error: msgspec.Raw | None = None


_decode_plain = msgspec.json.Decoder(_PlainEvent).decode


class Answer:
    """What one answer said, gathered from its events (or its one JSON object).

    first_token, first_output_token, last_token: index of the event which was the first (non-reasoning, last) generated
    chunk; chunks: the indices of all of them. None, or empty, where there was none.
    """

    __slots__ = (
        "_reasoning",
        "_text",
        "_tools",
        "chunks",
        "done",
        "error",
        "error_class",
        "finish_reason",
        "first_output_token",
        "invalid",
        "logprobs",
        "response_id",
        "response_model",
        "token_ids",
        "usage_raw",
    )

    def __init__(self) -> None:
        self.chunks: list[int] = []
        self.first_output_token: int | None = None
        self.finish_reason: str | None = None
        self.usage_raw: dict[str, Any] | None = None
        self.response_id: str | None = None
        self.response_model: str | None = None
        self.error: str | None = None
        """The message of an error object, or of an abnormal finish_reason."""
        self.error_class = "stream_error"
        """Which failure `error` is."""
        self.invalid: str | None = None
        """Why an event could not be understood."""
        self.done = False
        self.token_ids: list[int] | None = None
        """Ids of the generated tokens, where the server gives them."""
        self.logprobs: list[tuple[str, float]] | None = None
        """Generated tokens as text, each with its log probability, where the server gives them."""
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._tools: dict[tuple[int, int], dict[str, Any]] = {}

    @property
    def complete(self) -> bool:
        """Whether the server said that the answer is over."""
        return self.done or self.finish_reason is not None

    @property
    def text(self) -> str | None:
        return "".join(self._text) or None

    @property
    def reasoning(self) -> str | None:
        return "".join(self._reasoning) or None

    @property
    def tool_calls(self) -> list[dict[str, Any]] | None:
        return [self._tools[key] for key in sorted(self._tools)] or None

    def read_event(self, index: int, data: bytes, *, is_error: bool = False) -> None:
        """One stream event, the `index`-th. is_error: it was named `event: error`."""
        if not is_error and self.response_id is not None and self._read_plain(index, data):
            return
        data = data.strip()
        if data == b"[DONE]":
            self.done = True
            return
        if not data or data.startswith(b":"):
            return  # a comment that a proxy has wrapped into data: it is no event
        try:
            value = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            if is_error:
                self.error = self.error or data.decode("utf-8", "replace")
            elif self.invalid is None:
                self.invalid = f"event {index + 1} is not valid JSON ({error})"
            return
        if not isinstance(value, dict):
            self.invalid = self.invalid or f"event {index + 1} is not a JSON object"
            return
        self._read_object(index, value, "delta", is_error)

    def _read_plain(self, index: int, data: bytes) -> bool:
        """The quick way (a third of the time) for an event with text and nothing else; False: read it in full."""
        try:
            event = _decode_plain(data)
        except (msgspec.DecodeError, RecursionError, ValueError):
            return False
        if len(event.choices) != 1 or event.usage is not None or event.error is not None:
            return False
        choice = event.choices[0]
        if choice.finish_reason or choice.usage is not None:
            return False
        if choice.token_ids is not None or choice.logprobs is not None:
            return False
        delta, text = choice.delta, choice.text
        if delta is not None:
            text = delta.content
            if delta.tool_calls or delta.reasoning or delta.reasoning_content:
                return False
        if not text:
            return False
        self._text.append(text)
        self.chunks.append(index)
        if self.first_output_token is None:
            self.first_output_token = index
        return True

    def read_whole(self, value: Any) -> None:
        """The answer to a request without streaming: one JSON object."""
        if not isinstance(value, dict):
            self.invalid = "the answer is not a JSON object"
            return
        if not isinstance(value.get("choices"), list) and error_of(value) is None:
            self.invalid = "the answer has no choices"
            return
        self._read_object(0, value, "message", False)
        self.done = True

    def _read_object(self, index: int, value: dict[str, Any], part: str, is_error: bool) -> None:
        error = error_of(value)
        if error is not None or is_error:
            self.error = self.error or error or "the server sent an event named error"
        self.response_id = self.response_id or _text_of(value.get("id"))
        self.response_model = self.response_model or _text_of(value.get("model"))
        usage = value.get("usage")
        choices = value.get("choices")
        generated = output = False
        for number, choice in enumerate(choices if isinstance(choices, list) else ()):
            if not isinstance(choice, dict):
                continue
            # Moonshot puts the usage of a stream inside the choice.
            usage = usage or choice.get("usage")
            finish = choice.get("finish_reason")
            if finish:
                self.finish_reason = str(finish)
                if isinstance(finish, str) and finish in ABNORMAL_FINISH and self.error is None:
                    self.error = f"the server gave up: finish_reason {finish}"
                    self.error_class = ABNORMAL_FINISH[finish]
            has_reasoning, has_output = self._read_choice(number, choice, part)
            generated = generated or has_reasoning or has_output
            output = output or has_output
        if isinstance(usage, dict):
            self.usage_raw = usage
        if generated:
            self.chunks.append(index)
        if output and self.first_output_token is None:
            self.first_output_token = index

    def _read_choice(self, number: int, choice: dict[str, Any], part: str) -> tuple[bool, bool]:
        """(reasoning was generated, output was generated) by this choice."""
        delta = choice.get(part)
        if not isinstance(delta, dict):
            delta = choice  # completions: the text is in the choice itself
            content = _text_of(choice.get("text"))
        else:
            content = _text_of(delta.get("content"))
        # Both spellings may be there with the same text (OpenRouter): one of them counts.
        reasoning = _text_of(delta.get("reasoning")) or _text_of(delta.get("reasoning_content"))
        if reasoning:
            self._reasoning.append(reasoning)
        if content:
            self._text.append(content)
        token_ids = choice.get("token_ids")
        if isinstance(token_ids, list) and all(isinstance(token, int) for token in token_ids):
            self.token_ids = (self.token_ids or []) + token_ids
        logprobs = token_logprobs(choice.get("logprobs"))
        if logprobs:
            self.logprobs = (self.logprobs or []) + logprobs
        calls = delta.get("tool_calls")
        called = False
        if isinstance(calls, list):
            for position, call in enumerate(calls):
                if isinstance(call, dict):
                    called = self._read_tool_call(number, position, call) or called
        return bool(reasoning), bool(content) or called

    def _read_tool_call(self, choice: int, position: int, call: dict[str, Any]) -> bool:
        """Joins a piece of a tool call to the call it belongs to; whether it carried text."""
        index = call.get("index")
        key = (choice, index if isinstance(index, int) else position)
        whole = self._tools.setdefault(key, {"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
        whole["id"] = whole["id"] or _text_of(call.get("id"))
        function = call.get("function")
        if not isinstance(function, dict):
            return False
        name, arguments = _text_of(function.get("name")), _text_of(function.get("arguments"))
        whole["function"]["name"] += name or ""
        whole["function"]["arguments"] += arguments or ""
        return bool(name or arguments)


def logprobs_wanted(api: Api) -> dict[str, Any]:
    """Fields of a body that ask for the log probability of each generated token."""
    return {"logprobs": True, "top_logprobs": 1} if api == "chat" else {"logprobs": 1}


def token_logprobs(value: Any) -> list[tuple[str, float]]:
    """(token, log probability) from a choice's `logprobs`: chat's list of objects under `content` (llama.cpp has it for
    completions too), or the parallel lists of completions; what is neither has none."""
    if not isinstance(value, dict):
        return []
    content = value.get("content")
    if isinstance(content, list):
        pairs = [(each.get("token"), each.get("logprob")) for each in content if isinstance(each, dict)]
    else:
        tokens, numbers = value.get("tokens"), value.get("token_logprobs")
        pairs = (
            list(zip(tokens, numbers, strict=False)) if isinstance(tokens, list) and isinstance(numbers, list) else []
        )
    return [
        (token, float(number)) for token, number in pairs if isinstance(token, str) and isinstance(number, int | float)
    ]


def _text_of(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
