"""`kvbench price`: what a run, a usage file, a log or a trace costs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kvbench.cli.output import say

if TYPE_CHECKING:
    from kvbench.analysis.pricing.report import Source
    from kvbench.prices.priced import Billable
    from kvbench.prices.pricing import PriceList

_DATE_ONLY = len("2026-10-15")


def price(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="A run directory, or the id of a run under ./runs.")
    ] = None,
    usage: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A JSONL of {time, model, usage}, or any log that is read as a trace."),
    ] = None,
    estimate: Annotated[
        str | None,
        typer.Option(metavar="TRACE", help="A trace, before it is sent: between which amounts it will cost."),
    ] = None,
    prices: Annotated[
        list[str] | None,
        typer.Option(metavar="BOOK", help="A bundled book or a TOML; may be given again. Without: all bundled ones."),
    ] = None,
    currency: Annotated[
        str | None, typer.Option(metavar="CODE", help="The book's list in this currency. Nothing is converted.")
    ] = None,
    at: Annotated[
        Literal["start", "end"], typer.Option(help="Which moment of a request decides on its price.")
    ] = "start",
    model: Annotated[str | None, typer.Option(metavar="M", help="Price every request as one to this model.")] = None,
    date: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="Price all as if the first request began then; beside a bill, as well."),
    ] = None,
    invoice: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE", help="Verify a bill: an invoice or usage export (again for its second file), or `balance`."
        ),
    ] = None,
    columns: Annotated[
        Path | None, typer.Option(metavar="MAP", help="A TOML that says what the columns of another CSV are.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of the invoice's keys, the one that the requests were sent with."),
    ] = None,
    dedicated_key: Annotated[
        bool,
        typer.Option("--dedicated-key", help="Nothing but these requests was sent with the key: any excess counts."),
    ] = False,
    letter: Annotated[
        Path | None, typer.Option(metavar="OUT.md", help="Write a letter of one page where the bill is disputed.")
    ] = None,
    report_page: Annotated[
        Path | None,
        typer.Option("--report", metavar="OUT.md", help="Write what was verified as a page, whatever the verdict."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with every amount exact.")] = False,
) -> None:
    """Say what requests cost, by dated price books. Exit code 3: some have no exact price; the report says why.

    With --invoice: exit code 0 the bill is confirmed, 1 disputed, 3 it cannot be told.
    """
    from kvbench.cli.price_verify import BillOptions, held_against, show
    from kvbench.errors import EXIT_INCONCLUSIVE, UsageError
    from kvbench.prices.load import bundled_books, load_book
    from kvbench.prices.pricing import PriceList
    from kvbench.render.price_text import price_lines

    if sum(given is not None for given in (run, usage, estimate)) != 1:
        raise UsageError(
            "one of RUN, --usage FILE and --estimate TRACE says what to price",
            hint="kvbench price RUN, or kvbench price --usage FILE.jsonl",
        )
    bill = BillOptions(invoice, columns, key, dedicated_key, letter, report_page)
    bill.check(estimate=estimate is not None, run=run is not None)
    books = [load_book(name) for name in prices or bundled_books()]
    billed = bill.read()
    price_list = PriceList(books, currency or (billed.currency if billed is not None else None))
    moment = _moment(date)
    now = datetime.now(UTC)
    if estimate is not None:
        from kvbench.analysis.pricing.estimate import estimate_report

        if at != "start":
            raise UsageError("--at is about requests that were made: an estimate knows no end of one")
        report = estimate_report(estimate, price_list, model=model, start=moment or now, now=now)
    else:
        source, billables = _from_run(run, model) if run is not None else _from_usage(usage, model)
        if not invoice:
            report = _report(source, billables, price_list, at, moment, now)
        else:
            report = _report(source, billables, price_list, at, None, now)
            if moment is not None:
                _add_other_date(report, billables, price_list, at, moment, keep_time=len(date or "") == _DATE_ONLY)
            report = held_against(report, source, billables, price_list, at, run, billed, bill)
            raise typer.Exit(show(report, bill, json=json))
    if json:
        from kvbench.render.jsonout import json_text

        say(json_text(report))
    else:
        say("\n".join(price_lines(report)))
    if report["requests"]["unpriced"] or (estimate is None and report["total"]["amount"] is None):
        raise typer.Exit(EXIT_INCONCLUSIVE)


def _report(
    source: Source,
    billables: list[Billable],
    prices: PriceList,
    at: Literal["start", "end"],
    moment: datetime | None,
    now: datetime,
) -> dict[str, Any]:
    from kvbench.analysis.pricing.report import PriceFold, with_total
    from kvbench.prices.listing import utc_text

    starts = [each.start for each in billables if each.start is not None]
    shift = moment - min(starts) if moment is not None and starts else None
    fold = PriceFold(prices, at, shift=shift or timedelta(0), unreadable=source.unreadable)
    for billable in billables:
        fold.add(billable)
    report = fold.report(source, now)
    if moment is not None and shift is not None:
        own = PriceFold(prices, at, unreadable=source.unreadable)
        for billable in billables:
            own.add(billable)
        with_total(report, "own_date", own)
        was = f"the first request was made at {utc_text(min(starts))}"
        report["notes"].insert(0, f"priced as if begun at {utc_text(moment)}; {was}")
    return report


def _add_other_date(
    report: dict[str, Any],
    billables: list[Billable],
    prices: PriceList,
    at: Literal["start", "end"],
    moment: datetime,
    *,
    keep_time: bool,
) -> None:
    """What the same requests would have cost at another date, beside what they cost. keep_time: at their own times of
    day, so that peak hours stay where they were."""
    from kvbench.analysis.pricing.report import PriceFold, with_total
    from kvbench.prices.listing import utc_text

    first = min((each.start for each in billables if each.start is not None), default=moment)
    if keep_time:
        moment = datetime.combine(moment.date(), first.timetz())
    fold = PriceFold(prices, at, shift=moment - first)
    for billable in billables:
        fold.add(billable)
    with_total(report, "other_date", fold)
    report["counterfactuals"]["other_date"]["begun"] = utc_text(moment)


def _from_run(run: str, model: str | None) -> tuple[Source, list[Billable]]:
    from kvbench.analysis.pricing.runs import run_billables, run_source
    from kvbench.runs.reader import load_run, resolve_run

    loaded = load_run(resolve_run(run))
    return run_source(loaded), list(run_billables(loaded, model))


def _from_usage(path: Path | None, model: str | None) -> tuple[Source, list[Billable]]:
    from kvbench.analysis.pricing.usage_file import is_usage_file, log_billables, read_usage_file
    from kvbench.traces.importing import logged_calls

    assert path is not None
    if not path.is_dir() and is_usage_file(path):
        return read_usage_file(path, model)
    return log_billables(path, logged_calls(path), model)


def _moment(text: str | None) -> datetime | None:
    from kvbench.errors import UsageError

    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        if not 1970 < moment.year < 2200:
            raise ValueError
    except ValueError:
        raise UsageError(f"--date {text}: not a date", hint="as 2026-10-15 or 2026-10-15T02:00:00Z, UTC") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
