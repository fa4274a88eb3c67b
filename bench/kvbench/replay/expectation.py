"""Work out what each turn had to hit, once nothing is being measured any more.

The server is asked for the token ids of every prompt that was sent (/tokenize), in the order of sending; asking
during the run would take the server's time from the requests being timed.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from msgspec.structs import replace

from kvbench.errors import KvbenchError
from kvbench.model import Expectation, Record, Turn, Warning
from kvbench.replay.hashed import HashPrompts
from kvbench.replay.local_ids import LocalIds
from kvbench.replay.prompts import Prompt, SessionPrompts, salt_for
from kvbench.replay.schedule import Arrival
from kvbench.replay.settings import RunSettings
from kvbench.runs.blocks import BlockChains, BlockRow
from kvbench.traces.native import TraceFile
from kvbench.traces.prefix import BlockRule, HitModel, Rule, Sent

LOOKAHEAD = 4

Tokenize = Callable[[Prompt], Coroutine[Any, Any, list[int] | None]]


@dataclass
class _OpenTree:
    turns: dict[str, tuple[Turn, ...]]
    arrival: Arrival
    salt: str | None
    records_left: int
    prompts: dict[str, SessionPrompts] = field(default_factory=dict)
    last: dict[str, Record] = field(default_factory=dict)
    current: dict[str, tuple[int, Prompt]] = field(default_factory=dict)


class PromptReplay:
    """The prompts of a finished run again, in the order of sending, from the trace and the records alone."""

    def __init__(
        self,
        trace: TraceFile,
        arrivals: Mapping[str, Arrival],
        settings: RunSettings,
        run_id: str,
        *,
        salt_in_text: bool,
        resend_reasoning: bool = False,
        hashed: HashPrompts | None = None,
    ) -> None:
        self._trace = trace
        self._arrivals = arrivals
        self._settings = settings
        self._run_id = run_id
        self._salt_in_text = salt_in_text
        self._resend_reasoning = resend_reasoning
        self._hashed = hashed

    def prompts(self, records: Iterable[Record]) -> Iterator[tuple[Record, Prompt]]:
        """Every record that reached the wire, with its prompt; trees are read when first needed and then dropped."""
        ordered = sorted(
            (r for r in records if r.error_class != "skipped"),
            key=lambda r: (r.clock.sent if r.clock.sent is not None else r.clock.due, r.attempt),
        )
        left = Counter(r.root_id for r in ordered)
        trees: dict[str, _OpenTree] = {}
        for record in ordered:
            tree = trees.get(record.root_id)
            if tree is None:
                tree = trees[record.root_id] = self._open(record.root_id, left[record.root_id])
            prompt = self._prompt(tree, record)
            tree.records_left -= 1
            if not tree.records_left:
                del trees[record.root_id]
            if record.clock.sent is not None:
                yield record, prompt

    def _open(self, root_id: str, records: int) -> _OpenTree:
        arrival = self._arrivals[root_id]
        tree = self._trace.read_tree(arrival.index)
        turns = {session.session_id: session.turns for session in tree.sessions}
        salt = salt_for(self._settings, self._run_id, tree.root_id, arrival.cycle)
        return _OpenTree(turns, arrival, salt, records)

    def _prompt(self, tree: _OpenTree, record: Record) -> Prompt:
        session = record.session_id
        turn, prompt = tree.current.get(session, (-1, None))
        if prompt is None or turn != record.turn:
            name = session if tree.arrival.cycle == 0 else session.removesuffix(f"~{tree.arrival.cycle}")
            if session not in tree.prompts:
                tree.prompts[session] = SessionPrompts(
                    self._trace.prefixes,
                    salt=tree.salt,
                    salt_in_text=self._salt_in_text,
                    live=self._settings.history == "live",
                    resend_reasoning=self._resend_reasoning,
                    hashed=self._hashed,
                    turns=tree.turns[name],
                )
            for passed in tree.turns[name][turn + 1 : record.turn]:
                tree.prompts[session].pass_over(passed)
            sent_tokens = self._hashed.sent_tokens(record.request_id) if self._hashed is not None else None
            prompt = tree.prompts[session].next(tree.turns[name][record.turn], tree.last.get(session), sent_tokens)
            tree.current[session] = (record.turn, prompt)
        tree.last[session] = record
        return prompt


class Outcome(NamedTuple):
    """wrong_lengths: prompts with another length in the usage than the server's own token ids. without_ids: stopped
    at a prompt whose token ids nobody knows."""

    wrong_lengths: int
    without_ids: bool


async def expect_hits(
    sent_prompts: Iterator[tuple[Record, Prompt]],
    tokenize: Tokenize,
    rule: Rule,
    settings: RunSettings,
    emit: Callable[[Record, Expectation], None],
    local: LocalIds | None = None,
    observe: Callable[[Record, Sent], None] | None = None,
) -> Outcome:
    """Give each final ok record its expectation through `emit`. `local` makes token ids where the server tells none;
    `observe` is shown each request with its ids, in the order of sending.
    Stops at the first prompt that cannot be tokenised, as nothing after it is certain.
    """
    by_key: dict[str, Record] = {}

    def settle(key: str, expectation: Expectation) -> None:
        record = by_key.pop(key)
        if settings.salt == "none":
            most = rule.ceiling_tokens(expectation.input_tokens or 0, expectation.input_tokens or 0)
            expectation = replace(expectation, ceiling=most, reason="no salt: earlier traffic may have left more")
        if local is not None:
            expectation = local.widened(rule, expectation)
        if record.ok and record.final:
            emit(record, expectation)

    async def ids_of(prompt: Prompt) -> list[int] | None:
        ids = await tokenize(prompt)
        return local.ids(prompt) if ids is None and local is not None else ids

    model = HitModel(rule, settle)
    wrong_lengths = 0
    without_ids = False
    async for record, prompt, ids in _tokenised(sent_prompts, ids_of):
        if ids is None:
            without_ids = True
            break
        if local is not None and local.used:
            ids = local.aligned(ids, record.usage.input_tokens)
        elif record.usage.input_tokens is not None and record.usage.input_tokens != len(ids):
            wrong_lengths += 1
        by_key[record.request_id] = record
        clock = record.clock
        assert clock.sent is not None
        generated = record.usage.output_tokens if record.usage.output_tokens is not None else len(clock.chunks)
        sent = Sent(
            key=record.request_id,
            session_id=record.session_id,
            salt=prompt.salt or "",
            ids=array("I", ids),
            sent_ns=clock.sent,
            # without a stream the first token's time is not known: only the end is certain
            first_token_ns=clock.first_token if clock.first_token is not None else clock.end if record.ok else None,
            end_ns=clock.end,
            output_tokens=generated,
            output_ids=None if record.output_token_ids is None else array("I", record.output_token_ids),
        )
        if observe is not None:
            observe(record, sent)
        model.add(sent, prompt.resent_bytes)
    model.finish()
    return Outcome(wrong_lengths, without_ids)


def block_rows(rule: Rule, run_id: str, write: Callable[[BlockRow], None]) -> Callable[[Record, Sent], None] | None:
    """What to show requests to, so that `write` gets each one's blocks; None where the rule has no blocks."""
    if not isinstance(rule, BlockRule):
        return None
    chains = BlockChains(rule.block_size, run_id)

    def observe(record: Record, sent: Sent) -> None:
        write(chains.row(sent.key, record.session_id, record.attempt, sent.salt, sent.ids, sent.output_ids))

    return observe


async def expectation_warnings(expecting: Awaitable[Outcome]) -> list[Warning]:
    """Wait for the expectations; what stood in their way, as warnings."""
    try:
        outcome = await expecting
    except KvbenchError as error:
        return [incomplete_expectation(error.message)]
    warnings = []
    if outcome.without_ids:
        warnings.append(no_expectation("the endpoint tells no token ids, and its profile names no tokenizer"))
    if outcome.wrong_lengths:
        warnings.append(
            Warning(
                code="lengths_differ",
                message=f"{outcome.wrong_lengths} prompts have another length in the usage than the server's "
                "/tokenize gives",
                advice="expected hits of those turns may be off by a block: the server renders them differently",
            )
        )
    return warnings


def incomplete_expectation(why: str) -> Warning:
    return Warning(
        code="expectation_incomplete",
        message=f"expected hits are incomplete: {why}",
        advice="they need the trace as it was and the server's /tokenize; run again with both",
    )


def no_expectation(why: str) -> Warning:
    return Warning(
        code="no_expectation",
        message=f"no expected hits: {why}",
        advice="hit rates are then what the endpoint reports, with nothing to hold them against",
    )


async def _tokenised(
    sent_prompts: Iterator[tuple[Record, Prompt]], tokenize: Tokenize
) -> AsyncIterator[tuple[Record, Prompt, list[int] | None]]:
    """A few prompts ahead, in order; a retry of the same prompt is not asked for again."""
    waiting: deque[tuple[Record, Prompt, asyncio.Task[list[int] | None]]] = deque()
    latest: dict[str, tuple[Prompt, asyncio.Task[list[int] | None]]] = {}
    exhausted = False
    try:
        while True:
            while not exhausted and len(waiting) < LOOKAHEAD:
                pair = next(sent_prompts, None)
                if pair is None:
                    exhausted = True
                    break
                record, prompt = pair
                known = latest.get(record.session_id)
                if known is None or known[0] is not prompt:
                    task = asyncio.create_task(tokenize(prompt))
                    known = latest[record.session_id] = (prompt, task)
                waiting.append((record, prompt, known[1]))
            if not waiting:
                return
            record, prompt, task = waiting.popleft()
            yield record, prompt, await task
    finally:
        for _, _, task in waiting:
            task.cancel()
