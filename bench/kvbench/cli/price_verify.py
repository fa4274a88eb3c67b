"""`kvbench price --invoice`: a price report held against what was billed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from kvbench.cli.output import say, verdict_code

if TYPE_CHECKING:
    from kvbench.analysis.pricing.report import Source
    from kvbench.prices.invoices.lines import Invoice
    from kvbench.prices.priced import Billable
    from kvbench.prices.pricing import At, PriceList

BALANCE = "balance"


class BillOptions(NamedTuple):
    """What the command was given about a bill."""

    invoice: list[str] | None
    columns: Path | None
    key: str | None
    dedicated: bool
    letter: Path | None
    page: Path | None

    def check(self, *, estimate: bool, run: bool) -> None:
        """Raises UsageError for what cannot be meant."""
        from kvbench.errors import UsageError

        if not self.invoice:
            if self.columns or self.key or self.dedicated or self.letter or self.page:
                raise UsageError(
                    "--columns, --key, --dedicated-key, --letter and --report are about an invoice",
                    hint="add --invoice FILE",
                )
            return
        if estimate:
            raise UsageError("--invoice is about what was sent: not with --estimate")
        if self.balance and (len(self.invoice) > 1 or not run or self.columns or self.key):
            raise UsageError(
                "--invoice balance is about the account's balance before and after a RUN, and nothing else",
                hint="kvbench price RUN --invoice balance",
            )

    @property
    def balance(self) -> bool:
        return BALANCE in (self.invoice or ())

    def read(self) -> Invoice | None:
        from kvbench.prices.invoices.read import read_invoice

        if not self.invoice or self.balance:
            return None
        return read_invoice([Path(name) for name in self.invoice], self.columns)


def held_against(
    report: dict[str, Any],
    source: Source,
    billables: list[Billable],
    prices: PriceList,
    at: At,
    run: str | None,
    invoice: Invoice | None,
    options: BillOptions,
) -> dict[str, Any]:
    """The report with a verdict."""
    from kvbench.analysis.billing.balance import against_balance, beside_invoice
    from kvbench.analysis.billing.verify import Terms, verify
    from kvbench.runs.reader import load_run, resolve_run

    info = None if run is None else load_run(resolve_run(run)).info
    status = None if info is None or info.status == "done" else info.status
    incomplete = (
        None
        if status is None
        else (f"the run is {status}: what was in flight at its end may be billed and is not among the requests")
    )
    if invoice is None:
        assert info is not None
        return against_balance(report, info.balance, dedicated=options.dedicated, incomplete=incomplete)
    terms = Terms(
        key=options.key,
        dedicated=options.dedicated,
        unread=len(source.unreadable),
        incomplete=incomplete,
    )
    held = verify(report, billables, prices, invoice, at=at, terms=terms)
    return held | {"balance": None if info is None else beside_invoice(held, info.balance)}


def show(report: dict[str, Any], options: BillOptions, *, json: bool) -> int:
    """Print it, write the page, and the letter where there is a dispute; the exit code."""
    from kvbench.render.bill_page import bill_page
    from kvbench.render.bill_text import bill_lines
    from kvbench.render.letter import letter
    from kvbench.render.price_text import price_lines

    if json:
        from kvbench.render.jsonout import json_text

        say(json_text(report))
    else:
        say("\n".join([*price_lines({**report, "findings": report["doubts"]}), *bill_lines(report)]))
    if options.page is not None:
        _write(options.page, bill_page(report))
    disputed = report["verdict"] == "disputed"
    if options.letter is not None and not disputed:
        typer.echo(f"{options.letter} not written: nothing is disputed", err=True)
    elif options.letter is not None:
        _write(options.letter, letter(report))
    return verdict_code(report["verdict"])


def _write(path: Path, text: str) -> None:
    from kvbench.errors import InputError

    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", path=path) from None
