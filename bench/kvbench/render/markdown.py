"""A gate's verdict as Markdown, and as a GitHub job's summary and annotations."""

from __future__ import annotations

import re
from typing import Any

from kvbench.render.gatetext import amount, gate_lines, scaled
from kvbench.render.junit import inconclusive_reason
from kvbench.render.text import NOT_REPORTED, safe

STEP_SUMMARY_BYTES = 1024 * 1024
"""GitHub takes no more from a step, and drops the whole summary of one that writes more."""
_MARKS = {"pass": "✅", "fail": "❌", "inconclusive": "⚪", "refused": "⛔"}
_PUNCTUATION = re.compile(r"([\\`*_{}\[\]<>()#|~&!])")
_CUT = "\n\n(cut: the rest is longer than a step summary may be)\n"


def gate_markdown(judged: dict[str, Any], title: str = "kvbench gate") -> str:
    """The JSON object of `kvbench gate` as a table, with reasons and notes below. Quoted text cannot become markup."""
    rows = ["|  | gate | baseline | new | change | 90% interval | p | runs | runs needed |", "|" + "---|" * 9]
    rows += ["| " + " | ".join(_cells(gate)) + " |" for gate in judged["gates"]]
    parts = [f"### {literal(title)}: {_MARKS[judged['verdict']]} {judged['verdict']}", "\n".join(rows)]
    told = [
        f"- `{safe(gate['expr'])}`: {literal(inconclusive_reason(gate))}"
        for gate in judged["gates"]
        if gate["verdict"] == "inconclusive"
    ]
    # What refuses one gate alone is among the reasons only where it refuses all.
    told += [
        f"- refused: `{safe(gate['expr'])}`: {literal(gate['reason'])}"
        for gate in judged["gates"]
        if gate["verdict"] == "refused" and not judged["reasons"]
    ]
    told += [f"- refused: {literal(reason)}" for reason in judged["reasons"]]
    told += [f"- note: {literal(note)}" for note in judged["notes"]]
    if told:
        parts.append("\n".join(told))
    parts.append("p is one-sided, after Holm over all gates; runs needed: a side, for 80% power after Holm.")
    return "\n\n".join(parts) + "\n"


def step_summary(markdown: str, room: int = STEP_SUMMARY_BYTES) -> str:
    """Markdown of at most `room` bytes in UTF-8, cut at a line where it was longer."""
    if len(markdown.encode()) <= room:
        return markdown
    kept = markdown.encode()[: room - len(_CUT.encode())].decode(errors="ignore")
    return kept.rpartition("\n")[0] + _CUT


def github_annotations(judged: dict[str, Any]) -> list[str]:
    """GitHub workflow commands: an error a failed gate or reason of a refusal, a warning an inconclusive gate or note.
    One line each, whatever is quoted.
    """
    lines = []
    for gate in judged["gates"]:
        if gate["verdict"] == "fail":
            alone = {"gates": [gate], "reasons": [], "notes": [], "verdict": "fail"}
            lines.append(_command("error", f"kvbench gate {gate['expr']}", "\n".join(gate_lines(alone)[1:-1])))
        elif gate["verdict"] == "inconclusive":
            lines.append(_command("warning", f"kvbench gate {gate['expr']}", inconclusive_reason(gate)))
        elif gate["verdict"] == "refused" and not judged["reasons"]:
            lines.append(_command("error", f"kvbench gate {gate['expr']} refused", gate["reason"]))
    lines += [_command("error", "kvbench gate refused", reason) for reason in judged["reasons"]]
    return lines + [_command("warning", "kvbench gate", note) for note in judged["notes"]]


def literal(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return _PUNCTUATION.sub(r"\\\1", safe(text))


def _cells(gate: dict[str, Any]) -> list[str]:
    def told(value: float | None) -> str:
        return "" if value is None else scaled(gate, value)

    value = gate["scale"] == "value"
    interval = "" if gate["low"] is None else f"{told(gate['low'])} to {told(gate['high'])}"
    needed = "" if gate["p"] is None else gate["runs_needed_family"]
    return [
        f"{_MARKS[gate['verdict']]} {gate['verdict']}",
        # An expression is letters, digits and a few signs: the parser takes no other.
        f"`{safe(gate['expr'])}`",
        "" if value else _figure(gate["base"], gate["unit"]),
        _figure(gate["new"], gate["unit"]),
        "" if value else told(gate["change"]),
        interval,
        "" if gate["p_holm"] is None else f"{gate['p_holm']:.2g}",
        f"{gate['n_new']}" if value else f"{gate['n_base']} + {gate['n_new']}",
        "more than 1,000" if needed is None else str(needed),
    ]


def _figure(value: float | None, unit: str) -> str:
    return NOT_REPORTED if value is None else literal(amount(value, unit))


def _command(level: str, title: str, message: str) -> str:
    text = "\n".join(map(safe, message.split("\n")))
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    name = safe(title).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={name}::{text}"
