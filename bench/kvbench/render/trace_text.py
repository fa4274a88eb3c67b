"""A trace's numbers as text and as JSON."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import msgspec

from kvbench.render.modeltext import size
from kvbench.render.text import percent, plural, safe, span
from kvbench.traces.stats import Level, Spread, TraceStats

_ESTIMATED = "estimated at 4 characters a token, without the chat template"


def info_json(stats: TraceStats, bytes_per_token: Fraction | None) -> dict[str, Any]:
    """What the lines say at the top level; the rest by its own names. working_set: `load`'s, in tokens and bytes."""
    plain: dict[str, Any] = msgspec.to_builtins(stats)
    totals = plain.pop("totals")
    return {**totals, **plain, "working_set": _working_set(stats, bytes_per_token)}


def _working_set(stats: TraceStats, bytes_per_token: Fraction | None) -> dict[str, Any]:
    """What blocks take whole; None where it is not known, there is no mean, or no bytes a token."""
    level = stats.load.working_set_blocks
    peak, mean = (None, None) if level is None else (level.peak, level.mean)
    tokens = {
        "peak": None if peak is None else peak * stats.block_size,
        "mean": None if mean is None else mean * stats.block_size,
    }

    def in_bytes(count: float | None) -> int | None:
        return None if count is None or bytes_per_token is None else math.ceil(Fraction(count) * bytes_per_token)

    return {
        "ttl_s": stats.load.ttl_s,
        **{f"{name}_tokens": count for name, count in tokens.items()},
        **{f"{name}_bytes": in_bytes(count) for name, count in tokens.items()},
    }


def info_lines(stats: TraceStats, bytes_per_token: Fraction | None) -> list[str]:
    totals = stats.totals
    exact = totals.input_tokens is not None
    total = totals.input_tokens if exact else totals.input_tokens_estimated
    longest = totals.longest_context_tokens if exact else totals.longest_context_tokens_estimated
    about = "" if exact else f" ({_ESTIMATED})"
    rows = [
        ("trace", f"{safe(totals.name)}, {totals.size_bytes:,} bytes, sha256 {totals.sha256[:12]}"),
        (
            "sessions",
            f"{totals.sessions:,}: {plural(totals.roots, 'root')}, {plural(totals.sub_agents, 'sub-agent')}, "
            f"depth {totals.depth}",
        ),
        (
            "turns",
            f"{totals.turns:,}, of which {totals.joins:,} {'waits' if totals.joins == 1 else 'wait'} for sub-agents",
        ),
        ("input", f"{total:,} tokens over all turns, longest context {longest:,}{about}"),
        ("", f"{_tokens(totals.input_length_tokens)}   a turn"),
        ("output", _output(stats)),
    ]
    if totals.output_length_tokens.n:
        rows.append(("", f"{_tokens(totals.output_length_tokens)}   a turn"))
    if totals.growth_tokens.n:
        shrink = f"; {plural(totals.shrinking_turns, 'turn')} shorter than the one before" * (
            totals.shrinking_turns > 0
        )
        rows.append(("growth", f"{_tokens(totals.growth_tokens)}   a turn after the first{shrink}"))
    rows += [
        ("pauses", _pauses(stats)),
        ("span", f"{span(totals.span_s)} of trace time to the start of the last turn"),
        *_cache_rows(stats),
        *_load_rows(stats, bytes_per_token),
    ]
    for prompt in totals.shared_prompts:
        text = f"{safe(prompt.name)}: {plural(prompt.sessions, 'session')}, {plural(prompt.tools, 'tool')}, "
        rows.append(("shared", f"{text}about {prompt.tokens_estimated:,} tokens (estimated)"))
    if totals.models:
        rows.append(("models", ", ".join(map(safe, totals.models))))
    return [f"{name:<10} {value}" for name, value in rows]


def _tokens(spread: Spread) -> str:
    values = (("p50", spread.p50), ("p90", spread.p90), ("p99", spread.p99), ("max", spread.max))
    return "   ".join(f"{name} {value:,.0f}" for name, value in values if value is not None)


def _output(stats: TraceStats) -> str:
    totals = stats.totals
    if totals.output_tokens is None:
        return "lengths not given: left to the model"
    without = totals.turns_without_output_tokens
    return f"{totals.output_tokens:,} tokens" + (f", {plural(without, 'turn')} without a length" if without else "")


def _pauses(stats: TraceStats) -> str:
    totals = stats.totals
    pause = totals.pause_s
    if pause.p50 is None or pause.p95 is None or pause.max is None:
        return "none"
    beyond = f"{percent(totals.pauses_beyond_ttl / pause.n)} over {totals.ttl_s:g} s"
    return f"p50 {pause.p50:.1f} s   p95 {pause.p95:.1f} s   max {pause.max:.1f} s   {beyond}"


def _cache_rows(stats: TraceStats) -> list[tuple[str, str]]:
    ceiling, shared = stats.ceiling, stats.sharing
    if ceiling is None or shared is None:
        return [("ceiling", "not known: the source has lengths alone, and not which prompts begin alike")]
    rows = [
        (
            "blocks",
            f"{ceiling.blocks:,} of {stats.block_size:,} tokens, {stats.unique_blocks:,} distinct ({stats.tokens})",
        ),
        (
            "ceiling",
            f"{percent(ceiling.block_hit_rate)} by block, {percent(ceiling.token_hit_rate)} by token, unbounded cache; "
            f"{percent(ceiling.own_token_hit_rate)} from the session's own previous turn",
        ),
    ]
    if stats.text_doubt is not None:
        rows.insert(1, ("", stats.text_doubt))
    if ceiling.eligible_hit_rate is not None:
        rows.append(("", f"eligible {percent(ceiling.eligible_hit_rate)} of what each session had put there itself"))
    if shared.share is not None and shared.pieces:
        what = (
            f"{plural(shared.blocks, 'block')} that two sessions or more have are {percent(shared.share)} of all sent"
        )
        rows.append(("sharing", f"{what}, in {plural(shared.pieces, 'piece')}; the largest:"))
        for piece in shared.top:
            where = f"from block {piece.depth_blocks:,} on, " if piece.depth_blocks else ""
            who = f"{plural(piece.sessions, 'session')}, {plural(piece.requests, 'request')}"
            what = f"{where}{piece.tokens:,} tokens in {who} (first {safe(piece.session_id)})"
            rows.append(("", f"  {percent(piece.share):>5}   {what}"))
    return rows


def _level(level: Level) -> str:
    return f"peak {level.peak:,.0f}" + (f", mean {level.mean:,.1f}" if level.mean is not None else "")


def _load_rows(stats: TraceStats, bytes_per_token: Fraction | None) -> list[tuple[str, str]]:
    load = stats.load
    if load.live_sessions is None:
        live = "not known: no session has a second turn at another time, and no answer a duration"
    else:
        live = f"sessions {_level(load.live_sessions)}; requests in flight "
        live += "not known: not every answer has a duration" if load.in_flight is None else _level(load.in_flight)
    found = _working_set(stats, bytes_per_token)
    if found["peak_tokens"] is None:
        return [("live", live)]

    def amount(name: str) -> str:
        tokens, in_bytes = found[f"{name}_tokens"], found[f"{name}_bytes"]
        return f"{name} {tokens:,.0f} tokens" + (f" ({size(in_bytes)})" if in_bytes is not None else "")

    working = amount("peak") + (f", {amount('mean')}" if found["mean_tokens"] is not None else "")
    what = f"distinct blocks touched in the last {load.ttl_s:g} s"
    if found["peak_bytes"] is not None:
        what += "; what a session takes besides is not in the bytes"
    return [("live", live), ("working", f"{working}: {what}")]
