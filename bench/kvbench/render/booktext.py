"""A price book on a terminal: its rows, since when they hold, and who says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvbench.render.text import plural, safe


def books_lines(books: Sequence[dict[str, Any]]) -> list[str]:
    table = [("book", "provider", "lists", "models", "rows", "sources looked at")]
    for book in books:
        table.append(
            (
                safe(book["name"]),
                safe(book["provider"]),
                ", ".join(book["currencies"]),
                ", ".join(safe(model["id"]) for model in book["models"] if model["unpriced"] is None),
                f"{len(book['rows'])}",
                f"{book['checked']} ({_age(book['age_days'])})",
            )
        )
    return [*_aligned(table), "next: kvbench prices BOOK   lists its rows"]


def book_lines(book: dict[str, Any]) -> list[str]:
    """Everything that decides a price."""
    out = [
        f"{safe(book['name'])}: {safe(book['provider'])}, for 1M tokens; {plural(len(book['rows']), 'row')}, sources "
        f"looked at {book['checked']} ({_age(book['age_days'])})"
    ]
    for model in book["models"]:
        names = f" (also {', '.join(map(safe, model['aliases']))})" if model["aliases"] else ""
        if model["unpriced"] is not None:
            out += ["", f"{safe(model['id'])}{names}: no price: {safe(model['unpriced'])}"]
            continue
        title = f", {safe(model['title'])}" if model["title"] else ""
        out += ["", f"{safe(model['id'])}{title}{names}"]
        rows = [row for row in book["rows"] if row["model"] == model["id"]]
        columns = [name for name in _PRICES if any(row[name] is not None for row in rows)]
        extra = [name for name in _EXTRA if any(row[name] not in _PLAIN for row in rows)]
        table: list[Sequence[str]] = [("list", "from (UTC)", "until", *columns, *extra, "peak", "status", "source")]
        for row in rows:
            table.append(
                (
                    row["currency"],
                    row["from"],
                    row["until"] or "-",
                    *(row[name] or "-" for name in columns),
                    *("-" if row[name] in _PLAIN else safe(str(row[name])) for name in extra),
                    f"x{row['peak_factor']}" if row["peak"] else "-",
                    row["status"],
                    safe(row["source"]),
                )
            )
        out += [f"  {line}" for line in _aligned(table)]
        out += [f"  note: {safe(note)}" for note in dict.fromkeys(row["note"] for row in rows if row["note"])]
    if book["tools"]:
        out += ["", "server tools, for 1,000 calls"]
        tools = [
            (tool["currency"], tool["from"], tool["until"] or "-", safe(tool["name"]), tool["per_1000"], tool["status"])
            for tool in book["tools"]
        ]
        out += [f"  {line}" for line in _aligned([("list", "from (UTC)", "until", "tool", "price", "status"), *tools])]
    for phase in book["peaks"]:
        out += ["", f"peak hours {safe(phase['name'])}, from {phase['from']} until {phase['until'] or '-'} (UTC)"]
        out.append(f"  {', '.join(phase['hours'])} on {', '.join(phase['weekdays'])}; {safe(phase['source'])}")
        if phase["holidays"] is not None:
            known = phase["holidays"]
            out.append(f"  off-peak: {', '.join(known['days'])} ({safe(known['source'])})")
            span = f"from {known['known_from']} up to, and without, {known['known_until']}"
            out.append(f"  holidays are known {span}")
    if book["note"]:
        out += ["", f"note: {safe(book['note'])}"]
    return out


_PRICES = ("hit", "miss", "write_5m", "write_1h", "output", "reasoning", "image")
_EXTRA = ("service_tier", "batch", "input_from", "input_below", "minimum_cacheable_tokens")
_PLAIN = (None, "standard", False, 0)


def _age(days: int) -> str:
    return "today" if days == 0 else f"{plural(days, 'day')} ago" if days > 0 else f"in {plural(-days, 'day')}"


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(cells[i]) for cells in table) for i in range(len(table[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in table]
