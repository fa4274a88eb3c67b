"""Hit tokens that a bill implies: what it saves against the same requests without a cache, over what a hit saves.

    h = (p_m T_in + p_o T_out - bill) / (p_m - p_h)

with the prices of uncached, output and cached tokens, all of dated price books. Amounts are Decimal. A bill is known to
half a unit of its last digit, a balance to what its two decimals allow; where a run has several prices (peak hours),
the tokens are bounded by filling the dearest, or the cheapest, requests with hits first. Tokens, never bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from typing import NamedTuple

from msgspec.structs import replace

from kvbench.analysis.pricing.runs import run_billables
from kvbench.errors import UsageError
from kvbench.model import Estimate, FitReport, Refusal
from kvbench.prices.money import ZERO, Money, plain, product
from kvbench.prices.priced import Billable, Unpriced
from kvbench.prices.pricing import PriceList
from kvbench.runs.reader import Run

BALANCE = "balance"
TOKENS, RATE = "hit_tokens_of_bill", "hit_rate_of_bill"
_AMOUNT = re.compile(r"(?:([A-Z]{3})\s*)?(\d+(?:\.\d+)?)(?:\s*([A-Z]{3}))?")


class Bill(NamedTuple):
    """What was paid: between at_least and at_most, `amount` as it was said. currency None: the price book's."""

    amount: Decimal
    at_least: Decimal
    at_most: Decimal
    currency: str | None
    told: str


class _Hits(NamedTuple):
    """Some tokens that were, or were not, hit: what one saves."""

    tokens: int
    saves: Decimal


def read_bill(text: str, run: Run) -> Bill:
    """An amount as on an invoice ("12.30", "CNY 12.30"), or `balance`: what the run's own balance fell by.

    Raises UsageError for what is neither, and where the run has no balance of one currency.
    """
    if text == BALANCE:
        return _of_balance(run)
    found = _AMOUNT.fullmatch(text.strip())
    if found is None or (found[1] and found[3]):
        raise UsageError(
            f"--bill {text}: no amount",
            hint='as --bill 12.30, --bill "12.30 CNY", or --bill balance for the account\'s',
        )
    amount, currency = Decimal(found[2]), found[1] or found[3]
    exponent = amount.as_tuple().exponent
    assert isinstance(exponent, int)
    half = product(Decimal(1).scaleb(exponent), Decimal("0.5"))
    least = max(ZERO, amount - half)
    return Bill(amount, least, amount + half, currency, f"the bill's last digit is rounded by up to {plain(half)}")


def _of_balance(run: Run) -> Bill:
    known = [each for each in run.info.balance or () if each.at_least is not None and each.at_most is not None]
    spent = [each for each in known if each.at_most] if len(known) > 1 else known
    if len(spent) != 1:
        have = ", ".join(each.currency for each in run.info.balance or ()) or "none"
        raise UsageError(
            f"--bill balance: the run does not have the fall of one balance (balances: {have})",
            hint="a run with `balance = true` in its endpoint's TOML, or --bill AMOUNT",
        )
    one = spent[0]
    assert one.at_least is not None
    assert one.at_most is not None
    middle = (one.at_least + one.at_most) / 2
    told = f"the balance fell by {plain(one.at_least)} to {plain(one.at_most)}, and nothing else was paid from it"
    return Bill(middle, one.at_least, one.at_most, one.currency, told)


def fit_bill(run: Run, bill: Bill, prices: PriceList) -> FitReport:
    """hit_tokens_of_bill and hit_rate_of_bill, held against what the requests reported."""
    billables = [b for b in run_billables(run) if not (b.failed and b.usage.input_tokens is None)]
    if not billables:
        return _refused(run, "no request was sent that could be billed")
    if run.info.status != "done":
        return _refused(run, f"the run is {run.info.status}: what was in flight at its end may be on the bill")
    cost, hits = Money(), []
    for billable in billables:
        told = _without_cache(billable, prices)
        if isinstance(told, str):
            return _refused(run, f"{billable.request_id}: {told}")
        cost = cost.plus(told[0])
        hits.append(told[1])
    if cost.most is None:
        return _refused(run, "what the answers cost is not known: their length is only known from below")
    tokens = sum(h.tokens for h in hits)
    least, most = cost.least - bill.at_most, cost.most - bill.at_least
    everything = sum((product(h.saves, h.tokens) for h in hits), ZERO)
    if most < 0:
        why = f"the bill is above {plain(cost.most)}, which the requests cost with nothing cached"
        return _refused(run, f"{why}: it has more on it than this run, or other prices")
    if least > everything:
        why = f"the bill is below {plain(cost.least - everything)}, which the requests cost with all input cached"
        return _refused(run, f"{why}: something is not on it yet, or its prices are others")
    dear, cheap = (sorted(hits, key=lambda h: h.saves, reverse=turn) for turn in (True, False))
    low, high = _filled(dear, least), _filled(cheap, most)
    if low == 0 and high == tokens:
        return _refused(run, f"{bill.told}: from no hits at all to nothing but hits, any number explains it")
    saved = (cost.least + cost.most) / 2 - bill.amount
    value = (_filled(dear, saved) + _filled(cheap, saved)) / 2
    return _report(run, bill, billables, (value, low, high), tokens, len({h.saves for h in hits}))


def _report(
    run: Run,
    bill: Bill,
    billables: Sequence[Billable],
    found: tuple[Decimal, Decimal, Decimal],
    tokens: int,
    prices: int,
) -> FitReport:
    value, low, high = found
    method = "what the bill saves against no cache, over what a cached token saves"
    if prices > 1:
        method += f"; bounded over {prices} prices (peak hours, models), whichever of them the hits were at"
    estimates = tuple(
        Estimate(
            name=name,
            value=float(value / of),
            low=float(low / of),
            high=float(high / of),
            unit=unit,
            method=method,
            n=len(billables),
        )
        for name, unit, of in ((TOKENS, "tokens", 1), (RATE, "share of input tokens", tokens))
    )
    return FitReport(
        runs=(str(run.path),),
        estimates=estimates,
        assumed=("the bill is of this run's requests and nothing else, at the book's prices", bill.told),
        notes=(_against_reports(billables, low, high),),
    )


def _against_reports(billables: Iterable[Billable], low: Decimal, high: Decimal) -> str:
    told = [b.usage.cached_tokens for b in billables]
    known = [each for each in told if each is not None]
    if len(known) < len(told):
        return f"hits were reported of {len(known)} of {len(told)} requests: the bill is not held against them"
    reported = sum(known)
    if low <= reported <= high:
        return f"{reported:,} hit tokens were reported: the bill agrees"
    off = low - reported if reported < low else reported - high
    less = "more" if reported < low else "fewer"
    return f"{reported:,} hit tokens were reported: the bill has at least {off:,.0f} {less}"


def _without_cache(billable: Billable, prices: PriceList) -> tuple[Money, _Hits] | str:
    """What it costs with nothing cached, and what its input saves where it is; or why that is not known."""
    usage = replace(billable.usage, cached_tokens=0, cache_write_tokens=0, cache_write_1h_tokens=None)
    asked = replace(billable, usage=usage)
    got = prices.price(asked)
    if isinstance(got, Unpriced):
        return got.why
    other = prices.price(asked, "end")
    if isinstance(other, Unpriced) or other.amount != got.amount:
        return "the price changed while it ran, and which of the two it was billed at is not known"
    row = got.row
    if not row.write_as_miss and (row.write_5m is not None or row.write_1h is not None):
        return "tokens written to the cache have a price of their own, so a bill alone does not tell hits"
    miss, hit = row.per_token("miss", peak=got.peak), row.per_token("hit", peak=got.peak)
    if miss is None or hit is None or hit >= miss:
        return "a cached token costs what any other does, so a bill says nothing of hits"
    return got.amount, _Hits(usage.input_tokens or 0, miss - hit)


def _filled(hits: Iterable[_Hits], saved: Decimal) -> Decimal:
    """Tokens that have to be hit to save so much, in this order; all of them at most."""
    tokens = ZERO
    left = max(ZERO, saved)
    with localcontext() as context:
        context.prec, context.rounding = 30, ROUND_HALF_EVEN
        for each in hits:
            whole = product(each.saves, each.tokens)
            if whole > left:
                return tokens + left / each.saves
            left -= whole
            tokens += each.tokens
    return tokens


def _refused(run: Run, reason: str) -> FitReport:
    experiment = "kvbench price RUN --invoice FILE: an export with tokens by kind says hits itself"
    return FitReport(runs=(str(run.path),), refusals=(Refusal(name=TOKENS, reason=reason, experiment=experiment),))
