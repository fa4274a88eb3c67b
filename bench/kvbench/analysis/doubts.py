"""What a reader of a run's figures should know before using them: warnings as data, each with its advice."""

from __future__ import annotations

import pandas as pd

from kvbench.analysis.measured import Measured
from kvbench.model import ExpectedHits, OwnError, Quantiles, RequestCounts, Warning
from kvbench.runs.own_error import SEND_LAG_LIMIT_S
from kvbench.runs.reader import Run

FAILED_TURNS_LIMIT = 0.01
OUTPUT_LENGTH_TOLERANCE = 0.05
COALESCED_LIMIT = 0.5
JOBS_CUT_LIMIT = 0.1


def doubts(
    run: Run,
    ran: Measured,
    *,
    counts: RequestCounts,
    expected: ExpectedHits | None,
    queue_delay_s: Quantiles,
    own_error: OwnError,
) -> list[Warning]:
    found = [
        _incomplete(run),
        _nothing_measured(ran),
        _no_expectation(run, ran, expected),
        _failed(counts),
        _usage_missing(ran),
        _sums_are_floors(ran),
        _usage_problem(run),
        _sent_again(run),
        _unexpected_hits(expected),
        _other_model(run),
        _output_length(ran.ok),
        _empty_answers(ran.ok),
        _no_first_token(ran.ok),
        _coalesced(ran.ok),
        _coarse_clock(own_error),
        _held_back(queue_delay_s, own_error),
        _jobs_cut(run, ran),
    ]
    return [warning for warning in found if warning is not None]


def _incomplete(run: Run) -> Warning | None:
    if run.info.status == "done":
        return None
    why = f": {run.info.failure}" if run.info.failure else ""
    return Warning(
        code="incomplete",
        message=f"the run is not complete (status {run.info.status}){why}",
        advice="its figures cover what was done before it stopped; run again before comparing them with others",
    )


def _nothing_measured(ran: Measured) -> Warning | None:
    if len(ran.ok):
        return None
    return Warning(
        code="nothing_measured",
        message="no measured turn succeeded: there is nothing to judge",
        advice="mend the failures, or let fewer turns be warm-up (--warmup)",
    )


def _no_expectation(run: Run, ran: Measured, expected: ExpectedHits | None) -> Warning | None:
    """A run that was aborted or killed never came to work out its expected hits, and could not say so."""
    told = any(warning.code in ("no_expectation", "expectation_incomplete") for warning in run.info.warnings)
    if expected is not None or told or run.info.status == "done" or not ran.ok["cached_tokens"].notna().any():
        return None
    return Warning(
        code="no_expectation",
        message="no expected hits: the run ended before they were worked out",
        advice="the hit rate is what the endpoint reports, with nothing to hold it against",
    )


def _sums_are_floors(ran: Measured) -> Warning | None:
    """Attempts that the endpoint may have worked on, and bill, without having said what they took."""
    attempts = ran.attempts
    answered = attempts["http_status"].isna() | (attempts["http_status"] < 400)
    silent = (
        attempts["sent_at_s"].notna() & answered & (attempts["input_tokens"].isna() | attempts["output_tokens"].isna())
    )
    if not silent.any():
        return None
    return Warning(
        code="sums_are_floors",
        message=f"{int(silent.sum())} of {len(attempts)} attempts reported no usage: the token sums are without them",
        advice="the endpoint may have worked on them and bill for them; read the sums as floors",
    )


def _failed(counts: RequestCounts) -> Warning | None:
    if counts.failed <= FAILED_TURNS_LIMIT * counts.turns:
        return None
    return Warning(
        code="failed_turns",
        message=f"{counts.failed} of {counts.turns} turns failed (limit 1%)",
        advice="latencies are of the turns that succeeded, so they flatter the endpoint; mend the failures first",
    )


def _usage_missing(ran: Measured) -> Warning | None:
    silent = int((ran.ok["input_tokens"].isna() | ran.ok["cached_tokens"].isna()).sum())
    if not silent:
        return None
    return Warning(
        code="cached_not_reported",
        message=f"{silent} of {len(ran.ok)} turns do not report input and cached tokens: the hit rate leaves them out",
        advice="vLLM reports them with --enable-prompt-tokens-details; with another server, see its usage settings",
    )


def _usage_problem(run: Run) -> Warning | None:
    problems = [r.usage.problem for r in run.records if r.usage.problem is not None and r.phase == "measure"]
    if not problems:
        return None
    return Warning(
        code="usage_not_believed",
        message=f"{len(problems)} usage reports were not believed, the first: {problems[0]}",
        advice="their counts are left out; the raw objects are in records.jsonl (usage_raw)",
    )


def _sent_again(run: Run) -> Warning | None:
    measured = [r for r in run.records if r.phase == "measure"]
    again = sum(r.clock.retried_stale for r in measured)
    if not again:
        return None
    return Warning(
        code="sent_again",
        message=f"{again} of {len(measured)} requests were sent twice: the server had closed the kept-alive connection",
        advice="their times count from the second sending; a server that closes idle connections sooner than the "
        "trace's pauses makes new ones necessary",
    )


def _unexpected_hits(expected: ExpectedHits | None) -> Warning | None:
    if expected is None or not expected.below + expected.above:
        return None
    return Warning(
        code="hits_unexpected",
        message=f"cached tokens outside what the rule '{expected.rule}' allows on {expected.below + expected.above} of "
        f"{expected.turns} turns: {expected.below} below, {expected.above} above",
        advice="below: evicted, aged, reported coarsely, or another replica answered; above: another rule, or a cache "
        "that was not empty (--salt)",
    )


def _other_model(run: Run) -> Warning | None:
    """A name that the endpoint lists, or lengthens by a date (gpt-x-2026-01-01), is the model that was asked for."""
    listed = [str(name) for name in run.info.server.get("models") or ()]
    known = [name for name in (*listed, run.info.server.get("model")) if name]
    answered = {r.response_model for r in run.records if r.ok and r.phase == "measure" and r.response_model}
    others = sorted(name for name in answered if not any(name.startswith(one) for one in known))
    if not known or not others:
        return None
    return Warning(
        code="other_model",
        message=f"answers name a model that was not asked for and is not listed: {', '.join(others[:5])}",
        advice="the endpoint may route to, or fall back on, another model: its latencies, hits and prices are not the "
        "wanted one's",
    )


def _output_length(ok: pd.DataFrame) -> Warning | None:
    told = ok[ok["wanted_output_tokens"].notna() & ok["output_tokens"].notna()]
    wanted, got = int(told["wanted_output_tokens"].sum()), int(told["output_tokens"].sum())
    if abs(got - wanted) <= OUTPUT_LENGTH_TOLERANCE * wanted:
        return None
    return Warning(
        code="output_length",
        message=f"the trace wants {wanted:,} output tokens, the endpoint gave {got:,}",
        advice="the load is not the trace's; only servers with ignore_eos and min_tokens (vLLM) keep to a length",
    )


def _empty_answers(ok: pd.DataFrame) -> Warning | None:
    empty = int(_without_tokens(ok).sum())
    if not empty:
        return None
    return Warning(
        code="empty_answers",
        message=f"{empty} of {len(ok)} answers have no token: they have no latency, and nothing was generated",
        advice="see their finish_reason in records.jsonl; a filter, a refusal or a limit may have ended them",
    )


def _without_tokens(ok: pd.DataFrame) -> pd.Series:
    """By the count that was reported; where none was, a stream without a generated chunk says nothing."""
    return (ok["output_tokens"] == 0).fillna(False).astype(bool) & ok["ttft_s"].isna()


def _no_first_token(ok: pd.DataFrame) -> Warning | None:
    without = int((ok["ttft_s"].isna() & ~_without_tokens(ok)).sum())
    if not without:
        return None
    return Warning(
        code="no_first_token",
        message=f"{without} of {len(ok)} turns were answered in one piece: they have no time to first token",
        advice="stream the answers, and see that no proxy on the way collects them",
    )


def _coalesced(ok: pd.DataFrame) -> Warning | None:
    told = ok[(ok["output_tokens"] >= 2).fillna(False).astype(bool) & ok["ttft_s"].notna()]
    if told.empty:
        return None
    chunks = int(told["chunks_ns"].map(len).sum())
    tokens = int(told["output_tokens"].sum())
    if chunks >= COALESCED_LIMIT * tokens:
        return None
    return Warning(
        code="coalesced_chunks",
        message=f"{tokens:,} output tokens came in {chunks:,} chunks",
        advice="gaps between chunks (ICL) are no times per token here: use TPOT; a proxy that buffers delays TTFT too",
    )


def _coarse_clock(own_error: OwnError) -> Warning | None:
    if own_error.stamp not in ("loop", "mixed"):
        return None
    return Warning(
        code="coarse_clock",
        message="arrivals were dated by the event loop, not by the kernel (through a proxy, or for want of stamps)",
        advice="measure without a proxy, on Linux, where milliseconds matter",
    )


def _held_back(queue_delay_s: Quantiles, own_error: OwnError) -> Warning | None:
    late, lag = queue_delay_s.p99, own_error.send_lag_p99_s
    if late is None or late <= SEND_LAG_LIMIT_S or (lag is not None and lag > SEND_LAG_LIMIT_S):
        return None
    return Warning(
        code="held_back",
        message=f"turns left {late:.1f} s after their schedule (p99), waiting for limits, retries or connections",
        advice="the load was below the trace's: read TTFT from scheduled, or raise --max-in-flight and the rate limit",
    )


def _jobs_cut(run: Run, ran: Measured) -> Warning | None:
    """Jobs that the end of a window cut are the long ones: those that came to their end say too little of a job."""
    if run.info.settings.get("duration_s") is None:
        return None
    whole = frozenset(str(event.get("root_id")) for event in run.events if event.get("complete") is True)
    begun = ran.finals[(ran.finals["turn"] == 0) & (ran.finals["session_id"] == ran.finals["root_id"])]
    cut = [root for root in begun["root_id"] if root not in whole]
    if len(cut) <= JOBS_CUT_LIMIT * len(begun):
        return None
    ended = "of those that ended, the shorter ones" if len(cut) < len(begun) else "not there, as none ended"
    return Warning(
        code="jobs_cut",
        message=f"the end of the window cut {len(cut)} of {len(begun)} jobs that began in it",
        advice=f"job figures are {ended}; a longer --duration cuts fewer",
    )
