"""OpenRouter's activity CSV: a generation a row, with its tokens and what it cost in USD."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from kvbench.prices.invoices.lines import BadRow, Charge, Invoice, InvoiceLine
from kvbench.prices.invoices.table import CellError, Row, last_decimal, rows

SHAPE = "columns as exported; whether tokens_prompt includes tokens_cached is taken from its API, where it does"
_NEEDED = {"generation_id", "created_at", "cost_total", "tokens_prompt", "tokens_completion", "model_permaslug"}


def is_table(columns: Sequence[str]) -> bool:
    return set(columns) >= _NEEDED


def read(texts: Sequence[tuple[str, str]], path: str) -> Invoice:
    bad: list[BadRow] = []
    found = [each for name, text in texts for each in rows(text, name, _generation, bad)]
    amounts = [charge.amount for _, charge in found]
    return Invoice(
        path=path,
        format="OpenRouter activity",
        shape=SHAPE,
        by="requests",
        kinds=("hit", "miss", "output"),
        lines=tuple(line for lines, _ in found for line in lines),
        charges=tuple(charge for _, charge in found),
        bad=tuple(bad),
        currency="USD",
        unit=last_decimal(amounts),
        notes=()
        if all(charge.wallet is None for _, charge in found)
        else ("some generations were paid with an own key of the provider (BYOK)",),
    )


def _generation(row: Row) -> tuple[list[InvoiceLine], Charge]:
    moment = row.moment("created_at")
    if moment is None:
        raise CellError("created_at", "empty")
    prompt, cached, output = (row.tokens(f"tokens_{name}") for name in ("prompt", "cached", "completion"))
    amount = row.money("cost_total")
    if amount is None:
        raise CellError("cost_total", "empty")
    if prompt is None or output is None:
        raise CellError("tokens_prompt" if prompt is None else "tokens_completion", "empty")
    if cached is not None and cached > prompt:
        raise CellError("tokens_cached", f"{cached} above tokens_prompt {prompt}")
    name, key = row.need("generation_id"), row.text("api_key_name")
    counts = {"hit": cached, "miss": prompt - cached} if cached is not None else {"input": prompt}
    lines = [
        InvoiceLine(
            start=moment[0],
            end=None,
            model=row.need("model_permaslug"),
            kind=kind,
            tokens=tokens or 0,
            key=key,
            request_id=name,
            place=row.place,
        )
        for kind, tokens in {**counts, "output": output}.items()
    ]
    byok = row.money("byok_usage_inference")
    return lines, Charge(
        start=moment[0],
        end=None,
        amount=amount,
        model=row.need("model_permaslug"),
        key=key,
        request_id=name,
        wallet="byok" if byok not in (None, Decimal(0)) else None,
        place=row.place,
    )
