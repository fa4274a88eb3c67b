"""What writing a trace in another format, or without its texts, took over, made up or left out."""

from __future__ import annotations

import msgspec

from kvbench.traces.import_report import count_of

SAID = {
    "texts": "turns with text: {n} (the ids of its blocks are there, tool schemas included)",
    "tools": "turns with tool schemas beside their ids: {n}",
    "usage": "turns with recorded usage: {n}",
    "extra": "fields that the native format does not know: {n}",
    "other_parts": "parts of messages that are not text: {n} (each stands as 1 token)",
    "empty_prompts": "prompts without any text: {n} (each stands as 1 token)",
}
"""Sentences that several targets have in common."""


class ExportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was written. Counts of 0 are left out of `notes` and `lost`.

    units: what the target consists of (lines, rows, traces), named by `unit`. input_tokens, output_tokens: sums over
    what was written; None where a turn does not say. facts: what holds for all of it (lengths, ids), by name. notes:
    what was made up or read otherwise, lost: what the target does not hold, counted by code; `said` has the sentence
    for each code.
    """

    format: str
    unit: str
    units: int
    sessions: int
    turns: int
    input_tokens: int | None = None
    output_tokens: int | None = None
    anonymised: bool = False
    block_size: int | None = None
    facts: dict[str, str] = {}
    notes: dict[str, int] = {}
    lost: dict[str, int] = {}
    said: dict[str, str] = {}

    def sentences(self) -> list[str]:
        """The report for people: what was written, then what it was made of, then what is not in it."""
        what = (
            f"{count_of(self.units, self.unit)}, {count_of(self.sessions, 'session')}, {count_of(self.turns, 'turn')}"
        )
        out = [f"{self.format}: {what}" + (", anonymised" if self.anonymised else "")]
        out.extend(f"{name}: {fact}" for name, fact in self.facts.items())
        out.extend(self._counted(self.notes))
        out.extend(f"left out, {sentence}" for sentence in self._counted(self.lost))
        return out

    def _counted(self, counts: dict[str, int]) -> list[str]:
        return [self.said[code].format(n=f"{n:,}") for code, n in counts.items()]
