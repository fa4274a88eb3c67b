"""A verification report as a page of Markdown: the verdict first, then every figure that it rests on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import PurePath
from typing import Any

from kvbench.render.amounts import amount_text, money
from kvbench.render.bill_text import balance_says
from kvbench.render.price_text import otherwise_says
from kvbench.render.residual_text import granule_says
from kvbench.render.text import percent, plural, safe

_MARKUP = re.compile(r"([\\`*\[\]<>|])")
_PRICES = ("hit", "miss", "write_5m", "write_1h", "output")


def bill_page(report: dict[str, Any]) -> str:
    """`report`: of analysis.billing."""
    currency = report["total"]["currency"]
    parts = [
        _verdict(report, currency),
        _sides(report, currency),
        _worth(report, currency),
        _findings(report, currency),
        _totals(report, currency),
        _otherwise(report, currency),
        _hits(report, currency),
        _rows(report),
        _notes(report),
    ]
    return "\n".join(line for part in parts for line in part) + "\n"


def _verdict(report: dict[str, Any], currency: str) -> Iterator[str]:
    verdict = report["verdict"].upper()
    over = sum(
        (Decimal(each["amount"]) for each in report["findings"] if each["proof"] and Decimal(each["amount"]) > 0),
        Decimal(0),
    )
    much = f", {currency} {amount_text(f'{over:f}')} too much" if report["verdict"] == "disputed" else ""
    yield f"# Verification of a bill: {verdict}{much}"
    yield ""
    for reason in report["verdict_reasons"]:
        yield f"- {literal(reason)}"
    yield ""


def _sides(report: dict[str, Any], currency: str) -> Iterator[str]:
    bill, source = report["bill"], report["source"]
    name = PurePath(source["path"]).name
    requests = report["requests"]
    yield "| | |"
    yield "| --- | --- |"
    yield _line("used", f"{source['kind']} {name}, {report['first']} to {report['last']} (UTC)")
    apart = {
        "without a price": requests["unpriced"],
        "failed and reported nothing": requests["failed_without_usage"],
        "duplicate records left out": requests["duplicates"],
    }
    said = [plural(requests["priced"], "request") + " priced", *(f"{n:,} {words}" for words, n in apart.items() if n)]
    yield _line("requests", ", ".join(said))
    yield _line("expected, by the reported tokens", money(report["total"], currency))
    if "joined" in bill:
        names = ", ".join(PurePath(each).name for each in str(bill["path"]).split(", "))
        key = f", key {bill['key']}" if bill["key"] else ""
        own = ", said to be used by nothing else" if bill["dedicated_key"] else ""
        asked = "no money in it" if bill["invoiced"] is None else f"{currency} {amount_text(bill['invoiced'])}"
        yield _line("invoiced", asked)
        yield _line("invoice", f"{names}: {bill['format']}{key}{own}; shape {bill['shape']}; held {bill['joined']}")
        yield _line("unmatched", _unmatched(bill))
        if report.get("balance"):
            yield _line("balance", balance_says(report["balance"], currency))
    else:
        yield _line("balance", balance_says(bill, currency))
    price = report["input_price_per_mtok"]
    if price is not None:
        yield _line("input", f"{money(price, currency)} for 1M tokens, over {report['input_tokens']:,} tokens")
    yield ""


def _unmatched(bill: dict[str, Any]) -> str:
    ours, theirs = bill["unmatched"]["requests"]["requests"], bill["unmatched"]["invoice"]["cells"]
    return (
        f"{plural(ours, 'request')} of ours not on it; {theirs:,} of its requests or windows hold none of ours; "
        f"{bill['unattributed']['tokens']:,} tokens beyond ours that may be others'; "
        f"{plural(bill['rows']['bad'], 'row')} not readable"
    )


def _worth(report: dict[str, Any], currency: str) -> Iterator[str]:
    """What the verdict is worth."""
    found = report["detectable"]
    yield "## What this verdict is worth"
    yield ""
    yield "| | |"
    yield "| --- | --- |"
    tolerance = report["bill"].get("tolerance")
    if tolerance is not None:
        yield _line(
            "tolerance", f"{currency} {tolerance['amount']} for rounding, {plural(tolerance['tokens'], 'token')}"
        )
        yield _line("on an edge of two windows or prices", plural(report["bill"]["straddling"], "request"))
    if found["amount"] is None:
        yield _line("smallest fault that shows", "no bound")
    else:
        tokens = f", or {plural(found['tokens'], 'token')} of one kind" if found["tokens"] else ""
        whole = Decimal(report["total"]["at_least"])
        share = f" ({percent(float(Decimal(found['amount']) / whole))} of the bill)" if whole else ""
        yield _line("smallest fault that shows", f"above {currency} {amount_text(found['amount'])}{share}{tokens}")
    for name, each in found["by_fault"].items():
        if each["amount"] is None:
            yield _line(f"  {_words(name)}", f"no bound: {each['why']}")
        else:
            tokens = f", {plural(each['tokens'], 'token')}" if each["tokens"] is not None else ""
            why = f": {each['why']}" if each["why"] and each["amount"] != "0" else ""
            yield _line(f"  {_words(name)}", f"above {currency} {amount_text(each['amount'])}{tokens}{why}")
    yield _line("to see less", found["to_see_less"])
    ages = sorted({row["age_days"] for row in report["rows"]})
    statuses = sorted({row["status"] for row in report["rows"]})
    yield _line("price rows", f"{', '.join(statuses)}; looked at {' or '.join(map(str, ages))} days ago")
    yield ""


def _findings(report: dict[str, Any], currency: str) -> Iterator[str]:
    yield "## Usage against invoice (arithmetic)"
    yield ""
    if not report["findings"]:
        yield "No difference." if report["verdict"] == "confirmed" else "No fault is proved."
        yield ""
    else:
        yield f"| fault | {currency} | tokens | requests | proof | what |"
        yield "| --- | ---: | ---: | ---: | --- | --- |"
        for each in report["findings"]:
            yield _row(
                _words(each["kind"]),
                _signed(each["amount"]),
                f"{each['tokens']:,}",
                f"{each['requests']:,}",
                "yes" if each["proof"] else "no",
                each["evidence"],
            )
        yield ""
    if report["doubts"]:
        yield "Beside the bill:"
        yield ""
        for each in report["doubts"]:
            amount = money(each, currency) if each["at_most"] != "0" else "no money"
            requests = plural(each["requests"], "request")
            yield f"- {_words(each['kind'])}: {amount}, {requests}: {literal(each['evidence'])}"
        yield ""


def _totals(report: dict[str, Any], currency: str) -> Iterator[str]:
    yield "## What it should cost"
    yield ""
    yield f"| model | kind | tokens | {currency} |"
    yield "| --- | --- | ---: | ---: |"
    for name, part in report["by_model"].items():
        for kind, each in part["by_kind"].items():
            yield _row(name, kind, _tokens(each), _amount(each))
        yield _row(f"{name}, billed as {', '.join(part['billed_as'])}", "all", "", _amount(part))
    yield ""
    yield f"| period | kind | requests | tokens | {currency} |"
    yield "| --- | --- | ---: | ---: | ---: |"
    for name, part in report["by_period"].items():
        for kind, each in part["by_kind"].items():
            yield _row(_words(name), kind, "", _tokens(each), _amount(each))
        yield _row(_words(name), "all", f"{part['requests']:,}", "", _amount(part))
    yield ""


def _otherwise(report: dict[str, Any], currency: str) -> Iterator[str]:
    yield "## What it would have cost"
    yield ""
    yield f"| otherwise | {currency} | against what it should cost |"
    yield "| --- | ---: | ---: |"
    own = report["total"]["amount"]
    for name, value in report["counterfactuals"].items():
        if value is None:
            continue
        words = otherwise_says(name, value)
        if value.get("why"):
            yield _row(words, "no price", value["why"])
            continue
        change = (
            "" if own is None or value["amount"] is None else _signed(f"{Decimal(value['amount']) - Decimal(own):f}")
        )
        yield _row(words, _amount(value), change)
    edge = report["boundary"]
    other = "end" if edge["decided_by"] == "start" else "start"
    change = f"{plural(edge['straddling'], 'request')} across a change of price"
    yield _row(f"by each request's {other}, not its {edge['decided_by']}", _amount(edge["by_the_other"]), change)
    yield ""


def _hits(report: dict[str, Any], currency: str) -> Iterator[str]:
    yield "## Served against reported (inference, no part of the verdict)"
    yield ""
    if "served" in report:
        yield f"- {report['served']['verdict']}: {literal(report['served']['says'])}"
        if report["served"]["to_see_less"]:
            yield f"- to see less: {literal(report['served']['to_see_less'])}"
    found = report["residuals"]
    if not found["requests"]:
        yield f"- hits not predicted: {literal(found['why'])}"
    else:
        rules = ", ".join(map(literal, found["rules"]))
        yield (
            f"- {found['inside']:,} of {plural(found['requests'], 'request')} inside the predicted interval, which is "
            f"{percent(found['median_width'])} of the prompt wide at the median; {found['below']:,} below by "
            f"{found['below_tokens']:,} tokens ({currency} {amount_text(found['below_amount'])}), {found['above']:,} "
            f"above by {found['above_tokens']:,} tokens ({rules})"
        )
    for model, granule in report["granularity"].items():
        yield f"- steps of hits, {literal(model)}: {literal(granule_says(granule))}"
    yield ""
    if found["requests"] and (found["below"] or found["above"]):
        yield f"| where | | requests | below | above | tokens below | tokens above | {currency} |"
        yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
        for name, bins in found["by"].items():
            for where, one in bins.items():
                counts = [f"{one[each]:,}" for each in ("requests", "below", "above", "below_tokens", "above_tokens")]
                net = Decimal(one["below_amount"]) - Decimal(one["above_amount"])
                yield _row(name, where, *counts, _signed(f"{net:f}"))
        yield ""


def _rows(report: dict[str, Any]) -> Iterator[str]:
    kinds = [kind for kind in _PRICES if any(row[kind] is not None for row in report["rows"])]
    yield "## The price rows"
    yield ""
    yield f"| model | list | from (UTC) | until | {' | '.join(kinds)} | peak | status | looked at | requests | source |"
    yield f"| --- | --- | --- | --- |{' ---: |' * len(kinds)} --- | --- | --- | ---: | --- |"
    for row in report["rows"]:
        yield _row(
            f"{row['model']} ({row['book']})",
            row["currency"],
            row["from"],
            row["until"] or "",
            *(row[kind] or "" for kind in kinds),
            f"times {row['peak_factor']} ({row['peak']})" if row["peak"] else "",
            row["status"],
            f"{row['checked']}, {plural(row['age_days'], 'day')} ago",
            f"{row['requests']:,}",
            row["source"],
        )
    yield ""
    yield "Prices are for a million tokens."


def _notes(report: dict[str, Any]) -> Iterator[str]:
    notes = [*report["notes"], *report["bill"].get("notes", ()), *report["bill"].get("bad_rows", ())]
    if notes:
        yield ""
    for note in notes:
        yield f"- {literal(note)}"


def _line(name: str, value: str) -> str:
    return _row(name, value)


def _row(*cells: str) -> str:
    return f"| {' | '.join(literal(cell) for cell in cells)} |"


def literal(text: str) -> str:
    """Text that cannot become markup or another cell, and can still be read as it stands."""
    return _MARKUP.sub(r"\\\1", safe(text))


def _words(name: str) -> str:
    return name.replace("_", " ")


def _signed(text: str) -> str:
    amount = Decimal(text)
    return f"{'-' if amount < 0 else '+' if amount else ''}{amount_text(f'{abs(amount):f}')}"


def _amount(part: dict[str, Any]) -> str:
    if part["amount"] is not None:
        return amount_text(part["amount"])
    most = "without a bound" if part["at_most"] is None else amount_text(part["at_most"])
    return f"{amount_text(part['at_least'])} to {most}"


def _tokens(part: dict[str, Any]) -> str:
    most = part.get("most_tokens", part["tokens"])
    return f"{part['tokens']:,}" + ("" if most == part["tokens"] else " or more" if most is None else f" to {most:,}")
