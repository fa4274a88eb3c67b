"""The summary of a run on a terminal: about a dozen lines, then what to doubt, then what to do next."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TextIO

from kvbench.model import OwnError, Quantiles, Summary
from kvbench.render.text import (
    NOT_REPORTED,
    count,
    milliseconds,
    percent,
    plural,
    rate,
    safe,
    seconds,
    span,
    token_time,
)


class Line(NamedTuple):
    """`style` is for terminals only: good, warn, bad, or none."""

    label: str
    text: str
    style: str = ""


LABEL_WIDTH = 11
CERTAIN_SHARE = 0.9
"""Below this share of turns with a single expected value, that none differs says little."""
_ANSI = {"good": "\x1b[32m", "warn": "\x1b[33m", "bad": "\x1b[1;31m"}


def print_summary(
    summary: Summary, run_dir: Path, *, next_command: str | None = None, file: TextIO | None = None
) -> None:
    """Print the summary to `file` (stdout); with colour only where it is a terminal that wants it. The last line
    names `next_command`: the one that shows the run again, unless the caller knows a better one.
    """
    file = file or sys.stdout
    colour = wants_colour(file)
    for line in summary_lines(summary, next_command or f"kvbench show {run_dir}"):
        text = f"{line.label:<{LABEL_WIDTH}}{line.text}" if line.label else line.text
        if colour and line.style:
            text = f"{_ANSI[line.style]}{text}\x1b[0m"
        print(text, file=file)


def wants_colour(file: TextIO) -> bool:
    import os

    return file.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def summary_lines(summary: Summary, next_command: str) -> list[Line]:
    """The same lines for every output; text of models and servers is made safe to print."""
    return [
        *_head(summary),
        *_rules(summary),
        _requests(summary),
        *_errors(summary),
        *_latencies(summary),
        *_cache(summary),
        *_tokens(summary),
        *_lengths(summary),
        *_balance(summary),
        *_server(summary),
        *_trust(summary),
        *_warnings(summary),
        Line("next", safe(next_command)),
    ]


def _head(summary: Summary) -> Iterator[Line]:
    if summary.status != "done":
        yield Line("", f"INCOMPLETE: this run's status is '{safe(summary.status)}', not done", "bad")
    where = ", ".join(
        safe(part)
        for part in (summary.model, summary.server, None if summary.rule == "none" else f"hit rule {summary.rule}")
        if part
    )
    trace = [] if summary.trace_s is None else [f"{span(summary.trace_s)} of trace"]
    scale = "no pauses" if summary.time_scale == 0 else f"x{summary.time_scale:g}"
    warmup = f", after {plural(summary.warmup_turns, 'warm-up turn')}" if summary.warmup_turns else ""
    yield Line(
        "",
        f"{safe(summary.name)} -> {where or 'unknown endpoint'}: {plural(summary.sessions, 'session')}, "
        f"{plural(summary.turns, 'turn')} in {span(summary.window_s)} ({', '.join([*trace, scale])}){warmup}",
    )


def _rules(summary: Summary) -> Iterator[Line]:
    rules = summary.rules
    if rules is None:
        return
    if rules.valid:
        yield Line("rules", f"{safe(rules.name)}: valid", "good")
        return
    yield Line("rules", f"{safe(rules.name)}: NOT VALID", "bad")
    for reason in rules.reasons:
        yield Line("", f"  - {safe(reason)}", "bad")


def _requests(summary: Summary) -> Line:
    requests = summary.requests
    skipped = f", {requests.skipped:,} skipped" if requests.skipped else ""
    in_flight = NOT_REPORTED if summary.in_flight_p95 is None else f"{summary.in_flight_p95:.0f}"
    return Line(
        "requests",
        f"{requests.ok:,} ok, {requests.failed:,} failed{skipped}, {requests.retried:,} retried; "
        f"in flight p95 {in_flight}",
        "bad" if requests.failed else "",
    )


def _errors(summary: Summary) -> Iterator[Line]:
    if summary.errors:
        by_count = sorted(summary.errors.items(), key=lambda item: (-item[1], item[0]))
        classes = ", ".join(f"{safe(name)} {number:,}" for name, number in by_count)
        yield Line("  failed", f"{classes}   (why: error_message in records.jsonl)", "bad")


def _latencies(summary: Summary) -> Iterator[Line]:
    ttft = summary.ttft_s
    scheduled = summary.ttft_scheduled_s.p99
    yield Line(
        "TTFT",
        _quantiles(ttft, seconds) + ("" if scheduled is None else f"   (from scheduled: p99 {seconds(scheduled)})"),
    )
    adjusted = summary.ttft_adjusted_s
    if adjusted.failures_as_inf:
        yield Line("  adjusted", f"{_quantiles(adjusted, seconds, 'never')}   (failures never answer)")
    hits = {name: figure for name, figure in summary.ttft_by_hit_s.items() if figure.n}
    if hits:
        yield Line(
            "  by hit",
            " | ".join(f"{name} {seconds(hit.p50)} ({hit.n})" for name, hit in hits.items()) + "   (p50, turns)",
        )
    if summary.ttfo_s.p50 is not None and summary.ttfo_s.p50 != ttft.p50:
        yield Line("TTFO", _quantiles(summary.ttfo_s, seconds))
    slow = summary.interactivity_p90_tokens_per_s
    at_least = "" if slow is None else f"   (90% of the requests at {rate(slow)} or more)"
    yield Line("TPOT", _quantiles(summary.tpot_s, token_time) + at_least)
    yield from _jobs(summary)


def _jobs(summary: Summary) -> Iterator[Line]:
    jobs = summary.job_latency_s
    if jobs.p50 is not None:
        answer, per_h = summary.ttfat_s.p50, summary.jobs_per_h_per_user
        first = "" if answer is None else f"   first answer token p50 {span(answer)}"
        user = "" if per_h is None else f"   {per_h:,.1f}/h a user"
        yield Line("jobs", f"p50 {span(jobs.p50)} ({jobs.n}){first}{user}")
    if summary.slos:
        limits = ", ".join(f"{name.removesuffix('_s')} < {seconds(limit)}" for name, limit in summary.slos.items())
        good = f"{percent(summary.good_fraction)} of the turns met every SLO ({limits})"
        yield Line("goodput", f"{rate(summary.goodput_per_s)}: {good}")


def _quantiles(figure: Quantiles, form: Callable[[float | None], str], none: str = NOT_REPORTED) -> str:
    if not figure.n:
        return NOT_REPORTED
    return "   ".join(
        f"{name} {none if value is None else form(value)}"
        for name, value in (("p50", figure.p50), ("p95", figure.p95), ("p99", figure.p99))
    )


def _cache(summary: Summary) -> Iterator[Line]:
    if summary.hit_rate is None:
        yield Line("cache", f"cached tokens {NOT_REPORTED}")
        return
    cached, tokens = summary.cached_tokens, summary.input_tokens
    hit = f"{percent(summary.hit_rate)} of the input tokens of {plural(summary.hit_rate_turns, 'turn')}"
    if cached is not None and tokens and abs(cached / tokens - summary.hit_rate) < 0.0005:
        # The sums are over all attempts, the rate over final ones: together only where they say the same.
        hit = f"{count(cached)} of {count(tokens)} input tokens ({percent(summary.hit_rate)})"
    yield Line("cache", hit + _expected(summary))
    if summary.eligible_hit_rate is not None:
        yield Line("  eligible", f"{percent(summary.eligible_hit_rate)} of what each session had put there itself")


def _expected(summary: Summary) -> str:
    expected = summary.expected
    if expected is None or expected.floor is None or expected.ceiling is None:
        return "; no expectation"
    low, high = percent(expected.floor), percent(expected.ceiling)
    rule = low if low == high else f"{low} to {high}"
    of = "" if expected.turns == summary.hit_rate_turns else f" on {plural(expected.turns, 'turn')}"
    outside = expected.below + expected.above
    if outside:
        differ = f"{plural(outside, 'turn')} outside ({expected.below} below, {expected.above} above)"
    elif expected.exact >= CERTAIN_SHARE * expected.turns:
        differ = "no turn differs"
    else:
        differ = f"no turn outside, but only {expected.exact:,} of {expected.turns:,} have a single expected value"
    return f"; expected {rule}{of}, {differ}"


def _tokens(summary: Summary) -> Iterator[Line]:
    wanted = summary.wanted_output_tokens
    text = (
        f"in {count(summary.input_tokens)} ({rate(summary.input_tokens_per_s)}), "
        f"out {count(summary.output_tokens)} ({rate(summary.output_tokens_per_s)})"
    )
    if summary.steady_output_tokens_per_s is not None and summary.steady_window_s != summary.window_s:
        text += f"; {rate(summary.steady_output_tokens_per_s)} out before the tail"
    yield Line("tokens", text if wanted in (None, summary.output_tokens) else f"{text}, {count(wanted)} wanted")
    prefill, decode = summary.active_prefill_tokens_per_s, summary.active_decode_tokens_per_s
    if prefill is not None and decode is not None:
        yield Line(
            "  active", f"in {rate(prefill)} while a first token was awaited, out {rate(decode)} while answers came"
        )


def _balance(summary: Summary) -> Iterator[Line]:
    for spent in summary.balance or ():
        before, after = (NOT_REPORTED if at is None else f"{at}" for at in (spent.before, spent.after))
        text = f"{spent.currency} {before} -> {after}"
        if spent.at_least is not None and spent.at_most is not None:
            text += (
                f": {spent.at_least} to {spent.at_most} spent (amounts have two decimals, each end is off by <= 0.01)"
            )
        else:
            text += ": what was spent is not known"
        yield Line("balance", safe(text))


def _lengths(summary: Summary) -> Iterator[Line]:
    lengths = summary.prompt_lengths
    if lengths is None:
        return
    template = "" if lengths.template_tokens is None else f", {lengths.template_tokens} tokens the chat template's"
    made = f"made from hash ids as {safe(lengths.sent_as or 'prompts')} by {safe(lengths.tokenizer or 'a tokenizer')}"
    if lengths.exact_turns == lengths.turns:
        yield Line(
            "lengths", f"all {plural(lengths.turns, 'prompt')} exactly as long as in the trace; {made}{template}"
        )
        return
    yield Line(
        "lengths",
        f"{lengths.exact_turns:,} of {plural(lengths.turns, 'prompt')} exactly as long as in the trace, the others off "
        f"by at most {count(lengths.max_difference)} tokens ({count(lengths.got)} for {count(lengths.wanted)}); "
        f"{made}{template}",
        "warn",
    )


def _server(summary: Summary) -> Iterator[Line]:
    server = summary.server_metrics
    if server is None:
        return
    hits, queries = server.prefix_hit_tokens, server.prefix_query_tokens
    share = percent(hits / queries) if hits is not None and queries else NOT_REPORTED
    yield Line(
        "server",
        f"its own metrics: TTFT mean {seconds(server.ttft_mean_s)}, hits {share}, "
        f"preemptions {count(server.preemptions)}, waiting at most {count(server.waiting_max)}",
    )


def _trust(summary: Summary) -> Iterator[Line]:
    trust = summary.trust
    figures = "" if summary.own_error is None else own_error_text(summary.own_error)
    if trust.verdict == "ok":
        yield Line("own error", f"{figures}: trust ok" if figures else "trust ok", "good")
        return
    yield Line("own error", f"{figures}: DEGRADED" if figures else "DEGRADED", "bad")
    for reason in trust.reasons:
        yield Line("", f"  - {safe(reason)}", "bad")


def own_error_text(error: OwnError) -> str:
    bound = "arrivals undated" if error.streams == 0 else f"arrivals dated to {milliseconds(error.stamp_bound_p99_s)}"
    return (
        f"{bound} ({error.stamp} stamps), send lag {milliseconds(error.send_lag_p99_s)}, "
        f"loop lag {milliseconds(error.loop_lag_p99_s)} (p99)"
    )


def _warnings(summary: Summary) -> Iterator[Line]:
    for warning in summary.warnings:
        yield Line("warning", safe(warning.message), "warn")
        if warning.advice:
            yield Line("", f"{'':<{LABEL_WIDTH}}{safe(warning.advice)}")
