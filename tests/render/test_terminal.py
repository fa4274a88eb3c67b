from __future__ import annotations

import io
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from kvbench.analysis.summary import summarise
from kvbench.model import OwnError, Quantiles, RequestCounts, Spent, Summary, Trust, Warning
from kvbench.render.terminal import print_summary
from kvbench.runs.reader import load_run

FIXTURE = Path(__file__).parent.parent / "fixtures" / "run-schema-1"
RUN_DIR = Path("runs/one")


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summarise(load_run(FIXTURE))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(summary: Summary, **changes: object) -> str:
    out = io.StringIO()
    print_summary(msgspec.structs.replace(summary, **changes), RUN_DIR, file=out)
    return out.getvalue()


def test_the_whole_summary(summary: Summary) -> None:
    assert shown(summary).splitlines() == [
        "fixture -> tiny, vLLM 0.32.0, hit rule block 32: 3 sessions, 6 turns in 3.1 s (20.0 s of trace, x0.5), "
        "after 1 warm-up turn",
        "requests   4 ok, 1 failed, 1 skipped, 1 retried; in flight p95 1",
        "  failed   reset 1   (why: error_message in records.jsonl)",
        "TTFT       p50 0.075 s   p95 0.185 s   p99 0.197 s   (from scheduled: p99 0.545 s)",
        "  adjusted p50 0.100 s   p95 never   p99 never   (failures never answer)",
        "  by hit   none 0.200 s (1) | full 0.070 s (2)   (p50, turns)",
        "TTFO       p50 0.080 s   p95 0.185 s   p99 0.197 s",
        "TPOT       p50 20.0 ms   p95 28.5 ms   p99 29.7 ms   (90% of the requests at 18.1/s or more)",
        "jobs       p50 1.2 s (1)   first answer token p50 1.1 s   3,100.8/h a user",
        "cache      2,592 of 4,000 input tokens (64.8%); expected 31.0% to 61.0% on 3 turns, no turn outside, "
        "but only 2 of 3 have a single expected value",
        "  eligible 98.7% of what each session had put there itself",
        "tokens     in 4,000 (1,311/s), out 14 (4.6/s); 6.0/s out before the tail, 16 wanted",
        "  active   in 10.3k/s while a first token was awaited, out 58.8/s while answers came",
        "server     its own metrics: TTFT mean 0.093 s, hits 52.9%, preemptions 0, waiting at most 2",
        "own error  arrivals dated to 4.0 us (kernel stamps), send lag 0.9 ms, loop lag 0.2 ms (p99): trust ok",
        "warning    1 of 6 turns failed (limit 1%)",
        "           latencies are of the turns that succeeded, so they flatter the endpoint; mend the failures first",
        "warning    1 of 7 attempts reported no usage: the token sums are without them",
        "           the endpoint may have worked on them and bill for them; read the sums as floors",
        "warning    the trace wants 16 output tokens, the endpoint gave 14",
        "           the load is not the trace's; only servers with ignore_eos and min_tokens (vLLM) keep to a length",
        "next       kvbench show runs/one",
    ]


@pytest.mark.parametrize("status", ["started", "interrupted", "failed"])
def test_incomplete_stands_first(summary: Summary, status: str) -> None:
    assert shown(summary, status=status).startswith(f"INCOMPLETE: this run's status is '{status}'")
    assert "INCOMPLETE" not in shown(summary)


def test_none_is_said_never_zero(summary: Summary) -> None:
    nothing = Quantiles()
    text = shown(
        summary,
        model=None,
        server=None,
        rule="none",
        ttft_s=nothing,
        ttft_scheduled_s=nothing,
        ttft_adjusted_s=nothing,
        ttft_by_hit_s={},
        ttfo_s=nothing,
        tpot_s=nothing,
        job_latency_s=nothing,
        hit_rate=None,
        expected=None,
        input_tokens=None,
        cached_tokens=None,
        output_tokens=None,
        wanted_output_tokens=None,
        input_tokens_per_s=None,
        output_tokens_per_s=None,
        in_flight_p95=None,
        interactivity_p90_tokens_per_s=None,
        steady_output_tokens_per_s=None,
        window_s=None,
        trace_s=None,
        server_metrics=None,
        own_error=OwnError(),
        requests=RequestCounts(),
        errors={},
        warnings=(),
        turns=0,
        sessions=0,
        eligible_hit_rate=None,
    )
    assert text.splitlines()[:6] == [
        "fixture -> unknown endpoint: 0 sessions, 0 turns in not reported (x0.5), after 1 warm-up turn",
        "requests   0 ok, 0 failed, 0 retried; in flight p95 not reported",
        "TTFT       not reported",
        "TPOT       not reported",
        "cache      cached tokens not reported",
        "tokens     in not reported (not reported), out not reported (not reported)",
    ]


def test_degraded_says_why(summary: Summary) -> None:
    text = shown(summary, trust=Trust(verdict="degraded", reasons=("left late", "no stamps")))
    assert "(p99): DEGRADED\n  - left late\n  - no stamps\n" in text


def test_turns_outside_their_expectation_are_counted(summary: Summary) -> None:
    assert summary.expected is not None
    outside = msgspec.structs.replace(summary.expected, floor=0.61, below=1, above=2, turns=4)
    assert "; expected 61.0%, 3 turns outside (1 below, 2 above)" in shown(summary, expected=outside)


def test_sums_and_rate_of_different_turns_are_not_mixed(summary: Summary) -> None:
    text = shown(summary, input_tokens=9000)
    assert "cache      64.8% of the input tokens of 4 turns;" in text


def test_text_of_a_server_cannot_drive_the_terminal(summary: Summary) -> None:
    evil = "x\x1b[2J\ny"
    text = shown(
        summary,
        model=evil,
        name=evil,
        errors={evil: 1},
        warnings=(Warning(code="c", message=evil, advice=evil),),
        trust=Trust(verdict="degraded", reasons=(evil,)),
    )
    assert "\x1b" not in text
    assert text.count("x\\x1b[2J\\ny") == 6


def test_colour_only_on_a_terminal_that_wants_it(summary: Summary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Terminal()
    print_summary(summary, RUN_DIR, file=out)
    assert "\x1b[32mown error" in out.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Terminal()
    print_summary(summary, RUN_DIR, file=plain)
    assert plain.getvalue() == shown(summary)


def test_the_balance_is_shown_as_bounds_or_as_not_known(summary: Summary) -> None:
    cents = [Decimal(text) for text in ("110.00", "109.95", "0.03", "0.07")]
    known = Spent(currency="USD", before=cents[0], after=cents[1], at_least=cents[2], at_most=cents[3])
    text = shown(summary, balance=(known, Spent(currency="CNY", before=cents[0])))
    assert "balance    USD 110.00 -> 109.95: 0.03 to 0.07 spent (amounts have two decimals" in text
    assert "balance    CNY 110.00 -> not reported: what was spent is not known" in text
    assert "balance" not in shown(summary)
