"""What bringing a trace of another format into the native one took over, rebuilt, guessed or left out."""

from __future__ import annotations

import msgspec

_NOTES = {
    "zero_output": "requests without output tokens: {n} (each asks for 1, the least an endpoint can give)",
    "clipped_pauses": "requests that began before the one they follow had ended: {n} (they follow without a pause)",
    "pauses_with_answer": "pauses that hold the answer's own time too: {n} (the trace does not say how long it took)",
    "no_pause_known": "requests with neither a time nor a pause: {n} (they follow at once)",
    "joined": "sub-agents that ended before their parent's next request: {n} (it waits for them)",
    "not_joined": "sub-agents that ran on beside their parent: {n} (nothing waits for them)",
    "started_early": "sub-agents that began while the request before them still ran: {n} (they start at its end)",
    "own_root": "sub-agents that began before their parent's first request: {n} (they start on their own, as roots)",
    "totals_differ": "traces whose totals are not the sums of their requests: {n}",
    "renamed": "sessions whose name was taken: {n} (each got another)",
    "surrogates": "halves of surrogate pairs replaced by U+FFFD: {n}",
    "out_of_order": "rows earlier than the row before: {n} (arrivals follow the timestamps; those of one timestamp, "
    "--sessions and --rate follow the file)",
    "hash_ids_left_out": "rows with messages and hash ids: {n} (the messages are sent)",
    "answers_missing": "rows that add messages without the answer before them: {n} (--history live puts it in)",
    "row_extra": "rows with request fields of their own (extra): {n} (kept, and not sent)",
    "empty_trace": "left out, traces without any request: {n}",
    "empty_subagent": "left out, sub-agents without any request: {n}",
}


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a foreign trace became a native one. Counts of 0 are left out of `notes` and `dropped`.

    units: traces (weka) or rows (mooncake) in the source. nested_t and marker count sub-agents by the reading taken.
    notes: what was rebuilt or guessed. dropped: what was left out. Codes are those of `sentences`.
    """

    format: str
    files: int
    units: int
    sessions: int
    turns: int
    block_size: int | None
    block_size_from: str
    sub_agents: int = 0
    nested_t_asked: str | None = None
    nested_t: dict[str, int] = {}
    marker: dict[str, int] = {}
    notes: dict[str, int] = {}
    dropped: dict[str, int] = {}

    def sentences(self) -> list[str]:
        """The report for people: what was read first, then what was changed, each sentence with its count."""
        unit = "trace" if self.format == "weka" else "row"
        files = "" if self.files == 1 else f" in {_count(self.files, 'file')}"
        agents = f" ({_count(self.sub_agents, 'sub-agent')} among them)" if self.sub_agents else ""
        sessions = _count(self.sessions, "session")
        out = [f"{self.format}: {_count(self.units, unit)}{files}; {sessions}{agents}, {_count(self.turns, 'turn')}"]
        if self.block_size is not None:
            out.append(f"block size {self.block_size} ({self.block_size_from})")
        if self.format == "weka" and self.units > 1:
            out.append(
                "block ids count on through the file, because each trace has its own; every trace starts at its own "
                "time 0 (--sessions or --rate spread them)"
            )
        if self.nested_t:
            readings = ", ".join(f"{how} in {n:,}" for how, n in sorted(self.nested_t.items()))
            asked = "as asked" if self.nested_t_asked != "auto" else "the reading that fits; --nested-t says otherwise"
            out.append(f"times inside sub-agents: {readings} ({asked})")
        if self.marker:
            readings = ", ".join(f"its {where} in {n:,}" for where, n in sorted(self.marker.items()))
            out.append(f"the time of a sub-agent's entry is {readings}")
        counts = {**self.notes, **self.dropped}
        out.extend(text.format(n=f"{counts[code]:,}") for code, text in _NOTES.items() if code in counts)
        return out


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
