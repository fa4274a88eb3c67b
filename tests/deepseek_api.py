"""DeepSeek's API as its documentation describes it, in miniature, for tests: raw HTTP on loopback, one word a token.

Written apart from kvbench and from its simulated endpoint. A prompt's tokens are the words of its messages, and
`template` of them more a message. A hit is the longest prefix that some earlier prompt ended at, or that two earlier
ones had in common, in whole multiples of `granularity`.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-not-a-real-key-0123456789"


class DeepSeekApi:
    """What a test sets before (or between) requests, and what it looks at afterwards."""

    def __init__(self) -> None:
        self.models: list[str] = ["deepseek-flash", "deepseek-v4-pro"]
        self.granularity = 64
        self.template = 4
        self.usage_on_last_content = True
        self.keep_alives = 1
        self.finish_reason = "stop"
        self.billed_tokens = 0
        """Added to what each answer says of its prompt."""
        self.balances: list[dict[str, str]] = [{"USD": "110.00"}]
        """Answers of /user/balance in turn, the last one for ever."""
        self.holds_last_balance = False
        self.last_balance_asked = threading.Event()
        self.last_balance_let = threading.Event()
        """The last balance of several is told only after this was set."""
        self.fail: tuple[int, str] | None = None
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.most_at_a_time = 0
        self.url = ""
        self._at_a_time = 0
        self._lock = threading.Lock()
        self._prompts: list[list[str]] = []
        self._units: set[tuple[str, ...]] = set()

    def begin(self) -> None:
        with self._lock:
            self._at_a_time += 1
            self.most_at_a_time = max(self.most_at_a_time, self._at_a_time)

    def end(self) -> None:
        """Before the last byte of the answer: after it the client may have sent the next request."""
        with self._lock:
            self._at_a_time -= 1

    def hit(self, tokens: list[str]) -> int:
        with self._lock:
            most = 0
            for unit in self._units:
                if list(unit) == tokens[: len(unit)]:
                    most = max(most, len(unit))
            for earlier in self._prompts:
                common = 0
                for a, b in zip(earlier, tokens, strict=False):
                    if a != b:
                        break
                    common += 1
                self._units.add(tuple(tokens[: common // self.granularity * self.granularity]))
            self._units.add(tuple(tokens[: len(tokens) // self.granularity * self.granularity]))
            self._prompts.append(tokens)
        return most

    def tokens(self, body: dict[str, Any]) -> list[str]:
        found: list[str] = []
        for message in body["messages"]:
            found += [f"<{message['role']}{i}>" for i in range(self.template)] + str(message["content"]).split()
        return found


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: DeepSeekApi

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.api.paths.append(self.path)
        if self.headers.get("authorization") != f"Bearer {KEY}":
            return self._error(401, "Authentication Fails (no such key)")
        path = self.path.removeprefix("/v1")
        if path == "/models":
            data = [{"id": name, "object": "model", "owned_by": "deepseek"} for name in self.api.models]
            return self._json(200, {"object": "list", "data": data})
        if path == "/user/balance" and self.api.balances:
            more = len(self.api.balances) > 1
            totals = self.api.balances.pop(0) if more else self.api.balances[0]
            if not more and self.api.holds_last_balance:
                self.api.last_balance_asked.set()
                self.api.last_balance_let.wait(30)
            infos = [
                {"currency": c, "total_balance": t, "granted_balance": "0.00", "topped_up_balance": t}
                for c, t in totals.items()
            ]
            return self._json(200, {"is_available": True, "balance_infos": infos})
        return self._error(404, "Not Found")

    def do_POST(self) -> None:
        self.api.paths.append(self.path)
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.headers.get("authorization") != f"Bearer {KEY}":
            return self._error(401, "Authentication Fails (no such key)")
        if self.path.removeprefix("/v1") != "/chat/completions":
            return self._error(404, "Not Found")
        self.api.bodies.append(body)
        if self.api.fail is not None:
            return self._error(*self.api.fail)
        if "thinking" not in body and body.get("tools"):
            for message in body["messages"]:
                if message["role"] == "assistant" and "reasoning_content" not in message:
                    return self._error(
                        400, "The `reasoning_content` in the thinking mode must be passed back to the API."
                    )
        return self._answer(body)

    def _answer(self, body: dict[str, Any]) -> None:
        api = self.api
        api.begin()
        tokens = api.tokens(body)
        hit = api.hit(tokens)
        thinks = body.get("thinking", {"type": "enabled"})["type"] == "enabled"
        length = min(body.get("max_tokens", 8), 8)
        reasoning = length // 2 if thinks else 0
        prompt = len(tokens) + api.billed_tokens
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": length,
            "total_tokens": prompt + length,
            "prompt_tokens_details": {"cached_tokens": hit},
            "prompt_cache_hit_tokens": hit,
            "prompt_cache_miss_tokens": prompt - hit,
        }
        if thinks:
            usage["completion_tokens_details"] = {"reasoning_tokens": reasoning}
        if not body.get("stream"):
            message: dict[str, Any] = {"role": "assistant", "content": " word" * (length - reasoning)}
            if thinks:
                message["reasoning_content"] = " hm" * reasoning
            choice = {"index": 0, "message": message, "finish_reason": api.finish_reason}
            api.end()
            return self._json(200, {"id": "r", "model": body["model"], "choices": [choice], "usage": usage})
        events: list[dict[str, Any]] = [{"role": "assistant", "content": None, "reasoning_content": ""}]
        events += [{"content": None, "reasoning_content": " hm"}] * reasoning
        events += [{"content": " word", "reasoning_content": None}] * (length - reasoning)
        last = {"content": "", "reasoning_content": None}
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for _ in range(api.keep_alives):
            self._chunk(b": keep-alive\n\n")
            time.sleep(0.02)
        for number, delta in enumerate(events):
            if reasoning and number == 1 + reasoning:
                time.sleep(0.1)  # so that thought and output do not arrive in one read
            self._event(body, [{"index": 0, "delta": delta, "finish_reason": None}], None)
        shape = usage if api.usage_on_last_content else None
        self._event(body, [{"index": 0, "delta": last, "finish_reason": api.finish_reason}], shape)
        if not api.usage_on_last_content:
            self._event(body, [], usage)
        self._chunk(b"data: [DONE]\n\n")
        api.end()
        self._chunk(b"")

    def _event(self, body: dict[str, Any], choices: list[Any], usage: Any) -> None:
        event = {"id": "r", "model": body["model"], "choices": choices, "usage": usage}
        self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _json(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _error(self, status: int, message: str) -> None:
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": "invalid_request_error"}
        self._json(status, {"error": error})


@contextlib.contextmanager
def deepseek_api() -> Iterator[DeepSeekApi]:
    """A server that lasts as long as the block."""
    api = DeepSeekApi()

    class Handler(_Handler):
        pass

    Handler.api = api
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        api.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield api
        finally:
            server.shutdown()
            thread.join()


def spend(total: str, cost: str) -> str:
    """A balance as the API writes it, `cost` later."""
    return str((Decimal(total) - Decimal(cost)).quantize(Decimal("0.01")))
