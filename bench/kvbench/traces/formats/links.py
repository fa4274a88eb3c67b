"""Which session a request goes on with, by its content: sessions by what their last turn sent, and was answered."""

from __future__ import annotations

from kvbench.traces.formats.calls import Call
from kvbench.traces.formats.messages import answer_digest
from kvbench.traces.formats.thread import Thread, runs_at

_Held = Thread | dict[Thread, None]
"""One as it is; several in the order in which they came."""


class Links:
    """Sessions that may go on. Finding, adding and removing one takes no longer where many sent the same prompt."""

    def __init__(self) -> None:
        self._by_prompt: dict[bytes, _Held] = {}
        self._by_answer: dict[bytes, _Held] = {}

    def add(self, thread: Thread) -> None:
        _put(self._by_prompt, thread.digest, thread)
        if thread.answer is not None:
            _put(self._by_answer, thread.digest + thread.answer, thread)

    def remove(self, thread: Thread) -> None:
        _take(self._by_prompt, thread.digest, thread)
        if thread.answer is not None:
            _take(self._by_answer, thread.digest + thread.answer, thread)

    def find(self, call: Call, chain: list[bytes]) -> Thread | None:
        """The session whose last turn is the longest that `call`, with these digests, goes on from; of several, the one
        whose answer it holds, else the last. One that still ran is none of them, unless its answer may be there.
        """
        messages = call.messages or []
        for length in range(len(chain) - 1, 0, -1):
            prompt = chain[length - 1]
            if prompt not in self._by_prompt:
                continue
            reply = messages[length]
            answered = reply.get("role") == "assistant"
            if answered and (held := self._by_answer.get(prompt + answer_digest(reply))) is not None:
                return _last(held)
            held = self._by_prompt[prompt]
            for thread in [held] if isinstance(held, Thread) else reversed(held):
                if not runs_at(thread, call) or (answered and thread.answer is None):
                    return thread
        return None


def _put(table: dict[bytes, _Held], key: bytes, thread: Thread) -> None:
    held = table.get(key)
    if held is None:
        table[key] = thread
    elif isinstance(held, Thread):
        table[key] = {held: None, thread: None}
    else:
        held[thread] = None


def _take(table: dict[bytes, _Held], key: bytes, thread: Thread) -> None:
    held = table.get(key)
    if isinstance(held, dict):
        held.pop(thread, None)
        if not held:
            del table[key]
    elif held is thread:
        del table[key]


def _last(held: _Held) -> Thread:
    return held if isinstance(held, Thread) else next(reversed(held))
