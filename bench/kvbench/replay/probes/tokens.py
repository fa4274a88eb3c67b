"""Whether the reported token counts are those of what was sent and of what came.

Series size<i>: texts of every kind (texts.py), one length a series, in logarithmic steps. Series again: some of those
texts once more, those whose counts are furthest off among them. Series other: some of them once as a stream and once
not. Series repeat<i>: sentences to be said again. Series cap: answers that a length has to end. Series think: answers
with reasoning, where the endpoint has any.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kvbench.errors import UsageError
from kvbench.model import Api, Counted, Record
from kvbench.replay.probes.counter import TokenCounter
from kvbench.replay.probes.prober import Prober
from kvbench.replay.probes.taking import Takes
from kvbench.replay.probes.texts import KINDS, TRIAL_PIECES, sentence, text

LEAST_SIZES, LEAST_TOKENS = 5, 64
LENGTHS, LEAST_SENTENCE, SENTENCES = 5, 8, 2
CAPS = (4, 16, 64)
OTHER = 3
AGAIN_EXTREMES = 2
THINKING, THINKING_CAP = 3, 512
TEMPLATE_ROOM = 512
TOKENS_A_PIECE = {"words": 1.0, "code": 9.0, "numbers": 3.0, "scripts": 4.0}
"""Roughly, where nothing can count."""
REPEAT = "Repeat exactly, and write nothing else: "
LONG = "Write the whole numbers from one to five hundred as words, one after the other."
THINK = "Which of {0}, {1} and {2} has the most divisors? Think it through, then name it."


class TokensDesign(msgspec.Struct, frozen=True, kw_only=True):
    """sizes: prompts of so many lengths, from 64 tokens to max_input_tokens. max_output_tokens: of the longest
    sentence."""

    sizes: int = 6
    max_input_tokens: int = 4_096
    max_output_tokens: int = 256

    def check(self) -> TokensDesign:
        """UsageError for too few lengths, or too little between them."""
        if self.sizes < LEAST_SIZES:
            raise UsageError(f"--sizes {self.sizes}: at least {LEAST_SIZES} lengths are needed for a line")
        if self.max_input_tokens < 8 * LEAST_TOKENS:
            raise UsageError(f"--max-input-tokens {self.max_input_tokens}: at least {8 * LEAST_TOKENS}")
        if self.max_output_tokens < 8 * LEAST_SENTENCE:
            raise UsageError(f"--max-output-tokens {self.max_output_tokens}: at least {8 * LEAST_SENTENCE}")
        return self


class TokensProbe:
    """The experiment; `probe` is called once."""

    def __init__(self, design: TokensDesign) -> None:
        self._design = design
        self._off: dict[tuple[int, str], int] = {}
        """By size and kind of a text: reported less exact."""

    async def probe(self, prober: Prober) -> None:
        self._prober = prober
        self._api: Api = prober.endpoint.profile.api
        self._counter = counter = await TokenCounter.of(prober.endpoint)
        most = min(self._design.max_input_tokens, prober.most_input_tokens - TEMPLATE_ROOM)
        sizes = steps(LEAST_TOKENS, max(most, 2 * LEAST_TOKENS), self._design.sizes)
        lengths = steps(LEAST_SENTENCE, self._design.max_output_tokens, LENGTHS)
        if not prober.agreed(self._takes(sizes, lengths)):
            return
        prober.event("counter", source=counter.source, server=counter.server, local=counter.local_name)
        if counter.source is None:
            prober.plan.say("nothing here can count tokens: only what needs no count is checked")
        prober.plan.say(f"prompts of {sizes[0]:,} to {sizes[-1]:,} tokens, {len(KINDS)} kinds of text")
        self._ratios = {kind: await self._tokens_a_piece(kind) for kind in KINDS}
        for kind in KINDS:
            for number, size in enumerate(sizes):
                await self._input(f"size{number}", kind, number, size)
        prober.plan.say("some of them again, and as the other of stream and whole answer")
        await self._again(sizes)
        await self._other(sizes)
        prober.plan.say("sentences to be repeated, and answers that a length ends")
        for number, words in enumerate(lengths):
            for which in range(SENTENCES):
                await self._sentence(number, which, words)
        for cap in CAPS:
            await self._answer(f"cap/{cap}", "once", f"{LONG} Begin with {cap}.", cap)
        await self._think()

    def _takes(self, sizes: list[int], lengths: list[int]) -> Takes:
        requests, tokens, output = totals(sizes, lengths)
        counted = self._counter.source or "nothing: no /tokenize and no tokenizer in the profile"
        return Takes(
            requests=requests,
            input_tokens=tokens,
            longest_tokens=sizes[-1],
            output_tokens=output,
            note=f"texts are counted by {counted}",
        )

    # ------------------------------------------------------------------------------------------------------- input

    async def _tokens_a_piece(self, kind: str) -> float:
        counted = await self._counter.count(text(kind, TRIAL_PIECES, f"{self._prober.run_id} trial"))
        return TOKENS_A_PIECE[kind] if counted is None else max(0.2, counted / TRIAL_PIECES)

    def _text(self, kind: str, number: int, size: int) -> str:
        return text(kind, max(1, round(size / self._ratios[kind])), f"{self._prober.run_id}/{number}")

    async def _input(self, series: str, kind: str, number: int, size: int, role: str = "once", **changes: Any) -> None:
        """One text of a size and kind; the same number, kind and size are the same text. changes: to its body."""
        sent = self._text(kind, number, size)
        body = self._body(sent, 1) | changes
        if not body.get("stream"):
            body.pop("stream_options", None)
        # what an endpoint takes only as the other of stream and whole answer is not compared
        refusable = series == "other"
        record = await self._prober.send(
            f"{series}/{kind}{number}", role, body, size, 1, self._api, may_be_refused=refusable
        )
        if not record.ok:
            return
        counted = await self._count(record, sent, kind, 1)
        if counted.text_tokens is not None and record.usage.input_tokens is not None:
            self._off.setdefault((number, kind), record.usage.input_tokens - counted.text_tokens)

    async def _again(self, sizes: list[int]) -> None:
        """One of each size, and those whose counts are furthest off: chance does not strike them twice."""
        chosen = [(number, KINDS[number % len(KINDS)]) for number in range(len(sizes))]
        by_off = sorted(self._off, key=lambda each: self._off[each])
        chosen += [by_off[0], by_off[-1]] * AGAIN_EXTREMES if by_off else []
        for number, kind in chosen:
            await self._input("again", kind, number, sizes[number], "again")

    async def _other(self, sizes: list[int]) -> None:
        if "stream" in self._prober.endpoint.profile.extra_body:
            return
        for number in others(sizes):
            for role, stream in (("stream", True), ("whole", False)):
                options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {"stream": False}
                await self._input("other", KINDS[number % len(KINDS)], number, sizes[number], role, **options)

    # ------------------------------------------------------------------------------------------------------ output

    async def _sentence(self, number: int, which: int, words: int) -> None:
        asked = sentence(words, f"{self._prober.run_id}/{number}/{which}")
        await self._answer(f"repeat{number}/{which}", "once", REPEAT + asked, room(words), asked=asked)

    async def _think(self) -> None:
        records = self._prober.records
        shows = any(r.reasoning_text or r.usage.reasoning_tokens for r in records)
        if not shows and not self._prober.endpoint.resends_reasoning:
            return
        self._prober.plan.say("answers with reasoning")
        for number in range(THINKING):
            question = THINK.format(96 + number, 97 + 7 * number, 360 - 11 * number)
            await self._answer(f"think/{number}", "once", question, THINKING_CAP, thinking=None)

    async def _answer(
        self, name: str, role: str, sent: str, cap: int, *, asked: str | None = None, thinking: bool | None = False
    ) -> None:
        body = self._body(sent, cap, thinking=thinking, free=True)
        record = await self._prober.send(name, role, body, len(sent) // 4 + 1, cap, self._api)
        await self._count(record, sent, "", body.get("max_tokens", cap), asked)

    # -------------------------------------------------------------------------------------------------------- both

    def _body(self, sent: str, cap: int, *, thinking: bool | None = False, free: bool = False) -> dict[str, Any]:
        """free: the answer ends where the model ends it, or at the cap."""
        endpoint = self._prober.endpoint
        content: dict[str, Any] = {"prompt": sent} if self._api == "completions" else {"messages": _user(sent)}
        ids = free and self._prober.info.dialect == "vllm"
        body = endpoint.build_body(
            **content, output_tokens=cap, free_output=free, thinking=thinking, return_token_ids=ids
        )
        return {"max_tokens": cap, **body} if free else body

    async def _count(self, record: Record, sent: str, kind: str, cap: int, asked: str | None = None) -> Counted:
        counter = self._counter
        said, thought = record.output_text or "", record.reasoning_text or ""
        reasoning, output = await counter.count(thought), await counter.count(said)
        ids = record.output_token_ids
        together = None if reasoning is None or output is None else reasoning + output
        counted = Counted(
            request=record.request_id,
            text_kind=kind,
            text_tokens=await counter.count(sent),
            prompt_tokens=None if self._api == "completions" else await counter.prompt(_user(sent)),
            local_tokens=counter.local_count(sent) if counter.server else None,
            max_tokens=cap,
            output_tokens=len(ids) if ids is not None else together,
            reasoning_tokens=reasoning if thought else None,
            output_by="ids" if ids is not None else "text" if together is not None else None,
            repeated=None if asked is None else said.strip() == asked,
        )
        self._prober.event("counted", **msgspec.to_builtins(counted))
        return counted


def steps(least: int, most: int, number: int) -> list[int]:
    """`number` lengths from least to most, in equal ratios."""
    return [round(least * (most / least) ** (i / (number - 1))) for i in range(number)]


def others(sizes: list[int]) -> range:
    """Which sizes are sent both ways: long ones, but not the longest."""
    return range(len(sizes) - 1 - OTHER, len(sizes) - 1)


def room(words: int) -> int:
    """max_tokens for a sentence of so many words: it must not be cut where a word is two tokens."""
    return 3 * words + 32


def totals(sizes: list[int], lengths: list[int]) -> tuple[int, int, int]:
    """(requests, prompt tokens, tokens of output) that the whole experiment takes at most."""
    requests = len(sizes) * (len(KINDS) + 1) + 2 * AGAIN_EXTREMES + 2 * OTHER
    tokens = (len(KINDS) + 1) * sum(sizes) + 2 * AGAIN_EXTREMES * sizes[-1] + 2 * sum(sizes[i] for i in others(sizes))
    output = requests
    answers = SENTENCES * len(lengths) + len(CAPS) + THINKING
    output += SENTENCES * sum(room(words) for words in lengths) + sum(CAPS) + THINKING * THINKING_CAP
    tokens += SENTENCES * sum(2 * words for words in lengths) + 64 * answers
    return requests + answers, tokens, output


def _user(content: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]
