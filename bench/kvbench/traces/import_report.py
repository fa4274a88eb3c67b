"""What bringing a trace of another format into the native one took over, rebuilt, guessed or left out."""

from __future__ import annotations

import msgspec


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """One thing of the source that is not in the trace. line 0: the file as a whole."""

    line: int
    reason: str
    file: str | None = None


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a foreign trace became a native one. Counts of 0 are left out of `notes` and `dropped`.

    units: what the source consists of (traces, rows, requests ...), named by `unit`. facts: what holds for all of it
    (time base, scope of ids, tokenizer), by name. notes: what was rebuilt or guessed, dropped: what was left out,
    counted by code; `said` has the sentence for each code. dropped_lines: the first of what was left out.
    nested_t and marker count Weka's sub-agents by the reading taken.
    """

    format: str
    files: int
    unit: str
    units: int
    sessions: int
    turns: int
    block_size: int | None = None
    block_size_from: str = ""
    sub_agents: int = 0
    facts: dict[str, str] = {}
    nested_t: dict[str, int] = {}
    marker: dict[str, int] = {}
    notes: dict[str, int] = {}
    dropped: dict[str, int] = {}
    dropped_lines: tuple[Dropped, ...] = ()
    said: dict[str, str] = {}

    def sentences(self) -> list[str]:
        """The report for people: what was read first, then what was changed, each sentence with its count."""
        files = "" if self.files == 1 else f" in {count_of(self.files, 'file')}"
        agents = f" ({count_of(self.sub_agents, 'sub-agent')} among them)" if self.sub_agents else ""
        sessions = count_of(self.sessions, "session")
        units = count_of(self.units, self.unit)
        out = [f"{self.format}: {units}{files}; {sessions}{agents}, {count_of(self.turns, 'turn')}"]
        if self.block_size is not None:
            out.append(f"block size {self.block_size} ({self.block_size_from})")
        out.extend(f"{name}: {fact}" for name, fact in self.facts.items())
        out.extend(self._counted(self.notes))
        out.extend(f"left out, {sentence}" for sentence in self.left_out())
        return out

    def left_out(self) -> list[str]:
        """What is not in the trace, each with its count."""
        return self._counted(self.dropped)

    def _counted(self, counts: dict[str, int]) -> list[str]:
        return [self.said.get(code, code + ": {n}").format(n=f"{n:,}") for code, n in counts.items()]


def count_of(number: int, noun: str) -> str:
    """A count with its noun, in the singular where it is one."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
