"""`kvbench fit`: what runs say of an endpoint's cache and speed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvbench.cli.output import say, verdict_code
from kvbench.errors import EXIT_INCONCLUSIVE, EXIT_OK, UsageError

if TYPE_CHECKING:
    from kvbench.model import FitReport
    from kvbench.runs.reader import Run


TOKENS_OF_BILL = "hit_tokens_of_bill"


def fit(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Run directories, or ids of runs under ./runs; probes or replays."),
    ],
    kv_memory: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="BYTES", help="What the endpoint has for its KV cache, where the run does not say."
        ),
    ] = None,
    chunk_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Tokens of a prefill step (vLLM: max_num_batched_tokens); else one is looked for."
        ),
    ] = None,
    replay_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="So many tokens of each hit are computed again; else as known.")
    ] = None,
    tier_bandwidth: Annotated[
        float | None,
        typer.Option(
            metavar="BYTES_PER_S", help="Of the tier below HBM: gives bytes a token from a restored one's time."
        ),
    ] = None,
    hbm_bandwidth: Annotated[
        float | None,
        typer.Option(
            metavar="BYTES_PER_S", help="Of all that share a step: gives what it reads of a token of context."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="What is claimed of this model, or config.json, and what it implies, beside."
        ),
    ] = None,
    bill: Annotated[
        str | None,
        typer.Option(metavar="AMOUNT", help="What the run was billed, or `balance`: the hits that this implies."),
    ] = None,
    prices: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BOOK", help="Of --bill and of token audits: a bundled book or a TOML. Without: all bundled ones."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Bytes a token, capacity, lifetime and speed from probes and replays, with intervals; refused where they cannot
    be told."""
    from msgspec.structs import replace

    from kvbench.analysis.fit.fit import fit_runs, joined
    from kvbench.analysis.fit.given import Given
    from kvbench.prices.load import load_prices
    from kvbench.runs.reader import load_run, resolve_run

    if bill is not None and len(runs) > 1:
        raise UsageError(f"--bill {bill} is of one run, and {len(runs)} are named", hint="one run at a time")
    given = Given(
        chunk_tokens=chunk_tokens,
        replay_tokens=replay_tokens,
        tier_bytes_per_s=tier_bandwidth,
        hbm_bytes_per_s=hbm_bandwidth,
    ).check()
    found = [resolve_run(run).resolve() for run in runs]
    if twice := next((run for run, path in zip(runs, found, strict=True) if found.count(path) > 1), None):
        raise UsageError(f"{twice}: named twice", hint="each run once: two of one say nothing that one does not")
    loaded = [load_run(resolve_run(run)) for run in runs]
    if prices:
        if bill is None and all(run.info.settings.get("probe") != "tokens" for run in loaded):
            raise UsageError(
                "--prices is for what a bill implies, and for token audits",
                hint="add --bill AMOUNT, or name a run of kvbench probe tokens",
            )
        given = replace(given, prices=load_prices(prices))
    report = fit_runs(loaded, kv_memory_bytes=kv_memory, given=given)
    if bill is not None:
        report = joined([report, _billed(bill, prices, loaded[0])])
    if model is not None:
        from kvbench.analysis.fit.sides import side_by_side

        report = replace(report, side_by_side=side_by_side(report, loaded, model))
    raise typer.Exit(shown(report, json))


def _billed(text: str, prices: list[str] | None, run: Run) -> FitReport:
    from kvbench.analysis.fit.bill import fit_bill, read_bill
    from kvbench.prices.load import bundled_books, load_book
    from kvbench.prices.pricing import PriceList

    bill = read_bill(text, run)
    return fit_bill(run, bill, PriceList([load_book(name) for name in prices or bundled_books()], bill.currency))


def shown(report: FitReport, as_json: bool) -> int:
    """Print it; 3 where nothing could be estimated, or not what was asked for: what a bill implies, or a capacity where
    a run was there to tell it. An audit: 0 confirmed, 1 disputed, 3 cannot tell."""
    if as_json:
        from kvbench.render.jsonout import json_text

        say(json_text(report))
    else:
        from kvbench.render.fittext import fit_lines

        say("\n".join(fit_lines(report)))
    if report.verdict is not None:
        return verdict_code(report.verdict)
    refusals = {refusal.name for refusal in report.refusals}
    if TOKENS_OF_BILL in refusals:
        return EXIT_INCONCLUSIVE
    of_cache = ("capacity_tokens", "bytes_per_token")
    told = any(estimate.name.startswith((*of_cache, TOKENS_OF_BILL)) for estimate in report.estimates)
    refused = not refusals.isdisjoint(of_cache) and not told
    return EXIT_OK if report.estimates and not refused else EXIT_INCONCLUSIVE
