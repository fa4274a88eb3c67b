"""Checked claims as text."""

from __future__ import annotations

from typing import Any

from kvbench.render.text import plural, safe

INDENT = " " * 6


def claim_lines(report: dict[str, Any]) -> list[str]:
    lines = _trace(report["trace"])
    for claim in report["claims"]:
        named = f" ({claim['id']})" if claim["id"] in report["failed"] else ""
        lines.append(f"{claim['claim']}: {claim['verdict']}{named}")
        lines.append(f"{INDENT}{'model':<12}{claim['gives']}")
        if claim["correction"]:
            label = "known" if claim["verdict"] == "cannot tell" else "correction"
            lines.append(f"{INDENT}{label:<12}{claim['correction']}")
        if (here := claim["on_trace"]) is not None:
            verdict = f": {here['verdict']}" if here["verdict"] else ""
            lines.append(f"{INDENT}{'trace':<12}{here['gives']}{verdict}")
    return [*lines, *_sources(report["claims"]), _sum(report)]


def _trace(trace: dict[str, Any] | None) -> list[str]:
    if trace is None:
        return []
    lines = [
        f"{safe(trace['name'])}: {plural(trace['requests'], 'request')}, {trace['input_tokens']:,} input and "
        f"{trace['output_tokens']:,} output tokens, {_new(trace)} ({trace['tokens']})"
    ]
    if trace["requests_without_output_tokens"]:
        count = plural(trace["requests_without_output_tokens"], "request")
        lines.append(f"{INDENT}{count} without a length of the answer: counted as if it had none")
    return lines


def _new(trace: dict[str, Any]) -> str:
    if trace["new_tokens"] is None:
        return "what prompts share is not said"
    return f"{trace['new_tokens']:,} of the input new, by blocks of {trace['block_size']}"


def _sources(claims: list[dict[str, Any]]) -> list[str]:
    return [f"source: {source}" for source in dict.fromkeys(claim["source"] for claim in claims)]


def _sum(report: dict[str, Any]) -> str:
    told = ", ".join(f"{verdict} {count}" for verdict, count in report["verdicts"].items() if count)
    if report["failed"]:
        told += f"; failed{_where(report)}: {', '.join(report['failed'])}"
    return f"{plural(len(report['claims']), 'claim')}: {told}"


def _where(report: dict[str, Any]) -> str:
    """The counts are of the list in general, which a claim may pass and fail on the traffic at hand."""
    return " on the trace" if report["trace"] is not None and not report["verdicts"].get("does not hold") else ""
