"""A gateway to a model with explicit cache_control, in miniature, for tests: OpenAI's shape over raw HTTP on loopback.

Written apart from kvbench. A block has as many tokens as words. A request caches the prefixes that end at its marks and
reads the longest cached one at a mark or at the 19 blocks before it.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Gateway:
    """bodies, usages: what was asked and reported, in order. withhold: of each read, tokens that are not reported."""

    def __init__(self) -> None:
        self.url = ""
        self.withhold = 0
        self.bodies: list[dict[str, Any]] = []
        self.usages: list[dict[str, Any]] = []
        self._cached: set[tuple[str, ...]] = set()
        self._lock = threading.Lock()

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        blocks, marks = self._blocks(body)
        tokens = [len(block.split()) for block in blocks]
        with self._lock:
            read = 0
            for mark in marks:
                for end in range(mark + 1, max(0, mark + 1 - 20), -1):
                    if tuple(blocks[:end]) in self._cached:
                        read = max(read, end)
            self._cached.update(tuple(blocks[: mark + 1]) for mark in marks)
            cached = sum(tokens[:read])
            written = sum(tokens[: marks[-1] + 1]) - cached if marks else 0
            usage = {
                "prompt_tokens": sum(tokens),
                "completion_tokens": 1,
                "total_tokens": sum(tokens) + 1,
                "prompt_tokens_details": {
                    "cached_tokens": max(0, cached - self.withhold),
                    "cache_write_tokens": written,
                },
            }
            self.bodies.append(body)
            self.usages.append(usage)
        message = {"role": "assistant", "content": "ok"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        name = f"gen-{len(self.usages)}"
        return {"id": name, "object": "chat.completion", "model": body["model"], "choices": [choice], "usage": usage}

    @staticmethod
    def _blocks(body: dict[str, Any]) -> tuple[list[str], list[int]]:
        blocks: list[str] = []
        marks: list[int] = []
        for message in body["messages"]:
            content = message["content"]
            for part in [{"text": content}] if isinstance(content, str) else content:
                blocks.append(f"{message['role']} {part['text']}")
                if "cache_control" in part:
                    marks.append(len(blocks) - 1)
        if "cache_control" in body and len(blocks) - 1 not in marks:
            marks.append(len(blocks) - 1)
        return blocks, marks


@contextlib.contextmanager
def cache_gateway() -> Iterator[Gateway]:
    gateway = Gateway()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            known = {"object": "list", "data": [{"id": "claude-opus-4-8", "object": "model"}]}
            self._json(200, known) if self.path == "/v1/models" else self._json(404, {"error": {"message": "none"}})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if self.path == "/v1/chat/completions":
                self._json(200, gateway.answer(body))
            else:
                self._json(404, {"error": {"message": "none"}})

        def _json(self, status: int, value: Any) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    gateway.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield gateway
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
