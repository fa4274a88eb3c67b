"""A dispute as a letter of one page, in Markdown: what is disputed, where it is on the bill, and by which price row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import ROUND_HALF_UP, Decimal
from pathlib import PurePath
from typing import Any

from kvbench.render.amounts import amount_text
from kvbench.render.text import plural, safe

FINDINGS = 4
PLACES = 4
ROWS = 4


def letter(report: dict[str, Any]) -> str:
    """`report`: a disputed verification report of analysis.billing."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: dict[str, Any]) -> Iterator[str]:
    currency, bill = report["total"]["currency"], report["bill"]
    proved = [each for each in report["findings"] if each["proof"] and Decimal(each["amount"]) > 0]
    over = sum((Decimal(each["amount"]) for each in proved), Decimal(0))
    yield f"# Disputed bill: {currency} {_cents(over)} too much"
    yield ""
    key = f", key `{_cell(bill['key'])}`" if bill.get("key") else ""
    yield f"Usage of {report['first']} to {report['last']} (UTC){key}; invoice: {_cell(_names(bill))}."
    yield ""
    asked = bill.get("invoiced")
    invoiced = "" if asked is None else f" The invoice asks {currency} {amount_text(asked)} for them."
    yield (
        f"The token counts that your API reported with each answer come to {currency} "
        f"{amount_text(bill.get('expected') or report['total']['at_least'])} at your published prices.{invoiced} We "
        f"dispute {currency} {amount_text(f'{over:f}')}; every amount below is the smallest that accounts for the "
        "difference."
    )
    yield ""
    rows: list[str] = []
    for found in proved[:FINDINGS]:
        yield f"## {_title(found['kind'])}: {currency} {amount_text(found['amount'])}"
        yield ""
        of = f" The largest of {found['cells']:,} differences:" if found.get("cells", 0) > PLACES else ""
        yield f"{plural(found['tokens'], 'token')}, {plural(found['requests'], 'request')}.{of}"
        yield ""
        yield from _places(found, currency)
        rows += [each["row"] for each in found.get("where", []) if each["row"]]
    if len(proved) > FINDINGS:
        rest = sum((Decimal(each["amount"]) for each in proved[FINDINGS:]), Decimal(0))
        yield f"And {plural(len(proved) - FINDINGS, 'smaller fault')}, {currency} {amount_text(f'{rest:f}')} in all."
        yield ""
    yield "## The prices that apply"
    yield ""
    for row in list(dict.fromkeys(rows))[:ROWS] or _rows(report):
        yield f"- {_cell(row)}"
    yield ""
    tolerance = bill.get("tolerance", {}).get("amount", "0")
    said = "Nothing was allowed for rounding" if tolerance == "0" else f"{currency} {tolerance} is allowed for rounding"
    yield (
        f"{said}{_provable(report, proved, currency)}; requests on the edge of two hours were counted where your "
        "figures agree best. The usage objects, with the ids of your answers, are at your disposal."
    )
    yield ""
    yield "Please correct the bill, or name the requests that the figures above stand for."


def _provable(report: dict[str, Any], proved: Sequence[dict[str, Any]], currency: str) -> str:
    """The smallest fault that would have shown, of each kind that is disputed: other kinds may be harder to see."""
    by_fault = report["detectable"]["by_fault"]
    amounts = {kind: by_fault.get(kind, {}).get("amount") for kind in dict.fromkeys(found["kind"] for found in proved)}
    shown = [
        f"{_title(kind).lower()} above {currency} {amount_text(amount)}"
        for kind, amount in amounts.items()
        if amount is not None
    ]
    return f", and {' and '.join(shown)} would have shown" if shown else ""


def _places(found: dict[str, Any], currency: str) -> Iterator[str]:
    places = found.get("where", [])
    if not places:
        yield _cell(found["evidence"])
        yield ""
        return
    yield f"| hour or request | tokens | {currency} | used and billed |"
    yield "| --- | ---: | ---: | --- |"
    for each in places[:PLACES]:
        yield (
            f"| {_cell(each['cell'])} | {each['tokens']:,} | {amount_text(each['amount'])} | {_cell(each['says'])} |"
        )
    yield ""


def _rows(report: dict[str, Any]) -> list[str]:
    return [f"{row['model']}, {row['currency']} from {row['from']}: {row['source']}" for row in report["rows"][:ROWS]]


def _names(bill: dict[str, Any]) -> str:
    """Of its files, without where they lie here."""
    paths = str(bill.get("path", bill["format"])).split(", ")
    return ", ".join(PurePath(path).name for path in paths)


def _title(kind: str) -> str:
    return kind.replace("_", " ").capitalize()


def _cell(text: str) -> str:
    return safe(text).replace("|", "\\|")


def _cents(amount: Decimal) -> str:
    """In cents; below one, all of it."""
    cents = amount.quantize(Decimal("0.01"), ROUND_HALF_UP)
    return f"{cents:,}" if amount >= Decimal("0.01") else amount_text(f"{amount:f}")
