"""A token audit: what `kvbench probe tokens` sent and what was reported, check by check, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.analysis.fit.given import NOTHING_GIVEN, Given
from kvbench.analysis.fit.steps import stop_reason
from kvbench.analysis.fit.token_input import (
    input_checks,
    repeated_check,
    stream_check,
    template_check,
    tokenizer_check,
)
from kvbench.analysis.fit.token_line import Line
from kvbench.analysis.fit.token_money import priced
from kvbench.analysis.fit.token_output import cap_check, output_checks, reasoning_check
from kvbench.analysis.fit.token_sent import Audit, audit_of
from kvbench.analysis.fit.token_sums import cached_check, total_check
from kvbench.model import Check, Estimate, FitReport
from kvbench.prices.load import load_prices
from kvbench.runs.reader import Run

BILLED = ("input", "output")
"""What has to be confirmed for the whole to be."""


def fit_tokens(run: Run, given: Given = NOTHING_GIVEN) -> FitReport:
    """checks, verdict, and as estimates both lines' slopes and intercepts."""
    audit = audit_of(run)
    report = audited(audit)
    checks, note = priced(report.checks, run, given.prices or load_prices())
    notes = [*report.notes, *([note] if note else [])]
    failed = next((r for r in run.records if not r.ok), None)
    if (why := stop_reason(run)) is not None:
        notes.append(f"it ended early: {why}")
    elif failed is not None:
        notes.append(f"request {failed.request_id} was refused: {failed.error_message}")
    return FitReport(
        runs=(str(run.path),),
        estimates=report.estimates,
        assumed=report.assumed,
        notes=tuple(notes),
        checks=checks,
        verdict=report.verdict,
    )


def audited(audit: Audit) -> FitReport:
    """The checks of some requests, wherever they come from; without money."""
    of_input, input_line = input_checks(audit)
    of_output, output_line = output_checks(audit)
    checks = [
        *of_input,
        *template_check(audit),
        *tokenizer_check(audit),
        repeated_check(audit),
        stream_check(audit),
        *of_output,
        cap_check(audit),
        reasoning_check(audit),
        total_check(audit),
        cached_check(audit),
    ]
    if audit.sent and not any(s.reported for s in audit.sent):
        says = "no answer has a usage report"
        checks.insert(0, Check(name="usage", verdict="not reported", says=says, n=len(audit.sent)))
    assumed = []
    if audit.server:
        assumed.append("the server's own /tokenize counts right; a tokenizer named in the profile would check it")
    elif audit.source is not None:
        assumed.append(f"{audit.source} is the model's own")
    return FitReport(
        runs=(),
        estimates=(*_estimates("input", input_line), *_estimates("output", output_line)),
        assumed=tuple(assumed),
        checks=tuple(checks),
        verdict=verdict_of(checks),
    )


def verdict_of(checks: Sequence[Check]) -> str:
    """disputed where one check is; confirmed where all that is billed could be checked; else cannot tell."""
    by = {check.name: check.verdict for check in checks}
    if "disputed" in by.values():
        return "disputed"
    billed = all(by.get(name) == "confirmed" for name in BILLED)
    open_ = by.get("reasoning") == "not verifiable" or by.get("tokenizer") == "cannot tell"
    return "confirmed" if billed and not open_ else "cannot tell"


def _estimates(name: str, line: Line | None) -> list[Estimate]:
    if line is None:
        return []
    bounds = (line.low, line.high) if line.holds else (None, None)
    counted = "of what was sent" if name == "input" else "of what came"
    how = f"line through the reported tokens over the exact ones {counted}"
    if line.holds:
        how += f"; bounds that hold where no count is off by more than {line.window / 2:g}"
    else:
        how += f"; least squares, and no line: the counts are up to {line.scatter:.0f} apart"
    return [
        Estimate(
            name=f"{name}_tokens_per_token",
            value=line.slope,
            low=bounds[0],
            high=bounds[1],
            unit="reported/exact",
            method=how,
            n=line.n,
        ),
        Estimate(
            name=f"{name}_tokens_added",
            value=line.intercept,
            low=line.least,
            high=line.most,
            unit="tokens a request",
            method="reported beyond that line: chat template, end mark; never an accusation"
            if line.holds
            else "reported beyond that line",
            n=line.n,
        ),
    ]
