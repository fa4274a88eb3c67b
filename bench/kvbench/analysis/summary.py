"""All figures of a run, in one fold: nothing is read but the run directory."""

from __future__ import annotations

from kvbench.analysis import cache
from kvbench.analysis.doubts import doubts
from kvbench.analysis.lengths import prompt_lengths
from kvbench.analysis.measured import Measured, measured
from kvbench.analysis.metrics import distribution, scalar, total
from kvbench.analysis.server import server_figures
from kvbench.analysis.slo import Slo
from kvbench.model import ExpectedHits, OwnError, Quantiles, RequestCounts, Summary, Warning
from kvbench.runs import agentx
from kvbench.runs.own_error import judge, own_error
from kvbench.runs.quantiles import quantiles
from kvbench.runs.reader import Run


def summarise(run: Run, slos: tuple[Slo, ...] = ()) -> Summary:
    """The measure phase of a run. Latencies and hit rates over final ok turns, tokens over all attempts. `slos`: what
    a request has to meet to count in the goodput.
    """
    info = run.info
    ran = measured(run, slos)
    counts = request_counts(ran)
    expected = cache.expected_hits(ran.ok)
    ttft = distribution(ran, "ttft_s")
    queue_delay = distribution(ran, "queue_delay_s")
    error = info.own_error or _own_error_so_far(run)
    server, server_warnings = server_figures(run)
    warnings = doubts(run, ran, counts=counts, expected=expected, queue_delay_s=queue_delay, own_error=error)
    told = cache.reported(ran.ok)
    got = ran.ok[ran.ok["output_tokens"].notna()]
    failed = ran.finals[~ran.finals["ok"] & (ran.finals["error_class"] != "skipped")]
    return Summary(
        run_id=info.run_id,
        name=info.name,
        status=info.status,
        model=_text(info.server.get("model")),
        server=_text(info.server.get("server")),
        rule=_rule(run, expected),
        sessions=int(ran.finals["session_id"].nunique()),
        turns=counts.turns,
        window_s=ran.window_s,
        trace_s=info.trace.get("span_s"),
        time_scale=float(info.settings.get("time_scale", 1.0)),
        requests=counts,
        errors={str(name): int(n) for name, n in failed["error_class"].value_counts().items()},
        in_flight_p95=scalar(ran, "in_flight_p95"),
        ttft_s=ttft,
        ttft_adjusted_s=distribution(ran, "ttft_adjusted_s"),
        ttft_scheduled_s=distribution(ran, "ttft_scheduled_s"),
        ttft_by_hit_s=_ttft_by_hit(ran),
        ttfo_s=distribution(ran, "ttfo_s"),
        tpot_s=distribution(ran, "tpot_s"),
        icl_s=distribution(ran, "icl_s"),
        e2e_s=distribution(ran, "e2e_s"),
        queue_delay_s=queue_delay,
        job_latency_s=distribution(ran, "job_latency_s"),
        input_tokens=total(ran.attempts, "input_tokens"),
        cached_tokens=total(ran.attempts, "cached_tokens"),
        cache_write_tokens=total(ran.attempts, "cache_write_tokens"),
        output_tokens=total(ran.attempts, "output_tokens"),
        reasoning_tokens=total(ran.attempts, "reasoning_tokens"),
        # a sum over some turns would be read against the output of all
        wanted_output_tokens=total(got, "wanted_output_tokens") if got["wanted_output_tokens"].notna().all() else None,
        hit_rate=scalar(ran, "hit_rate"),
        hit_rate_turns=len(told),
        eligible_hit_rate=scalar(ran, "eligible_hit_rate"),
        expected=expected,
        input_tokens_per_s=scalar(ran, "input_tokens_per_s"),
        output_tokens_per_s=scalar(ran, "output_tokens_per_s"),
        own_error=error,
        trust=info.trust or judge(error, ttft_p50_s=ttft.p50),
        warnings=_distinct([*info.warnings, *run.warnings, *warnings, *server_warnings]),
        warmup_turns=sum(record.final and record.phase == "warmup" for record in run.records),
        server_metrics=server,
        prompt_lengths=prompt_lengths(ran.ok, info.trace.get("prompts") or {}),
        balance=info.balance,
        ttfat_s=distribution(ran, "ttfat_s"),
        jobs_per_h_per_user=scalar(ran, "jobs_per_h_per_user"),
        interactivity_tokens_per_s=distribution(ran, "interactivity_tokens_per_s"),
        interactivity_p90_tokens_per_s=scalar(ran, "interactivity_p90_tokens_per_s"),
        steady_window_s=None if ran.steady is None else ran.steady[1] - ran.steady[0],
        steady_output_tokens_per_s=scalar(ran, "steady_output_tokens_per_s"),
        slos={slo.column: slo.limit for slo in slos},
        goodput_per_s=scalar(ran, "goodput_per_s"),
        good_fraction=scalar(ran, "good_fraction"),
        e2e_scheduled_s=distribution(ran, "e2e_scheduled_s"),
        e2e_adjusted_s=distribution(ran, "e2e_adjusted_s"),
        active_prefill_tokens_per_s=scalar(ran, "active_prefill_tokens_per_s"),
        active_decode_tokens_per_s=scalar(ran, "active_decode_tokens_per_s"),
        rules=info.rules or agentx.check(info, run.records),
    )


def request_counts(ran: Measured) -> RequestCounts:
    """ok + failed + skipped = turns; retried: attempts that were not the last of their turn."""
    skipped = int((ran.finals["error_class"] == "skipped").sum())
    return RequestCounts(
        ok=len(ran.ok),
        failed=len(ran.finals) - len(ran.ok) - skipped,
        skipped=skipped,
        retried=len(ran.attempts) - len(ran.finals),
    )


def _ttft_by_hit(ran: Measured) -> dict[str, Quantiles]:
    classes = cache.hit_classes(ran.ok)
    ttft = ran.ok.loc[classes.index, "ttft_s"]
    return {name: quantiles(ttft[classes == name].dropna()) for name in cache.HIT_CLASSES}


def _own_error_so_far(run: Run) -> OwnError:
    """For a run whose end was never written: from its records, and the lag samples among its events."""
    lags = [event["lag_ns"] for event in run.events if event.get("kind") == "lag" and "lag_ns" in event]
    return own_error(run.records, loop_lags_ns=lags)


def _rule(run: Run, expected: ExpectedHits | None) -> str:
    if expected is not None:
        return expected.rule
    rules = sorted({record.expectation.rule for record in run.records if record.expectation is not None})
    return ", ".join(rules) or "none"


def _distinct(warnings: list[Warning]) -> tuple[Warning, ...]:
    return tuple(dict.fromkeys(warnings))


def _text(value: object) -> str | None:
    return None if value is None else str(value)
