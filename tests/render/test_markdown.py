"""Markdown, a step summary within GitHub's limit, and annotations of one line."""

from __future__ import annotations

import re

import pytest
from tests.render.verdicts import MIXED, NASTY, REFUSED, gate, judged

from kvbench.render.markdown import gate_markdown, github_annotations, literal, step_summary


def test_a_row_a_gate() -> None:
    text = gate_markdown(MIXED)
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert rows[1] == (
        "| ❌ fail | `ttft.geomean>+3%` | 0.100 s | 0.112 s | +12.0% | +10.0% to +14.0% | 0.0002 | 5 + 5 | 6 |"
    )
    assert rows[2] == "| ⚪ inconclusive | `tpot.p95>+3%` | not reported | not reported |  |  |  | 5 + 5 |  |"
    assert "90.00% | 90.00% | +0.0000 | -0.0010 to +0.0010 |" in rows[3]
    # Every row has as many cells as the head, whatever was quoted.
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {10}


def test_quoted_text_is_no_markup() -> None:
    text = gate_markdown(REFUSED)
    (line,) = [line for line in text.splitlines() if line.startswith("- refused: ") and "red" in line]
    assert r"\<script\>" in line
    assert r"\`x\`" in line
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_literal_escapes_what_markdown_would_read() -> None:
    assert literal("a|b *c* [d](e)\n<f>") == r"a\|b \*c\* \[d\]\(e\)\\n\<f\>"


def test_a_summary_stays_under_the_limit() -> None:
    long = gate_markdown(judged(gate("refused"), verdict="refused", reasons=tuple(f"é{i}" * 40 for i in range(20000))))
    assert len(long.encode()) > 1024 * 1024
    cut = step_summary(long)
    assert 1_000_000 < len(cut.encode()) <= 1024 * 1024
    assert cut.endswith("(cut: the rest is longer than a step summary may be)\n")
    assert step_summary("short\n") == "short\n"


def test_annotations_are_one_line_each() -> None:
    lines = github_annotations(MIXED)
    assert [line.partition(" ")[0] for line in lines] == ["::error", "::warning", "::warning"]
    assert lines[0].startswith("::error title=kvbench gate ttft.geomean>+3%25::")
    assert "+12.0%25" in lines[0]
    refused = github_annotations(REFUSED)
    assert len(refused) == 2
    assert all("\n" not in line and "\r" not in line for line in lines + refused)
    # The text cannot end the command or start another one; its own %0A is shown, not obeyed.
    assert "%250A" in refused[0]
    assert NASTY not in refused[0]


@pytest.mark.parametrize("verdict", ["pass", "fail", "inconclusive"])
def test_the_title_says_the_verdict(verdict: str) -> None:
    assert gate_markdown(judged(gate(verdict), verdict=verdict)).splitlines()[0].endswith(verdict)
