"""What a trace will cost, before anything is sent: amounts between which the bill must lie.

Prompts have the trace's lengths, or those of their text. Of a prompt

- at least (floor) is hit what the session's own turn before has surely left there, by the hit rule of the model's book;
- at most (ceiling) is hit what any request of the trace that starts before it holds too, and what the turn before
  generated; of what several requests begin with, the first computes it.

An answer has between one token and as many as in the trace: no endpoint may give more. Requests start at the trace's
own times (a replay with --time-scale 1).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from kvbench.analysis.pricing.findings import grouped
from kvbench.analysis.pricing.tally import INPUT_KINDS, KINDS, Tally, money_dict, per_million
from kvbench.errors import InputError, KvbenchError, UsageError
from kvbench.model import Usage
from kvbench.prices.listing import row_dict, utc_text
from kvbench.prices.money import Money
from kvbench.prices.parts import CannotPrice
from kvbench.prices.priced import Billable, Priced, Unpriced
from kvbench.prices.pricing import PriceList
from kvbench.traces.blocks import BlockedTrace, BlockRequest
from kvbench.traces.bundled import resolve_trace
from kvbench.traces.importing import open_workload
from kvbench.traces.native import TraceFile
from kvbench.traces.prefix import StepsRule, UnitsRule
from kvbench.traces.prefix.marks import MARK
from kvbench.traces.tokenizers import Tokenizer, load_tokenizer

_RULES: dict[str, StepsRule | UnitsRule | None] = {"steps": StepsRule(), "units": UnitsRule()}
BREAKPOINTS = "breakpoints"


class Predicted(NamedTuple):
    """Hits of one request, in tokens."""

    floor: int
    ceiling: int


def estimate_report(
    spec: str, prices: PriceList, *, model: str | None, start: datetime, now: datetime
) -> dict[str, Any]:
    """A price report whose amounts are intervals. start: when the replay begins.

    Raises InputError where no request has a price, UsageError where the trace names no model and none is given.
    """
    with open_workload(resolve_trace(spec)) as trace:
        tokenizer, note = _tokenizer(trace, prices, model, start)
        blocked = BlockedTrace(trace, tokenizer=tokenizer)
        by_marks = any(each.hit_rule == BREAKPOINTS for book in prices.books for each in book.models.values())
        fold = _Fold(prices, model, start, blocked.block_size, marked=by_marks and _is_marked(trace))
        for request in _in_time(blocked):
            fold.add(request)
        notes = [f"lengths: {blocked.blocking().tokens}", *note]
        if BREAKPOINTS in fold.rules:
            notes.append(
                "prompts have cache_control marks: what is written to the cache, and so costs more, is between nothing "
                "and all that is not hit"
                if fold.marked
                else "no prompt has a cache_control mark, so by the rule of its model nothing is cached; marks that an "
                "endpoint's extra_body adds are not in it"
            )
        if blocked.text_turns:
            notes.append("what a chat template, or a salt in the text, adds to a prompt is not in it")
        if fold.price_changes():
            notes.append(
                "the price changes while it is replayed, or soon after: requests count at the trace's own times, and "
                "an endpoint that is slower or faster than that has others on either side"
            )
        return fold.report(str(trace.path), notes, now)


def _tokenizer(
    trace: TraceFile, prices: PriceList, model: str | None, start: datetime
) -> tuple[Tokenizer | None, list[str]]:
    """The model's own, where its book names one and it is installed; it counts texts, so hash ids need none."""
    names = {
        book.models[found].tokenizer
        for book in prices.books
        for named in ([model] if model is not None else _models(trace))
        for found in book.models_named(named, start)
    } - {None}
    if trace.has_hash_ids or len(names) != 1:
        return None, []
    (name,) = names
    assert name is not None
    try:
        return load_tokenizer(name), []
    except KvbenchError as error:
        return None, [f"the model's own tokenizer could not be used ({error.message}): lengths are rough"]


def _models(trace: TraceFile) -> set[str]:
    return {turn.model for tree in trace.trees() for session in tree.sessions for turn in session.turns if turn.model}


def _is_marked(trace: TraceFile) -> bool:
    """Whether any prompt asks for something to be cached."""
    mark = f'"{MARK}"'.encode()
    lines = itertools.chain(trace.raw_head(), *(trace.raw_lines(index) for index in range(trace.tree_count)))
    return any(mark in line for line in lines)


def _in_time(blocked: BlockedTrace) -> Iterator[BlockRequest]:
    """Requests in the order in which they start."""
    return iter(sorted(blocked.requests(), key=lambda request: request.start_s))


class _Fold:
    def __init__(
        self, prices: PriceList, model: str | None, start: datetime, block_size: int, *, marked: bool = False
    ) -> None:
        self._block_size = block_size
        self.marked = marked
        self._prices = prices
        self._model = model
        self._start = start
        self._seen: set[int] = set()
        self._before: dict[str, BlockRequest] = {}
        self._low, self._high = Tally(), Tally()
        self._as_long = Money()
        self._models: dict[str, tuple[Tally, Tally, set[str]]] = {}
        self._peak = self._open = 0
        self._unpriced: list[Unpriced] = []
        self._rows: dict[int, tuple[Priced, int]] = {}
        self.rules: set[str] = set()
        self._last = start

    def add(self, request: BlockRequest) -> None:
        name = self._model or request.model
        if name is None:
            raise UsageError("the trace names no model, so nothing has a price", hint="add --model M")
        moment = self._start + timedelta(seconds=request.start_s)
        self._last = max(self._last, moment)
        least_hit = 0
        try:
            found = self._prices.find(name, moment, Usage(input_tokens=request.input_tokens))
            rule = found.book.models[found.row.model].hit_rule
            least_hit = found.row.minimum_cacheable_tokens or 0
        except CannotPrice:
            rule = "none"
        predicted = self._predict(request, rule)
        open_writes = rule == BREAKPOINTS and self.marked
        if rule == BREAKPOINTS and not self.marked:
            predicted = Predicted(0, 0)
        floor, ceiling = (hits if hits >= least_hit else 0 for hits in (predicted.floor, predicted.ceiling))
        self.rules.add(rule)
        wanted = request.output_tokens
        self._open += wanted is None
        most = None if wanted is None else max(wanted, 1)
        priced = [
            self._price(request, name, moment, hits, output, most if output_open else None, output_open, open_writes)
            for hits, output, output_open in (
                (ceiling, 1, False),
                (floor, 1, True),
                (ceiling, most or 1, wanted is None),
                (floor, most or 1, wanted is None),
            )
        ]
        good = [each for each in priced if isinstance(each, Priced)]
        if len(good) < len(priced):
            self._unpriced.append(next(each for each in priced if isinstance(each, Unpriced)))
            return
        low, high, short, long = good
        self._low.add(low.parts)
        self._high.add(high.parts)
        self._as_long = self._as_long.plus(Money(short.amount.least, long.amount.most))
        models = self._models.setdefault(name, (Tally(), Tally(), set()))
        models[0].add(low.parts)
        models[1].add(high.parts)
        models[2].add(f"{low.row.model} ({low.book})")
        self._peak += low.peak
        self._rows[id(low.row)] = low, self._rows.get(id(low.row), (low, 0))[1] + 1

    def _price(
        self,
        request: BlockRequest,
        model: str,
        moment: datetime,
        hits: int,
        output: int,
        most: int | None,
        output_open: bool,
        open_writes: bool,
    ) -> Priced | Unpriced:
        written = None if open_writes else 0
        tokens = request.input_tokens
        usage = Usage(input_tokens=tokens, cached_tokens=hits, cache_write_tokens=written, output_tokens=output)
        return self._prices.price(
            Billable(
                request_id=f"{request.session_id}/{request.turn}",
                model=model,
                usage=usage,
                start=moment,
                output_open=output_open,
                output_most=most,
            )
        )

    def _predict(self, request: BlockRequest, name: str) -> Predicted:
        tokens, size, rule = request.input_tokens, self._block_size, _RULES.get(name)
        before = self._before.get(request.session_id)
        self._before[request.session_id] = request
        shared = request.kept
        for block in request.new_ids:
            if block not in self._seen:
                break
            shared += 1
        self._seen.update(request.new_ids)
        sure = request.kept * size if before is not None else 0
        # A shared prefix may go on inside the block in which it parts.
        possible = min(tokens, (shared + 1) * size - 1) if shared else min(tokens, size - 1)
        if before is not None and sure >= before.input_tokens // size * size:
            possible = max(possible, min(tokens, before.input_tokens + (before.output_tokens or tokens)))
        if rule is None:
            return Predicted(0, possible)
        if isinstance(rule, UnitsRule) and before is not None:
            pause_s = request.start_s - before.end_s
            whole = sure >= before.input_tokens // size * size
            sure = sure if whole and rule.build_s <= pause_s <= rule.lifetime_s else 0
        return Predicted(rule.floor_tokens(sure, tokens), rule.ceiling_tokens(possible, tokens))

    # -------------------------------------------------------------------------------------------------------- report

    def price_changes(self) -> bool:
        """Whether one price does not hold for all of a model's requests, were the replay to take twice as long."""
        later = self._last + (self._last - self._start)
        for name in self._models:
            try:
                found = [self._prices.find(name, moment, Usage()) for moment in (self._start, self._last, later)]
            except CannotPrice:
                return True
            if len({(id(each.row), each.peak) for each in found}) > 1:
                return True
        return False

    def report(self, path: str, notes: list[str], now: datetime) -> dict[str, Any]:
        if not self._rows:
            first = grouped(self._unpriced)[0] if self._unpriced else None
            why = f": {first['why']}" if first is not None else ""
            raise InputError(
                f"not one request of the trace has a price{why}", path=path, hint="--model M, --prices BOOK"
            )
        currencies = {got.currency for got, _ in self._rows.values()}
        if len(currencies) > 1:
            raise UsageError(
                f"the trace's models are billed in several currencies ({', '.join(sorted(currencies))})",
                hint="--currency, or --model M",
            )
        total = Money(self._low.amount.least, None if self._unpriced else self._high.amount.most)
        tokens = self._low.input_tokens
        inputs = Money(self._low.input_amount.least, self._high.input_amount.most)
        return {
            "source": {"kind": "estimate", "path": path},
            "total": {"currency": currencies.pop(), **money_dict(total)},
            "by_kind": _between(self._low, self._high),
            "by_model": {
                name: {
                    "requests": low.requests,
                    "billed_as": sorted(billed),
                    **money_dict(Money(low.amount.least, high.amount.most)),
                    "by_kind": _between(low, high),
                }
                for name, (low, high, billed) in sorted(self._models.items())
            },
            "by_period": {
                "peak": {"requests": self._peak},
                "off_peak": {"requests": self._low.requests - self._peak},
            },
            "requests": {"priced": self._low.requests, "unpriced": len(self._unpriced)},
            "first": utc_text(self._start),
            "last": utc_text(self._last),
            "input_tokens": tokens,
            "input_price_per_mtok": per_million(inputs, tokens),
            "answers_as_long_as_in_the_trace": money_dict(self._as_long),
            "hit_rules": sorted(self.rules),
            "rows": [
                {"book": got.book, **row_dict(got.row, now), "requests": count} for got, count in self._rows.values()
            ],
            "findings": [],
            "unpriced": grouped(self._unpriced),
            "verdict": None,
            "detectable": None,
            "notes": notes,
        }


def _between(low: Tally, high: Tally) -> dict[str, Any]:
    """Kinds with the least and the most that each can be: low has the most hits and the least output."""
    out: dict[str, Any] = {}
    for kind in [kind for kind in KINDS if kind in low.money.keys() | high.money.keys()]:
        one, two = (tally.money.get(kind, Money()) for tally in (low, high))
        count, other = low.tokens.get(kind, 0), high.most_tokens.get(kind, 0)
        least = count if other is None else min(count, other)
        most = None if other is None else max(count, other)
        top = None if two.most is None or one.most is None else max(one.most, two.most)
        amount = Money(min(one.least, two.least) if kind in INPUT_KINDS else one.least, top)
        out[kind] = {"tokens": least, **({} if most == least else {"most_tokens": most}), **money_dict(amount)}
    return out
