"""What a run cost as a figure of the run, for comparing runs: one exact amount, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import ROUND_HALF_EVEN, Decimal, localcontext

from kvbench.analysis.pricing.runs import run_attempts
from kvbench.prices.listing import utc_text
from kvbench.prices.money import ZERO, Money, plain, total
from kvbench.prices.priced import Unpriced
from kvbench.prices.pricing import PriceList
from kvbench.runs.reader import Run


@dataclass(frozen=True)
class Tariff:
    """Which prices held for a model: those of one period, in or out of peak hours."""

    model: str
    since: datetime
    peak: bool

    def __str__(self) -> str:
        return f"{'peak' if self.peak else 'off-peak'} prices since {utc_text(self.since)}"


@dataclass(frozen=True)
class RunCost:
    """amount: what `kvbench price RUN` says, warm-up and retries too. per_job: of the session trees that ran to their
    end, to 12 significant digits; None without one. by_tree: by root_id, in all the amount. There is no amount where
    `reason` says why.
    """

    currency: str | None = None
    amount: Decimal | None = None
    per_job: Decimal | None = None
    by_tree: Mapping[str, Decimal] = field(default_factory=dict)
    tariffs: frozenset[Tariff] = frozenset()
    reason: str | None = None


def run_cost(run: Run, jobs: Collection[str], prices: PriceList) -> RunCost:
    """jobs: root_ids of the trees that ran to their end. Requests are priced by their start."""
    amounts: dict[str, Money] = {}
    unpriced: list[Unpriced] = []
    currencies: set[str] = set()
    tariffs: set[Tariff] = set()
    for record, billable in run_attempts(run):
        if billable.unused:
            continue
        got = prices.price(billable)
        if isinstance(got, Unpriced):
            unpriced.append(got)
            continue
        root = record.root_id or record.session_id
        amounts[root] = amounts.get(root, Money()).plus(got.amount)
        currencies.add(got.currency)
        tariffs.add(Tariff(got.model, got.row.start, got.peak))
    reason = _reason(unpriced, currencies, list(amounts.values()))
    if reason is not None:
        return RunCost(reason=reason)
    by_tree = {root: amount.least for root, amount in amounts.items()}
    per_job = _quotient(total(by_tree.get(root, ZERO) for root in jobs), len(jobs))
    return RunCost(currencies.pop(), total(by_tree.values()), per_job, by_tree, frozenset(tariffs))


def incomparable(costs: Sequence[RunCost]) -> str | None:
    """Why amounts of priced runs do not tell what changed: the clock moved them, or they are not in one currency."""
    currencies = sorted({cost.currency or "" for cost in costs})
    if len(currencies) > 1:
        return f"priced in several currencies ({', '.join(currencies)}), and none is converted: name one book, --prices"
    every = {tariff for cost in costs for tariff in cost.tariffs}
    for model in sorted({tariff.model for tariff in every}):
        held = sorted((tariff for tariff in every if tariff.model == model), key=lambda t: (t.since, t.peak))
        if len(held) > 1:
            return f"{model} was charged by {' and by '.join(map(str, held))}: {_CLOCK}"
    if len({tariff.peak for tariff in every}) > 1:
        return f"one model was charged at peak prices and another was not: {_CLOCK}"
    return None


_CLOCK = "the change would be the clock's; make all runs inside one period"


def _reason(unpriced: Sequence[Unpriced], currencies: Collection[str], amounts: Sequence[Money]) -> str | None:
    if unpriced:
        one = unpriced[0]
        rest = f" ({one.request_id}, and {len(unpriced) - 1:,} more requests)" if len(unpriced) > 1 else ""
        return f"{one.why}{rest or f' ({one.request_id})'}"
    if not currencies:
        return "no request used anything that has a price"
    if len(currencies) > 1:
        return f"its requests are priced in several currencies ({', '.join(sorted(currencies))})"
    if any(amount.exact is None for amount in amounts):
        least, tops = total(amount.least for amount in amounts), [amount.most for amount in amounts]
        most = "without an upper bound" if None in tops else f"at most {plain(total(m for m in tops if m is not None))}"
        return f"the amount is at least {plain(least)} and {most}, as hits or outputs are not reported in full"
    return None


def _quotient(amount: Decimal, jobs: int) -> Decimal | None:
    if not jobs:
        return None
    with localcontext() as context:
        context.prec, context.rounding = 12, ROUND_HALF_EVEN
        return amount / jobs
