"""The questions that the documentation leaves open, each asked by a few requests."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np
from budget import Budget

from kvbench.endpoints.client import Endpoint
from kvbench.model import Record, Request

WORDS = [
    "red",
    "blue",
    "green",
    "black",
    "white",
    "north",
    "south",
    "east",
    "west",
    "spring",
    "summer",
    "winter",
    "water",
    "fire",
    "stone",
    "paper",
    "house",
    "garden",
    "river",
    "mountain",
    "city",
    "street",
    "school",
    "music",
    "book",
    "table",
    "chair",
    "window",
    "door",
    "light",
]
"""Common words: with the space before them each is one token of any large vocabulary. The fit of lengths shows it."""

BUILD_S = 15.0
"""Pause between two requests of which the second is to find what the first left: building a unit takes seconds."""
SHORT_OUTPUT = 4
LENGTHS = (63, 64, 65, 127, 128, 129, 130, 191, 192, 193, 255, 256, 257, 258, 320, 321, 384, 385, 512, 513, 640, 641)
GIVE_UP_AFTER = 3


class GivenUp(Exception):
    """The API refuses, or fails again and again."""


class Prober:
    """Sends prompts made of plain words, each within the budget."""

    def __init__(self, endpoint: Endpoint, budget: Budget, pause_scale: float, seed: int) -> None:
        self._endpoint = endpoint
        self._budget = budget
        self._pause_scale = pause_scale
        self._random = random.Random(seed)
        self._sent = 0
        self._failed_in_a_row = 0
        self.failures: list[str] = []

    def words(self, count: int) -> str:
        """`count` words in an order that no other request has."""
        return "".join(" " + word for word in self._random.choices(WORDS, k=count))

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self._pause_scale)

    def body(self, messages: Sequence[dict[str, Any]], output_tokens: int, thinking: bool) -> dict[str, Any]:
        return self._endpoint.build_body(messages=messages, output_tokens=output_tokens, thinking=thinking)

    async def ask(
        self, *messages: tuple[str, str], output_tokens: int = SHORT_OUTPUT, thinking: bool = False
    ) -> Record | None:
        """The record, or None where the request failed."""
        body = self.body([{"role": r, "content": c} for r, c in messages], output_tokens, thinking)
        reserved = self._budget.reserve(body)
        self._sent += 1
        record = await self._endpoint.send(
            Request(request_id=f"live-{self._sent:03d}", session_id="live", turn=self._sent, body=body)
        )
        self._budget.settle(reserved, record.usage.input_tokens, record.usage.output_tokens)
        if record.ok:
            self._failed_in_a_row = 0
            return record
        self.failures.append(f"{record.error_class}: {record.error_message}")
        self._failed_in_a_row += 1
        if record.error_class in ("auth", "payment") or self._failed_in_a_row >= GIVE_UP_AFTER:
            raise GivenUp(self.failures[-1])
        return None

    async def raw_stream(self, thinking: bool) -> list[dict[str, Any] | str]:
        """The events of one stream as they came: objects, and comments as text."""
        messages = [{"role": "user", "content": "Say hello." + self.words(8)}]
        body = self.body(messages, 64 if thinking else SHORT_OUTPUT, thinking) | {
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        reserved = self._budget.reserve(body)
        profile = self._endpoint.profile
        key, _ = profile.read_key()
        headers = {} if key is None else {"authorization": f"Bearer {key.reveal()}"}
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=120.0) as client:
                answer = await client.post(profile.url + "/chat/completions", json=body, headers=headers)
        except httpx.HTTPError as error:
            self.failures.append(f"the stream to look at failed: {type(error).__name__}")
            raise GivenUp(self.failures[-1]) from None
        if answer.status_code != 200:
            self.failures.append(f"the stream to look at was refused: HTTP {answer.status_code}")
            raise GivenUp(self.failures[-1])
        events: list[dict[str, Any] | str] = []
        for line in answer.text.split("\n"):
            if line.startswith(":"):
                events.append(line)
            elif line.startswith("data: {"):
                events.append(json.loads(line[6:]))
        usage = next((e["usage"] for e in reversed(events) if isinstance(e, dict) and e.get("usage")), {})
        self._budget.settle(reserved, usage.get("prompt_tokens"), usage.get("completion_tokens"))
        return events


async def usage_shape(prober: Prober) -> dict[str, Any]:
    """Where in a stream the usage is, and what its fields are called."""
    found: dict[str, Any] = {}
    for thinking in (False, True):
        events = await prober.raw_stream(thinking)
        chunks = [e for e in events if isinstance(e, dict)]
        with_usage = [(n, e) for n, e in enumerate(chunks) if e.get("usage")]
        place = "none"
        if with_usage:
            number, chunk = with_usage[-1]
            finish = chunk["choices"][0].get("finish_reason") if chunk.get("choices") else None
            place = "a chunk with empty choices" if not chunk.get("choices") else "the last content chunk"
            place += f" (number {number + 1} of {len(chunks)}, finish_reason {finish})"
        deltas = [e["choices"][0].get("delta", {}) for e in chunks if e.get("choices")]
        found["thinking" if thinking else "no_thinking"] = {
            "usage_on": place,
            "others_have_usage_null": all(e.get("usage", 0) is None for e in chunks if not e.get("usage")),
            "usage_fields": sorted(_names(with_usage[-1][1]["usage"])) if with_usage else [],
            "comments": sum(isinstance(e, str) for e in events),
            "delta_fields": sorted({name for delta in deltas for name in delta}),
        }
    return found


def _names(usage: dict[str, Any], prefix: str = "") -> list[str]:
    names: list[str] = []
    for name, value in usage.items():
        names += _names(value, f"{prefix}{name}.") if isinstance(value, dict) else [prefix + name]
    return names


async def template_overhead(prober: Prober) -> dict[str, Any]:
    """Prompt tokens over words: the slope (1 where a word is a token) and what the template adds."""
    shapes: dict[str, list[str]] = {
        "user": ["user"],
        "system, user": ["system", "user"],
        "user, assistant, user": ["user", "assistant", "user"],
    }
    found: dict[str, Any] = {}
    for name, roles in shapes.items():
        points: list[tuple[int, int]] = []
        for words in (20, 60, 140, 300):
            split = [words // len(roles)] * len(roles)
            split[-1] += words - sum(split)
            record = await prober.ask(*[(role, prober.words(n)) for role, n in zip(roles, split, strict=True)])
            if record is not None and record.usage.input_tokens is not None:
                points.append((words, record.usage.input_tokens))
        found[name] = {"points": points}
        if len(points) >= 2:
            slope, intercept = np.polyfit(*zip(*points, strict=True), 1)
            found[name] |= {"slope": round(float(slope), 4), "overhead_tokens": round(float(intercept), 2)}
    return found


async def granularity(prober: Prober, overhead_tokens: int) -> dict[str, Any]:
    """Each prompt twice: how many of its tokens the second time hits."""
    prompts = [(length, prober.words(max(1, length - overhead_tokens))) for length in LENGTHS]
    for _, prompt in prompts:
        await prober.ask(("user", prompt))
    await prober.pause(BUILD_S)
    rows: list[dict[str, Any]] = []
    for length, prompt in prompts:
        record = await prober.ask(("user", prompt))
        if record is not None:
            rows.append({"aimed_at": length, "prompt": record.usage.input_tokens, "hit": record.usage.cached_tokens})
    hits = [row["hit"] for row in rows if row["hit"]]
    known = [row for row in rows if row["hit"] is not None and row["prompt"] is not None]
    return {
        "rows": rows,
        "common_divisor_of_hits": math.gcd(*hits) if hits else None,
        "shortest_prompt_with_a_hit": min((row["prompt"] for row in known if row["hit"]), default=None),
        "most_tokens_after_a_hit": max((row["prompt"] - row["hit"] for row in known if row["hit"]), default=None),
    }


async def common_prefix(prober: Prober) -> dict[str, Any]:
    """A+B, A+C, A+D: a common prefix is found by the second and hit by the third, as documented."""
    shared = prober.words(700)
    hits: dict[str, int | None] = {}
    for name in "BCD":
        record = await prober.ask(("user", shared + prober.words(150)))
        hits[f"A+{name}"] = None if record is None else record.usage.cached_tokens
        await prober.pause(BUILD_S)
    return {"shared_words": 700, "hits": hits}


async def next_turn(prober: Prober) -> dict[str, Any]:
    """A second turn after a first: does the hit reach into the answer, or end with the first prompt?"""
    prompt = prober.words(500)
    first = await prober.ask(("user", prompt), output_tokens=150)
    await prober.pause(BUILD_S)
    if first is None:
        return {}
    second = await prober.ask(("user", prompt), ("assistant", first.output_text or ""), ("user", prober.words(30)))
    return {
        "first_prompt": first.usage.input_tokens,
        "first_output": first.usage.output_tokens,
        "second_prompt": None if second is None else second.usage.input_tokens,
        "second_hit": None if second is None else second.usage.cached_tokens,
    }


async def building(prober: Prober) -> dict[str, Any]:
    """How long after an answer its prompt is first hit."""
    rows = []
    for seconds in (0.0, 1.0, 2.0, 5.0, 10.0):
        prompt = prober.words(600)
        await prober.ask(("user", prompt))
        await prober.pause(seconds)
        record = await prober.ask(("user", prompt))
        rows.append({"after_s": seconds, "hit": None if record is None else record.usage.cached_tokens})
    return {"rows": rows}


async def lifetime(prober: Prober) -> dict[str, Any]:
    """Is a unit still there a minute after it was last used?"""
    prompt = prober.words(600)
    await prober.ask(("user", prompt))
    await prober.pause(BUILD_S)
    rows = []
    for seconds in (0.0, 60.0, 120.0):
        await prober.pause(seconds)
        record = await prober.ask(("user", prompt))
        rows.append({"idle_s": seconds, "hit": None if record is None else record.usage.cached_tokens})
    return {"rows": rows}
