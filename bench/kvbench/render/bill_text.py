"""What an invoice says against a price report, on a terminal: the verdict last, with what it is worth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvbench.render.amounts import WIDTH, amount_text
from kvbench.render.text import plural, safe

SHOWN = 8


def bill_lines(report: dict[str, Any]) -> list[str]:
    """`report` as analysis.billing makes it, without what price_lines shows of it."""
    currency = report["total"]["currency"]
    return [
        *(_bill(report, currency) if "joined" in report["bill"] else _balance(report["bill"], currency)),
        *(_balance(report["balance"], currency) if report.get("balance") else ()),
        *_findings(report, currency),
        *(_served(report, currency) if "served" in report else ()),
        *_detectable(report, currency),
        *_verdict(report, currency),
    ]


def _bill(report: dict[str, Any], currency: str) -> Iterator[str]:
    bill = report["bill"]
    key = f", key {safe(bill['key'])}" if bill["key"] else ""
    yield f"{'invoice':<{WIDTH}}{safe(bill['path'])}: {bill['format']}{key} (shape {bill['shape']})"
    asked = "no money in it" if bill["invoiced"] is None else f"{currency} {amount_text(bill['invoiced'])}"
    yield (
        f"{'':<{WIDTH}}{bill['joined']}: asks {asked}, where the reported tokens cost {currency} "
        f"{amount_text(bill['expected'])}"
    )
    missing, foreign = bill["unmatched"]["requests"], bill["unmatched"]["invoice"]
    if missing["requests"]:
        first = ", ".join(map(safe, missing["first"]))
        yield f"{'unmatched':<{WIDTH}}{plural(missing['requests'], 'request')} of ours not on it ({first})"
    if foreign["cells"]:
        first = "; ".join(map(safe, foreign["first"][:3]))
        yield (
            f"{'unmatched':<{WIDTH}}{foreign['cells']:,} of its requests or windows hold none of ours, "
            f"{foreign['tokens']:,} tokens ({first})"
        )
    if bill["not_known"]["requests"]:
        first = "; ".join(map(safe, bill["not_known"]["first"][:2]))
        yield f"{'not known':<{WIDTH}}what {plural(bill['not_known']['requests'], 'request')} of ours used ({first})"
    if bill["unattributed"]["tokens"] or bill["unattributed"]["amount"] != "0":
        rest = bill["unattributed"]
        yield (
            f"{'others?':<{WIDTH}}{rest['tokens']:,} tokens, {currency} {amount_text(rest['amount'])}, are billed "
            "beyond these requests"
        )
    if bill["straddling"]:
        yield (
            f"{'boundary':<{WIDTH}}{plural(bill['straddling'], 'request')} on the edge of two windows or prices: "
            "counted where the invoice agrees best"
        )
    for row in bill["bad_rows"][:SHOWN]:
        yield f"{'bad row':<{WIDTH}}{safe(row)}"
    more = bill["rows"]["bad"] - SHOWN
    if more > 0:
        yield f"{'':<{WIDTH}}and {more:,} more rows that cannot be read"
    for note in bill["notes"]:
        yield f"{'note':<{WIDTH}}{safe(note)}"


def _balance(balance: dict[str, Any], currency: str) -> Iterator[str]:
    yield f"{'balance':<{WIDTH}}{balance_says(balance, currency)}"


def balance_says(balance: dict[str, Any], currency: str) -> str:
    """Of the account's balance, and of an invoice that it is read beside."""
    if balance["at_least"] is None:
        return f"before {balance['before'] or 'not read'}, after {balance['after'] or 'not read'}"
    said = (
        f"{currency} {balance['before']} before, {balance['after']} after: {balance['at_least']} to "
        f"{balance['at_most']} were spent"
    )
    holds = balance.get("holds_the_invoice")
    if holds is None:
        return said
    if holds:
        return f"{said}, which holds what the invoice asks" + (
            "" if balance["holds_the_price"] else " and not the price"
        )
    return f"{said}, which does NOT hold what the invoice asks (other traffic of the account, or charges to come)"


def _findings(report: dict[str, Any], currency: str) -> Iterator[str]:
    label = "faults"
    for found in report["findings"]:
        sign = "-" if found["amount"].startswith("-") else ""
        amount = f"{sign}{currency} {amount_text(found['amount'].removeprefix('-'))}"
        weak = "" if found["proof"] else " (no proof)"
        yield (
            f"{label:<{WIDTH}}{found['kind']}: {amount}{weak}, {found['tokens']:,} tokens, "
            f"{plural(found['requests'], 'request')}: {safe(found['evidence'])}"
        )
        label = ""


def _served(report: dict[str, Any], currency: str) -> Iterator[str]:
    found = report["served"]
    money = f", {currency} {amount_text(found['short_amount'])}" if found["short_tokens"] else ""
    yield f"{'served':<{WIDTH}}{found['verdict']}{money}: {safe(found['says'])} (inference, no part of the verdict)"
    if found["to_see_less"]:
        yield f"{'':<{WIDTH}}to see less: {safe(found['to_see_less'])}"


def _detectable(report: dict[str, Any], currency: str) -> Iterator[str]:
    found = report["detectable"]
    if found["amount"] is None:
        missing = "; ".join(
            f"{name}: {each['why']}" for name, each in found["by_fault"].items() if each["amount"] is None
        )
        yield f"{'detectable':<{WIDTH}}no bound{f' ({missing})' if missing else ''}"
    else:
        share = found.get("share")
        of = f" ({share:.1%} of the bill)" if share is not None else ""
        tokens = f", or {plural(found['tokens'], 'token')} of one kind" if found["tokens"] else ""
        yield f"{'detectable':<{WIDTH}}a fault above {currency} {amount_text(found['amount'])}{of}{tokens}"
    yield f"{'':<{WIDTH}}to see less: {found['to_see_less']}"


def _verdict(report: dict[str, Any], currency: str) -> Iterator[str]:
    verdict = report["verdict"]
    if verdict == "disputed":
        from decimal import Decimal

        over = sum(Decimal(each["amount"]) for each in report["findings"] if each["proof"] and each["amount"][0] != "-")
        yield f"{'verdict':<{WIDTH}}DISPUTED: {currency} {amount_text(f'{over:f}')} too much"
    else:
        yield f"{'verdict':<{WIDTH}}{verdict.upper()}"
    for reason in report["verdict_reasons"]:
        yield f"{'':<{WIDTH}}{safe(reason)}"
