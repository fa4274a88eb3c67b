"""The dialect of vLLM's OpenAI-compatible server: requests as read, answers and errors as written."""

from __future__ import annotations

import time
from typing import Any, TypeVar

import msgspec

from kvbench.sim.parameters import Preset
from kvbench.sim.text import OutputText, repeat
from kvbench.sim.tokenizer import START, TOKEN_BYTES, PromptError, decode_ids, encode_chat, encode_ids, encode_text

_COMPLETIONS_DEFAULT_MAX_TOKENS = 16
_Body = TypeVar("_Body", bound=msgspec.Struct)


class ApiError(Exception):
    """An answer other than 200; `body` is what vLLM would send, in a subclass another server."""

    def __init__(self, status: int, message: str, *, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": status}}


def too_many(limit: int) -> ApiError:
    """429, as a gateway before a vLLM would have it: vLLM itself lets requests wait."""
    return ApiError(429, f"The limit of {limit} requests in flight is reached.", kind="TooManyRequests")


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class GenerationRequest(msgspec.Struct, kw_only=True):
    """What chat and completions share; fields nobody here needs are accepted and ignored."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    cache_salt: str | None = None
    return_token_ids: bool | None = None
    logprobs: bool | int | None = None
    n: int | None = None


class ChatRequest(GenerationRequest, kw_only=True):
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    max_completion_tokens: int | None = None
    add_generation_prompt: bool = True


class CompletionRequest(GenerationRequest, kw_only=True):
    prompt: str | list[int]


class TokenizeRequest(msgspec.Struct, kw_only=True):
    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True


class Plan(msgspec.Struct):
    """A request that will be served: prompt (four bytes a token) and what will be generated."""

    chat: bool
    stream: bool
    include_usage: bool
    return_token_ids: bool
    salt: str | None
    prompt: bytes
    output: OutputText
    thinking: bool = False
    logprobs: bool = False
    finish_reason: str | None = None
    """None: as the output ends."""
    overcount_tokens: int = 0
    """Output tokens that usage counts too many."""
    input_overcount_tokens: int = 0
    """Prompt tokens that usage counts too many."""


def plan_chat(body: bytes, preset: Preset) -> Plan:
    """ApiError 400 or 404 where vLLM answers so."""
    request = _decode(body, ChatRequest)
    _check_model(request.model, preset)
    if not request.messages:
        raise ApiError(400, "messages must not be empty", param="messages")
    if request.tools == []:
        raise ApiError(400, "`tools` must not be an empty list: leave it out where there are none.", param="tools")
    prompt = _render(request.messages, request.tools, request.add_generation_prompt, preset)
    asked = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    plan = _plan(request, prompt, asked, preset, chat=True)
    if preset.repeats and not request.ignore_eos and not request.min_tokens:
        repeat(plan.output, request.messages)
    return plan


def plan_completion(body: bytes, preset: Preset) -> Plan:
    """ApiError 400 or 404 where vLLM answers so."""
    request = _decode(body, CompletionRequest)
    _check_model(request.model, preset)
    try:
        prompt = encode_text(request.prompt) if isinstance(request.prompt, str) else encode_ids(request.prompt)
    except PromptError as error:
        raise ApiError(400, str(error), param="prompt") from None
    if not prompt:
        raise ApiError(400, "The prompt must not be empty.", param="prompt")
    asked = _COMPLETIONS_DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    return _plan(request, prompt, asked, preset, chat=False)


def tokenize(body: bytes, preset: Preset) -> bytes:
    """Ids of a prompt or of messages, the very ones a request with them would use."""
    request = _decode(body, TokenizeRequest)
    _check_model(request.model, preset)
    if request.messages is not None:
        return _render(request.messages, request.tools, request.add_generation_prompt, preset)
    if request.prompt is None:
        raise ApiError(400, "One of prompt and messages is required.", param="prompt")
    return encode_text(request.prompt)


def _decode(body: bytes, kind: type[_Body]) -> _Body:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, str(error)) from None


def _check_model(model: str | None, preset: Preset) -> None:
    if model is not None and model != preset.model:
        raise ApiError(404, f"The model `{model}` does not exist.", kind="NotFoundError", param="model")


def _render(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, add_generation_prompt: bool, preset: Preset
) -> bytes:
    try:
        return START * preset.template_tokens + encode_chat(
            messages, tools, add_generation_prompt=add_generation_prompt
        )
    except PromptError as error:
        raise ApiError(400, str(error), param="messages") from None


def _plan(request: GenerationRequest, prompt: bytes, asked: int | None, preset: Preset, *, chat: bool) -> Plan:
    if request.n not in (None, 1):
        raise ApiError(400, "The simulated model gives one answer a request: n must be 1.", param="n")
    if asked is not None and asked < 1:
        raise ApiError(400, f"max_tokens must be at least 1, got {asked}.", param="max_tokens")
    if request.cache_salt == "":
        raise ApiError(400, "Parameter 'cache_salt' must be a non-empty string if provided.", param="cache_salt")
    input_tokens, limit = len(prompt) // TOKEN_BYTES, preset.max_model_len
    if input_tokens >= limit:
        least = asked or 0
        raise ApiError(
            400,
            f"This model's maximum context length is {limit} tokens. However, you requested {least} output tokens "
            f"and your prompt contains at least {input_tokens} input tokens, for a total of at least "
            f"{input_tokens + least} tokens. Please reduce the length of the input prompt or the number of requested "
            f"output tokens. (parameter=input_tokens, value={input_tokens})",
            param="input_tokens",
        )
    # An output that does not fit is cut without a word: vLLM 0.32 does so.
    max_tokens = limit - input_tokens if asked is None else min(asked, limit - input_tokens)
    min_tokens = request.min_tokens or 0
    if min_tokens < 0:
        raise ApiError(400, f"min_tokens must be greater than or equal to 0, got {min_tokens}.", param="min_tokens")
    if min_tokens > max_tokens:
        raise ApiError(
            400,
            f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {min_tokens}.",
            param="min_tokens",
        )
    return Plan(
        chat=chat,
        stream=bool(request.stream),
        return_token_ids=bool(request.return_token_ids),
        # completions: a number of alternatives, of which 0 is one; chat: true or false
        logprobs=bool(request.logprobs) or (not chat and request.logprobs is not None),
        include_usage=request.stream_options is not None and bool(request.stream_options.include_usage),
        salt=request.cache_salt,
        prompt=prompt,
        output=OutputText(prompt, max_tokens=max_tokens, min_tokens=min_tokens, ignore_eos=bool(request.ignore_eos)),
    )


class Answer:
    """Bytes of one request's answer. Chunk texts are spliced into a prepared frame: no JSON encoder per token."""

    def __init__(self, plan: Plan, preset: Preset, request_id: str) -> None:
        self.plan = plan
        self.response_id = f"{'chatcmpl' if plan.chat else 'cmpl'}-{request_id}"
        self._reports_usage = preset.report_usage
        self._hit_tokens = preset.unit_granularity_tokens if preset.prefix == "units" else preset.block_size
        kind = "chat.completion" if plan.chat else "text_completion"
        self._identity = {"id": self.response_id, "object": kind, "created": int(time.time()), "model": preset.model}
        chunk = {**self._identity, "object": "chat.completion.chunk"} if plan.chat else self._identity
        self._head = b"data: " + _json(chunk)[:-1] + b',"choices":['
        self._opening = b'{"index":0,"delta":{"content":' if plan.chat else b'{"index":0,"text":'
        self._closing = (b"}" if plan.chat else b"") + b',"logprobs":'
        self._reports_cached = preset.reports_cached_tokens

    @property
    def finish_reason(self) -> str:
        return "stop" if self.plan.output.stops else "length"

    def role_event(self) -> bytes:
        """The role chunk with empty content that comes together with the first token of a chat."""
        choice = b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        return self._head + choice + self._prompt_ids() + b"}\n\n"

    def token_events(self, start: int, stop: int, *, last: bool) -> bytes:
        """One chunk with the tokens start..stop-1."""
        output = self.plan.output
        event = self._head + self._opening + _json(output.text(start, stop)) + self._closing
        event += (_json(logprobs_of(self.plan, start, stop)) if self.plan.logprobs else b"null") + b',"finish_reason":'
        event += _json(self.finish_reason) + b',"stop_reason":null' if last else b"null"
        if not self.plan.return_token_ids:
            return event + b"}]}\n\n"
        event += b',"token_ids":' + _json(decode_ids(output.tokens(start, stop)))
        return event + (self._prompt_ids() if start == 0 and not self.plan.chat else b"") + b"}]}\n\n"

    def end_events(self, cached_tokens: int) -> bytes:
        """The usage chunk, where it was asked for, and [DONE]."""
        done = b"data: [DONE]\n\n"
        if not self.plan.include_usage or not self._reports_usage:
            return done
        return self._head + b'],"usage":' + _json(self._usage(cached_tokens)) + b"}\n\n" + done

    def whole(self, cached_tokens: int) -> bytes:
        """The answer to a request that did not ask for a stream."""
        plan, output = self.plan, self.plan.output
        text = output.text(0, output.length_tokens)
        choice: dict[str, Any] = {"index": 0}
        if plan.chat:
            choice["message"] = {"role": "assistant", "content": text, "tool_calls": []}
        else:
            choice["text"] = text
        logprobs = logprobs_of(plan, 0, output.length_tokens) if plan.logprobs else None
        choice |= {"logprobs": logprobs, "finish_reason": self.finish_reason, "stop_reason": None}
        answer: dict[str, Any] = {**self._identity, "choices": [choice]}
        if self._reports_usage:
            answer["usage"] = self._usage(cached_tokens)
        if plan.return_token_ids:
            choice["token_ids"] = decode_ids(output.tokens(0, output.length_tokens))
            (answer if plan.chat else choice)["prompt_token_ids"] = decode_ids(plan.prompt)
        return _json(answer)

    def _prompt_ids(self) -> bytes:
        return b',"prompt_token_ids":' + _json(decode_ids(self.plan.prompt)) if self.plan.return_token_ids else b""

    def _usage(self, cached_tokens: int) -> dict[str, Any]:
        prompt_tokens = len(self.plan.prompt) // TOKEN_BYTES
        output_tokens = self.plan.output.length_tokens + self.plan.overcount_tokens
        details = {"cached_tokens": cached_tokens}
        if self.plan.chat:
            details["created_cache_tokens"] = prompt_tokens // self._hit_tokens * self._hit_tokens - cached_tokens
        prompt_tokens += self.plan.input_overcount_tokens
        return {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + output_tokens,
            "completion_tokens": output_tokens,
            "prompt_tokens_details": details if self._reports_cached else None,
        }


def logprobs_of(plan: Plan, start: int, stop: int) -> dict[str, Any]:
    """A choice's `logprobs` for tokens start..stop-1: a list of objects for chat, parallel lists for completions."""
    numbers = plan.output.logprobs(start, stop)
    texts = [plan.output.text(position, position + 1) for position in range(start, stop)]
    if plan.chat:
        return {
            "content": [{"token": t, "logprob": n, "top_logprobs": []} for t, n in zip(texts, numbers, strict=True)]
        }
    return {"tokens": texts, "token_logprobs": numbers, "top_logprobs": None, "text_offset": []}


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)
