"""A price report on a terminal: the sum first, then what it is made of, then what to doubt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvbench.render.amounts import WIDTH, amount_text, block, money
from kvbench.render.residual_text import residual_lines
from kvbench.render.text import NOT_REPORTED, plural, safe


def price_lines(report: dict[str, Any]) -> list[str]:
    """`report` as analysis.pricing makes it."""
    currency = report["total"]["currency"]
    return [
        *_head(report, currency),
        *_kinds(report),
        *_models(report, currency),
        *_periods(report, currency),
        *_counterfactuals(report, currency),
        *_boundary(report, currency),
        *residual_lines(report, currency),
        *_rows(report),
        *_findings(report, currency),
        *_unpriced(report),
        *(f"{'note':<{WIDTH}}{safe(note)}" for note in report["notes"]),
    ]


def _head(report: dict[str, Any], currency: str) -> Iterator[str]:
    requests = report["requests"]
    source = report["source"]
    yield f"{safe(source['path'])} ({source['kind']}), {report['first']} to {report['last']}"
    said = [plural(requests["priced"], "request") + " priced"]
    said += [f"{requests[name]:,} {words}" for name, words in _COUNTS if requests.get(name)]
    total = money(report["total"], currency)
    yield f"{'total':<{WIDTH}}{total}   ({', '.join(said)})"
    as_long = report.get("answers_as_long_as_in_the_trace")
    if as_long is not None:
        yield f"{'  of that':<{WIDTH}}{money(as_long, currency)} where every answer is as long as in the trace"
        yield f"{'hit rule':<{WIDTH}}{', '.join(report['hit_rules'])}, from the prompts of the trace alone"
    price = report["input_price_per_mtok"]
    if price is not None:
        tokens = report["input_tokens"]
        yield f"{'input':<{WIDTH}}{money(price, currency)} for 1M tokens, over {tokens:,} tokens"


_COUNTS = (
    ("unpriced", "WITHOUT A PRICE"),
    ("failed_without_usage", "failed and reported nothing"),
    ("not_sent", "never sent"),
    ("duplicates", "duplicate records left out"),
)


def _kinds(report: dict[str, Any]) -> Iterator[str]:
    table = [("kind", "tokens", report["total"]["currency"])]
    for kind, part in report["by_kind"].items():
        most = part.get("most_tokens", part["tokens"])
        to = "" if most == part["tokens"] else " or more" if most is None else f" to {most:,}"
        unit = " calls" if kind.startswith("tool:") else ""
        table.append((safe(kind), f"{part['tokens']:,}{to}{unit}", _amount(part)))
    yield from block("by kind", table)


def _models(report: dict[str, Any], currency: str) -> Iterator[str]:
    label = "by model"
    for name, part in report["by_model"].items():
        billed = ", ".join(part["billed_as"])
        yield f"{label:<{WIDTH}}{safe(name)}, billed as {safe(billed)}: {money(part, currency)}, " + plural(
            part["requests"], "request"
        )
        label = ""


def _periods(report: dict[str, Any], currency: str) -> Iterator[str]:
    parts = report["by_period"]
    if "at_least" not in parts["peak"]:
        yield f"{'peak':<{WIDTH}}{plural(parts['peak']['requests'], 'request')} in peak hours, " + (
            f"{parts['off_peak']['requests']:,} off-peak"
        )
        return
    if parts["peak"]["requests"]:
        yield f"{'peak':<{WIDTH}}" + "; ".join(
            f"{words} {money(parts[name], currency)} ({plural(parts[name]['requests'], 'request')})"
            for name, words in (("peak", "peak"), ("off_peak", "off-peak"))
        )


def _counterfactuals(report: dict[str, Any], currency: str) -> Iterator[str]:
    label = "otherwise"
    for name, value in report.get("counterfactuals", {}).items():
        if value is None:
            continue
        words = otherwise_says(name, value)
        if value.get("why"):
            yield f"{label:<{WIDTH}}{words}: no price: {safe(value['why'])}"
        else:
            without = f" ({value['unpriced']:,} without a price)" if value.get("unpriced") else ""
            known = value.get("requests_with_expectation")
            over = f" ({plural(known, 'request')} with an expectation)" if known is not None else ""
            yield f"{label:<{WIDTH}}{words}: {money(value, currency)}{without}{over}"
        label = ""


def otherwise_says(name: str, value: dict[str, Any]) -> str:
    """What a counterfactual supposes."""
    if "begun" in value:
        return f"begun at {value['begun']}"
    return _OTHERWISE.get(name) or name.replace("_", " ")


_OTHERWISE = {
    "no_cache": "without a cache",
    "ideal_cache": "every hit that the rule allows",
    "off_peak": "all of it off-peak",
    "own_date": "at its own date",
}


def _boundary(report: dict[str, Any], currency: str) -> Iterator[str]:
    edge = report.get("boundary")
    if edge is None:
        return
    other = "end" if edge["decided_by"] == "start" else "start"
    if edge["straddling"]:
        yield (
            f"{'boundary':<{WIDTH}}the {edge['decided_by']} decides; {plural(edge['straddling'], 'request')} across a "
            f"change of price: by their {other} the total is {money(edge['by_the_other'], currency)}"
        )
    elif edge["without_both_times"]:
        yield (
            f"{'boundary':<{WIDTH}}{plural(edge['without_both_times'], 'request')} with one time only: whether they "
            "cross a change of price is not known"
        )


def _rows(report: dict[str, Any]) -> Iterator[str]:
    table = [("row", "list", "from (UTC)", "status", "looked at", "requests", "source")]
    for row in report["rows"]:
        table.append(
            (
                f"{safe(row['model'])} ({safe(row['book'])})",
                row["currency"],
                row["from"],
                row["status"],
                f"{row['checked']}, {plural(row['age_days'], 'day')} ago",
                f"{row['requests']:,}",
                safe(row["source"]),
            )
        )
    yield from block("prices", table)


def _findings(report: dict[str, Any], currency: str) -> Iterator[str]:
    label = "findings"
    for found in report["findings"]:
        amount = money(found, currency) if found["at_most"] != "0" else "no money"
        tokens = f", {found['tokens']:,} tokens" if found["tokens"] else ""
        yield (
            f"{label:<{WIDTH}}{found['kind']}: {amount}{tokens}, {plural(found['requests'], 'request')}: "
            f"{safe(found['evidence'])}"
        )
        label = ""


def _unpriced(report: dict[str, Any]) -> Iterator[str]:
    label = "no price"
    for group in report["unpriced"]:
        yield (
            f"{label:<{WIDTH}}{plural(group['requests'], 'request')}: {safe(group['why'])} "
            f"({', '.join(map(safe, group['first']))})"
        )
        label = ""


def _amount(part: dict[str, Any]) -> str:
    if part["amount"] is not None:
        return amount_text(part["amount"])
    most = NOT_REPORTED if part["at_most"] is None else amount_text(part["at_most"])
    return f"{amount_text(part['at_least'])} to {most}"
