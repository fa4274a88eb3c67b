"""DeepSeek's dialect, as its documentation and recorded answers have it: requests as read, answers as written.

Fields that nobody here needs are accepted and ignored, ignore_eos, min_tokens and cache_salt among them: DeepSeek's API
knows none of the three.
"""

from __future__ import annotations

import time
from typing import Any, Literal, TypeVar

import msgspec

from kvbench.sim.api import ApiError, Plan, StreamOptions, logprobs_of
from kvbench.sim.parameters import Preset
from kvbench.sim.text import OutputText, repeat
from kvbench.sim.tokenizer import START, TOKEN_BYTES, PromptError, encode_chat, encode_text

FLASH = ("deepseek-flash", "deepseek-v4-flash", "deepseek-v4-flash-vision-exp")
"""Names of one model; the first is the one that answers."""
_FINGERPRINT = "fp_kvbench_sim"
_Body = TypeVar("_Body", bound=msgspec.Struct)


class DeepSeekError(ApiError):
    """An answer other than 200 in DeepSeek's shape."""

    def __init__(self, status: int, message: str, *, kind: str = "invalid_request_error") -> None:
        super().__init__(status, message)
        self.body = {"error": {"message": message, "type": kind, "param": None, "code": "invalid_request_error"}}


def wrong_key() -> DeepSeekError:
    """401; the real one quotes the key's last characters, this one says nothing of it."""
    return DeepSeekError(401, "Authentication Fails, Your api key is invalid", kind="authentication_error")


def no_balance() -> DeepSeekError:
    return DeepSeekError(402, "Insufficient Balance", kind="unknown_error")


def too_many(limit: int) -> DeepSeekError:
    message = f"You have reached the concurrency limit of {limit} requests in flight. Please try again later."
    return DeepSeekError(429, message, kind="rate_limit_error")


class Thinking(msgspec.Struct):
    type: Literal["enabled", "disabled"] = "enabled"


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """What decides a prompt's tokens; the rest of a chat request may stand beside it."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    thinking: Thinking | None = None


class DeepSeekRequest(msgspec.Struct, kw_only=True):
    model: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    thinking: Thinking | None = None
    reasoning_effort: str | None = None
    logprobs: bool | None = None
    user_id: str | None = None


def plan_chat(body: bytes, preset: Preset) -> Plan:
    """DeepSeekError: 400 for a body that cannot be read or a model that is not there, 422 for a parameter's value."""
    request = _decode(body, DeepSeekRequest)
    if request.model not in names(preset):
        raise DeepSeekError(400, "Model Not Exist")
    _check_parameters(request, preset)
    thinking = _thinks(request)
    prompt = _render(request, preset)
    input_tokens, limit = len(prompt) // TOKEN_BYTES, preset.max_model_len
    output_tokens = request.max_tokens or 1
    if input_tokens + output_tokens > limit:
        raise DeepSeekError(
            400,
            f"This model's maximum context length is {limit} tokens. However, you requested "
            f"{input_tokens + output_tokens} tokens ({input_tokens} in the messages, {output_tokens} in the "
            "completion). Please reduce the length of the messages or completion.",
        )
    output = OutputText(
        prompt,
        max_tokens=request.max_tokens or limit - input_tokens,
        thinking_tokens=preset.thinking_tokens if thinking else 0,
    )
    if preset.repeats:
        repeat(output, request.messages)
    return Plan(
        chat=True,
        stream=bool(request.stream),
        include_usage=request.stream_options is not None and bool(request.stream_options.include_usage),
        return_token_ids=False,
        logprobs=bool(request.logprobs) and not thinking,
        salt=request.user_id,
        prompt=prompt,
        output=output,
        thinking=thinking,
    )


def tokenize(body: bytes, preset: Preset) -> bytes:
    """Ids of a text (`prompt`), or of a chat, the very ones a request with the same body would use."""
    request = _decode(body, TokenizeRequest)
    if request.model is not None and request.model not in names(preset):
        raise DeepSeekError(400, "Model Not Exist")
    if request.messages is not None:
        return _render(request, preset)
    if request.prompt is None:
        raise DeepSeekError(422, "One of prompt and messages is required")
    return encode_text(request.prompt)


def names(preset: Preset) -> tuple[str, ...]:
    """What the preset's model may be asked for as."""
    return FLASH if preset.model == FLASH[0] else (preset.model,)


def models(preset: Preset) -> dict[str, Any]:
    """The body of GET /models; the aliases are not listed."""
    return {"object": "list", "data": [{"id": preset.model, "object": "model", "owned_by": "deepseek"}]}


def _decode(body: bytes, kind: type[_Body]) -> _Body:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DeepSeekError(400, f"Failed to deserialize the JSON body into the target type: {error}") from None


def _thinks(request: DeepSeekRequest | TokenizeRequest) -> bool:
    return request.thinking is None or request.thinking.type == "enabled"


def _render(request: DeepSeekRequest | TokenizeRequest, preset: Preset) -> bytes:
    # With tools the reasoning is part of the conversation, without it is dropped at the next turn.
    keep_reasoning = _thinks(request) and bool(request.tools)
    messages = request.messages or []
    if keep_reasoning:
        _check_reasoning(messages)
    try:
        return START * preset.template_tokens + encode_chat(messages, request.tools, keep_reasoning=keep_reasoning)
    except PromptError as error:
        raise DeepSeekError(400, str(error)) from None


def _check_parameters(request: DeepSeekRequest, preset: Preset) -> None:
    if not request.messages:
        raise DeepSeekError(422, "Empty input messages")
    if request.max_tokens is not None and not 1 <= request.max_tokens <= preset.max_model_len:
        message = f"Invalid max_tokens value, the valid range of max_tokens is [1, {preset.max_model_len}]"
        raise DeepSeekError(422, message)
    if request.temperature is not None and not 0 <= request.temperature <= 2:
        raise DeepSeekError(422, "Invalid temperature value, the valid range of temperature is [0, 2]")
    if request.top_p is not None and not 0 < request.top_p <= 1:
        raise DeepSeekError(422, "Invalid top_p value, the valid range of top_p is (0, 1.0]")
    if request.reasoning_effort not in (None, "low", "high", "max"):
        raise DeepSeekError(422, "Invalid reasoning_effort value, expected one of `low`, `high`, `max`")
    if request.stream_options is not None and not request.stream:
        raise DeepSeekError(422, "stream_options should be set along with stream = true")


def _check_reasoning(messages: list[dict[str, Any]]) -> None:
    for message in messages:
        if message.get("role") == "assistant" and not isinstance(message.get("reasoning_content"), str):
            raise DeepSeekError(400, "The `reasoning_content` in the thinking mode must be passed back to the API.")


class DeepSeekAnswer:
    """Bytes of one request's answer."""

    def __init__(self, plan: Plan, preset: Preset, request_id: str) -> None:
        self.plan = plan
        self.response_id = request_id
        self._usage_on_finish = preset.usage_on == "finish"
        self._reports_usage = preset.report_usage
        self._hides_reasoning = preset.hide_reasoning
        self._identity = {
            "id": request_id,
            "object": "chat.completion.chunk" if plan.stream else "chat.completion",
            "created": int(time.time()),
            "model": preset.model,
            "system_fingerprint": _FINGERPRINT,
        }
        self._head = b"data: " + _json(self._identity)[:-1] + b',"choices":['
        self._tail = (b',"usage":null' if plan.include_usage else b"") + b"}\n\n"
        self._reasoning = (
            b'{"index":0,"delta":{"content":null,"reasoning_content":',
            b'},"logprobs":null,"finish_reason":null}]',
        )
        after = b',"reasoning_content":null' if plan.thinking else b""
        self._content = (
            b'{"index":0,"delta":{"content":',
            after + b'},"logprobs":null,"finish_reason":null}]',
        )
        self._reports_cached = preset.reports_cached_tokens

    @property
    def finish_reason(self) -> str:
        return self.plan.finish_reason or ("stop" if self.plan.output.stops else "length")

    def role_event(self) -> bytes:
        """The role chunk; it comes together with the first token."""
        start: dict[str, Any] = {"role": "assistant", "content": ""}
        if self.plan.thinking:
            start = {"role": "assistant", "content": None, "reasoning_content": ""}
        choice = {"index": 0, "delta": start, "logprobs": None, "finish_reason": None}
        return self._head + _json(choice) + b"]" + self._tail

    def token_events(self, start: int, stop: int, *, last: bool) -> bytes:
        """A chunk with the tokens start..stop-1, or two where the reasoning ends between them. Nothing for the end
        mark: the finish chunk stands for it."""
        output = self.plan.output
        if last and output.stops:
            stop -= 1
        between = min(max(output.thinking_tokens, start), stop)
        if self._hides_reasoning:
            reasoning = self._event(self._content, start, between, hidden=True)
        else:
            reasoning = self._event(self._reasoning, start, between)
        return reasoning + self._event(self._content, between, stop)

    def _event(self, frame: tuple[bytes, bytes], start: int, stop: int, *, hidden: bool = False) -> bytes:
        """hidden: an empty delta, which no text shows for."""
        if start == stop:
            return b""
        text, closing = "" if hidden else self.plan.output.text(start, stop), frame[1]
        if self.plan.logprobs:
            logprobs = b'"logprobs":' + _json(logprobs_of(self.plan, start, stop))
            closing = closing.replace(b'"logprobs":null', logprobs, 1)
        return self._head + frame[0] + _json(text) + closing + self._tail

    def end_events(self, cached_tokens: int) -> bytes:
        """The chunk with the finish_reason, usage on it or after it, and [DONE]."""
        delta: dict[str, Any] = {"content": ""}
        if self.plan.thinking:
            delta["reasoning_content"] = None
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": self.finish_reason}
        usage = b',"usage":' + _json(self._usage(cached_tokens)) + b"}\n\n"
        finish = self._head + _json(choice) + b"]"
        if not self._reports_usage:
            finish += b"}\n\n"
        elif self._usage_on_finish:
            finish += usage
        else:
            finish += self._tail
            if self.plan.include_usage:
                finish += self._head + b"]" + usage
        return finish + b"data: [DONE]\n\n"

    def whole(self, cached_tokens: int) -> bytes:
        """The answer to a request that did not ask for a stream."""
        output = self.plan.output
        content = output.text(output.thinking_tokens, output.length_tokens)
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self.plan.thinking and not self._hides_reasoning:
            message["reasoning_content"] = output.text(0, output.thinking_tokens)
        logprobs = logprobs_of(self.plan, 0, output.length_tokens) if self.plan.logprobs else None
        choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": self.finish_reason}
        answer = {**self._identity, "choices": [choice]}
        return _json(answer | {"usage": self._usage(cached_tokens)} if self._reports_usage else answer)

    def _usage(self, cached_tokens: int) -> dict[str, Any]:
        prompt_tokens = len(self.plan.prompt) // TOKEN_BYTES + self.plan.input_overcount_tokens
        output = self.plan.output
        output_tokens = output.length_tokens + self.plan.overcount_tokens
        usage: dict[str, Any] = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": output_tokens,
            "total_tokens": prompt_tokens + output_tokens,
        }
        if self.plan.thinking:
            usage["completion_tokens_details"] = {"reasoning_tokens": output.thinking_tokens}
        if not self._reports_cached:
            return usage
        usage["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
        usage["prompt_cache_hit_tokens"] = cached_tokens
        usage["prompt_cache_miss_tokens"] = prompt_tokens - cached_tokens
        return usage


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)
