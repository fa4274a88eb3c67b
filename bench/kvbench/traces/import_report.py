"""What bringing a trace of another format into the native one took over, rebuilt, guessed or left out."""

from __future__ import annotations

import msgspec

_NOTES = {
    "zero_output": "{n} requests had no output tokens; each asks for 1, the least an endpoint can give",
    "clipped_pauses": "{n} requests began before the one they follow had ended; they follow without a pause",
    "pauses_with_answer": "{n} pauses hold the answer's own time too, because the trace does not say how long it took",
    "no_pause_known": "{n} requests have neither a time nor a pause; they follow at once",
    "joined": "{n} sub-agents ended before their parent's next request, which waits for them",
    "not_joined": "{n} sub-agents ran on beside their parent; nothing waits for them",
    "started_early": "{n} sub-agents began while the request before them still ran; they start when it has ended",
    "own_root": "{n} sub-agents began before their parent's first request; they start on their own, as roots",
    "totals_differ": "{n} traces have totals that are not the sums of their requests",
    "renamed": "{n} sessions had a name that was taken, and got another",
    "surrogates": "{n} halves of surrogate pairs were replaced by U+FFFD",
    "out_of_order": "{n} rows are earlier than the row before; arrivals follow the timestamps, rows of the same "
    "timestamp (and --sessions and --rate) the file",
    "hash_ids_left_out": "{n} rows have messages and hash ids; the messages are sent",
    "answers_missing": "{n} rows add messages without the answers before them; --history live puts those in",
    "row_extra": "{n} rows have request fields of their own (extra); they are kept, and not sent",
}
_DROPPED = {
    "empty_trace": "traces without any request",
    "empty_subagent": "sub-agents without any request",
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
        unit = "traces" if self.format == "weka" else "rows"
        files = "" if self.files == 1 else f" in {self.files:,} files"
        agents = f", {self.sub_agents:,} of them sub-agents" if self.sub_agents else ""
        out = [
            f"{self.format}: {self.units:,} {unit}{files}; {self.sessions:,} sessions{agents}, {self.turns:,} turns",
        ]
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
        out.extend(text.format(n=f"{self.notes[code]:,}") for code, text in _NOTES.items() if code in self.notes)
        out.extend(
            f"left out: {self.dropped[code]:,} {text}" for code, text in _DROPPED.items() if code in self.dropped
        )
        return out
