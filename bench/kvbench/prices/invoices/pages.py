"""Usage reports of the Anthropic and OpenAI organisation APIs: JSON pages of buckets, or OpenAI's CSV of the same.

    Anthropic  usage_report/messages: data[] {starting_at, ending_at, results[] {uncached_input_tokens,
               cache_read_input_tokens, cache_creation {ephemeral_5m_input_tokens, ephemeral_1h_input_tokens},
               output_tokens, api_key_id, model}}
    OpenAI     organization/usage/completions: data[] {start_time, end_time, results[] {input_tokens (cached ones
               included), input_cached_tokens, output_tokens, num_model_requests, api_key_id, model}}

Neither has prices. A model that the report was not grouped by is null, and such a result is no line of a bill.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from kvbench.errors import InputError
from kvbench.prices.invoices.lines import BadRow, Invoice, InvoiceLine
from kvbench.prices.invoices.table import CellError, Row, moment, rows

SHAPE = "as the provider documents it; no genuine file was seen"
_CSV = {"start_time_iso", "end_time_iso", "model", "input_tokens", "output_tokens", "num_model_requests"}


def is_table(columns: Sequence[str]) -> bool:
    return set(columns) >= _CSV


def read(text: str, path: str) -> Invoice:
    """A page, or an array of pages. Raises InputError where a page is missing, or it is no such report."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"not JSON: {error}", path=path) from None
    pages = value if isinstance(value, list) else [value]
    if not all(isinstance(page, dict) and isinstance(page.get("data"), list) for page in pages):
        raise InputError("no page of a usage report: an object with data, or an array of them", path=path)
    if pages and pages[-1].get("has_more"):
        raise InputError(
            "its last page says has_more: the rest of the bill is not in it",
            path=path,
            hint="fetch the pages up to the last, and put them into one JSON array",
        )
    bad: list[BadRow] = []
    lines: list[InvoiceLine] = []
    anthropic = False
    for number, page in enumerate(pages):
        for place, bucket, result in _results(page, f"{path} page {number + 1}", bad):
            try:
                anthropic = anthropic or "uncached_input_tokens" in result
                lines += _lines(bucket, result, place)
            except CellError as error:
                bad.append(BadRow(place=place, field=error.field, why=error.why))
    return _invoice(path, "Anthropic" if anthropic else "OpenAI", lines, bad)


def read_csv(texts: Sequence[tuple[str, str]], path: str) -> Invoice:
    """OpenAI's export of the same fields."""
    bad: list[BadRow] = []

    def line(row: Row) -> list[InvoiceLine]:
        texts = ("model", "api_key_id")
        counts = ("input_tokens", "input_cached_tokens", "output_tokens", "num_model_requests")
        result: dict[str, Any] = {name: row.text(name) for name in texts}
        result |= {name: row.tokens(name) for name in counts}
        return _lines(
            {"start_time": row.need("start_time_iso"), "end_time": row.need("end_time_iso")}, result, row.place
        )

    lines = [each for name, text in texts for many in rows(text, name, line, bad) for each in many]
    return _invoice(path, "OpenAI", lines, bad)


def _invoice(path: str, provider: str, lines: list[InvoiceLine], bad: list[BadRow]) -> Invoice:
    kinds: tuple[str, ...] = ("hit", "miss", "output", "requests")
    if provider == "Anthropic":
        kinds = ("hit", "miss", "write_5m", "write_1h", "output")
    return Invoice(
        path=path,
        format=f"{provider} usage report",
        shape=SHAPE,
        by="windows",
        kinds=kinds,
        lines=tuple(lines),
        bad=tuple(bad),
        notes=("the report has tokens and no prices: what it says of money is these tokens at the book's prices",),
    )


def _results(
    page: dict[str, Any], path: str, bad: list[BadRow]
) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for index, bucket in enumerate(page["data"]):
        place = f"{path} data[{index}]"
        results = bucket.get("results") if isinstance(bucket, dict) else None
        if not isinstance(results, list):
            bad.append(BadRow(place=place, field="results", why="not an array"))
            continue
        for number, result in enumerate(results):
            if isinstance(result, dict):
                yield f"{place}.results[{number}]", bucket, result
            else:
                bad.append(BadRow(place=f"{place}.results[{number}]", field=None, why="not an object"))


def _lines(bucket: dict[str, Any], result: dict[str, Any], place: str) -> list[InvoiceLine]:
    start, end = (_time(bucket, *names) for names in (("starting_at", "start_time"), ("ending_at", "end_time")))
    if end <= start:
        raise CellError("ending_at", f"{end} is not after {start}")
    model = result.get("model")
    if not isinstance(model, str) or not model:
        raise CellError("model", "null: ask for the report grouped by model (and by api_key_id)")
    counts: dict[str, int | None]
    if "uncached_input_tokens" in result:
        creation = result.get("cache_creation")
        counts = {
            "miss": _count(result, "uncached_input_tokens"),
            "hit": _count(result, "cache_read_input_tokens"),
            "write_5m": _count(creation, "ephemeral_5m_input_tokens"),
            "write_1h": _count(creation, "ephemeral_1h_input_tokens"),
        }
    else:
        tokens, cached = _count(result, "input_tokens"), _count(result, "input_cached_tokens")
        if tokens is None:
            raise CellError("input_tokens", "not there")
        if cached is not None and cached > tokens:
            raise CellError("input_cached_tokens", f"{cached} above input_tokens {tokens}")
        counts = {"input": tokens} if cached is None else {"hit": cached, "miss": tokens - cached}
    counts |= {"output": _count(result, "output_tokens"), "requests": _count(result, "num_model_requests")}
    key = result.get("api_key_id")
    return [
        InvoiceLine(
            start=start,
            end=end,
            model=model,
            kind=kind,
            tokens=tokens,
            key=key if isinstance(key, str) else None,
            place=place,
        )
        for kind, tokens in counts.items()
        if tokens is not None
    ]


def _time(bucket: dict[str, Any], *names: str) -> datetime:
    for name in names:
        if bucket.get(name) is not None:
            return moment(str(bucket[name]), name)[0]
    raise CellError(names[0], "not there")


def _count(of: Any, field: str) -> int | None:
    value = of.get(field) if isinstance(of, dict) else None
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CellError(field, f"{str(value)[:40]} is no number of tokens: a whole number, 0 or more")
    return value
