"""Any trace into one of the formats that are written, streaming: a tree in memory at a time (for Mooncake, whose rows
stand by time, those that have begun and not ended)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, get_args

from kvbench.errors import UsageError
from kvbench.model import TraceHeader, Tree, Turn
from kvbench.traces.blocks import BlockedTrace, what_counts
from kvbench.traces.content_blocks import CHARS_PER_TOKEN
from kvbench.traces.formats.mooncake import DEFAULT_BLOCK_SIZE
from kvbench.traces.native import TraceFile
from kvbench.traces.output import Write
from kvbench.traces.tokenizers import Tokenizer
from kvbench.traces.write import header_line, prefix_line, turn_line
from kvbench.traces.writers import mooncake, report, weka
from kvbench.traces.writers.anonymous import Anonymous
from kvbench.traces.writers.hashing import HashedTrees
from kvbench.traces.writers.ids import BlockIds, KeptIds, KeyedIds, NumberedIds
from kvbench.traces.writers.order import in_time_order
from kvbench.traces.writers.report import ExportReport
from kvbench.traces.writers.survey import Survey, survey

Target = Literal["native", "mooncake", "weka"]
TARGETS: tuple[Target, ...] = get_args(Target)

_UNITS: dict[Target, str] = {"native": "line", "mooncake": "row", "weka": "trace"}
_SAID = {
    "one_model": "turns that name the trace's only model: {n}",
    "usage_fields": "fields of recorded usage that are no known counts: {n}",
}


_LENGTHS_ALONE = "not known: the source has lengths alone, and the ids are made up"
_UNKNOWN_PREFIXES: dict[Target, str] = {
    "native": f"{_LENGTHS_ALONE}; the header says so",
    "mooncake": f"{_LENGTHS_ALONE}; the file cannot say so, and whoever reads it will find that no prompts begin alike",
    "weka": f"{_LENGTHS_ALONE}; the file cannot say so, and whoever reads it will find that no prompts begin alike",
}


class _Sums:
    """Sums of lengths; None once a turn does not say."""

    def __init__(self) -> None:
        self.input_tokens: int | None = 0
        self.output_tokens: int | None = 0

    def add(self, turn: Turn) -> None:
        self.input_tokens = _sum(self.input_tokens, turn.input_tokens)
        self.output_tokens = _sum(self.output_tokens, turn.output_tokens)


def _sum(total: int | None, more: int | None) -> int | None:
    return None if total is None or more is None else total + more


class Conversion:
    """How an open trace is to be written. Raises UsageError for options that go against it, or each other.

    block_size, tokenizer: for turns whose text becomes ids (default: the target's block size, and 4 characters a
    token). key: ids are hashes under it, instead of numbers (read_key).
    """

    def __init__(
        self,
        trace: TraceFile,
        target: Target,
        *,
        anonymise: bool = False,
        block_size: int | None = None,
        tokenizer: Tokenizer | None = None,
        key: bytes | None = None,
    ) -> None:
        self._trace = trace
        self._target = target
        self._anonymise = anonymise
        self._tokenizer = tokenizer
        hashes = anonymise or target != "native"
        if key is not None and not anonymise:
            raise UsageError("--key-file: only --anonymise hashes with a key", hint="add --anonymise, or leave it out")
        if key is not None and target == "weka":
            raise UsageError(
                "--key-file: ids in a Weka trace are local to it and numbered from 1, so no key can make them agree",
                hint="leave it out, or convert --to native or mooncake",
            )
        if not hashes and (block_size is not None or tokenizer is not None):
            raise UsageError(
                f"{'--tokenizer' if block_size is None else '--block-size'}: a native trace keeps its texts, and "
                "nothing is cut into blocks",
                hint="add --anonymise, or --to mooncake or weka",
            )
        self._found = survey(trace) if hashes else Survey()
        if hashes and not self._found.with_text and tokenizer is not None:
            raise UsageError(
                "--tokenizer: no turn of the trace has text; lengths and ids are the trace's own",
                hint="leave it out",
            )
        if target == "mooncake" and not trace.has_hash_ids:
            block_size = block_size or DEFAULT_BLOCK_SIZE
        self._blocked = BlockedTrace(trace, block_size=block_size, tokenizer=tokenizer)
        self._ids = self._block_ids(key)
        self._hashed = HashedTrees(self._blocked, self._ids)
        keep_models = target == "weka" or len(self._found.models) > 1
        self._anonymous = Anonymous(self._found.models, keep_models=keep_models)

    def write(self, write: Write) -> ExportReport:
        """Write the whole trace, piece by piece."""
        if self._target == "mooncake":
            return self._mooncake(write)
        if self._target == "weka":
            return self._weka(write)
        return self._hashed_native(write) if self._anonymise else self._native(write)

    def _block_ids(self, key: bytes | None) -> BlockIds:
        if key is not None:
            tokens = f"{CHARS_PER_TOKEN} characters" if self._tokenizer is None else self._tokenizer.name
            return KeyedIds(key, f"{self._blocked.block_size}\0{tokens}", self._trace.sha256)
        if self._anonymise or self._found.with_text:
            return NumberedIds()
        return KeptIds(self._found.largest_id)

    def _tree(self, i: int) -> Tree:
        tree = self._hashed.tree(i)
        return self._anonymous.tree(tree, i) if self._anonymise else tree

    def _trees(self) -> Iterator[Tree]:
        return (self._tree(i) for i in range(self._trace.tree_count))

    def _native(self, write: Write) -> ExportReport:
        trace = self._trace
        write(header_line(trace.header))
        lines = 1
        for prompt in trace.prefixes.values():
            write(prefix_line(prompt))
            lines += 1
        sums = _Sums()
        for tree in trace.trees():
            for session in tree.sessions:
                for turn in session.turns:
                    write(turn_line(turn))
                    sums.add(turn)
        return ExportReport(
            format="native",
            unit="line",
            units=lines + trace.turn_count,
            sessions=trace.session_count,
            turns=trace.turn_count,
            input_tokens=sums.input_tokens,
            output_tokens=sums.output_tokens,
            block_size=trace.header.block_size if trace.has_hash_ids else None,
        )

    def _hashed_native(self, write: Write) -> ExportReport:
        found, anonymous = self._found, self._anonymous
        header = TraceHeader(
            name="anonymous",
            block_size=self._blocked.block_size,
            source=f"anonymised; lengths: {self._lengths()}",
            prefixes=self._trace.header.prefixes,
        )
        write(header_line(header))
        sums = _Sums()
        for tree in self._trees():
            for session in tree.sessions:
                for turn in session.turns:
                    write(turn_line(turn))
                    sums.add(turn)
        lost = {
            "texts": found.with_text,
            "tools": found.with_tools,
            "one_model": 0 if anonymous.keeps_models else found.with_model,
            "usage_fields": anonymous.usage_fields,
            "extra": found.head_extra + anonymous.extra_fields,
        }
        return self._report(sums, 1 + found.turns, {}, lost)

    def _mooncake(self, write: Write) -> ExportReport:
        found = self._found
        several = found.turns > found.sessions
        rows = mooncake.MooncakeRows(self._blocked.block_size, self._ids, sessions=several)
        sums = _Sums()
        for placed in in_time_order(self._trace.trees(), self._tree):
            write(rows.row(placed))
            sums.add(placed.turn)
        notes = {"tails": rows.tails, "no_output": found.without_output}
        return self._report(sums, found.turns, notes, mooncake.lost(found))

    def _weka(self, write: Write) -> ExportReport:
        traces = weka.WekaTraces(self._blocked.block_size, str(self._trace.path))
        sums = _Sums()
        for tree in self._trees():
            write(traces.line(tree))
            for session in tree.sessions:
                for turn in session.turns:
                    sums.add(turn)
        traces.lost.update(weka.lost(self._found))
        traces.lost["extra"] += self._anonymous.extra_fields
        return self._report(sums, self._found.trees, traces.notes, traces.lost)

    def _report(self, sums: _Sums, units: int, notes: Mapping[str, int], lost: Mapping[str, int]) -> ExportReport:
        notes = {
            "other_parts": self._blocked.other_parts,
            "empty_prompts": self._hashed.empty_prompts,
            **notes,
        }
        said = report.SAID | _SAID | (mooncake.SAID if self._target == "mooncake" else weka.SAID)
        return ExportReport(
            format=self._target,
            unit=_UNITS[self._target],
            units=units,
            sessions=self._found.sessions,
            turns=self._found.turns,
            input_tokens=sums.input_tokens,
            output_tokens=sums.output_tokens,
            anonymised=self._anonymise,
            block_size=self._blocked.block_size,
            facts=self._facts(),
            notes={code: n for code, n in notes.items() if n},
            lost={code: n for code, n in lost.items() if n},
            said={code: said[code] for code, n in {**notes, **lost}.items() if n},
        )

    def _lengths(self) -> str:
        found = self._found
        return what_counts(self._tokenizer, hashed=found.with_hash_ids > 0, text=found.with_text > 0)

    def _facts(self) -> dict[str, str]:
        facts = {"lengths": self._lengths(), "block size": str(self._blocked.block_size), "ids": self._ids.about}
        if self._blocked.text_said_tokens:
            facts["lengths the source has"] = self._other_lengths()
        if self._trace.header.prefixes == "unknown":
            facts["prefixes"] = _UNKNOWN_PREFIXES[self._target]
        if self._target == "mooncake":
            facts["block size"] += mooncake.block_size_doubt(self._blocked.block_size)
        if self._target == "weka":
            facts["ids"] = "numbered from 1 in each trace, by first appearance"
        if self._anonymise:
            facts["names"] = self._anonymous.about
        return facts

    def _other_lengths(self) -> str:
        """Logs often leave out what every prompt begins with: whoever reads the report should see how much."""
        said, counted = self._blocked.text_said_tokens, self._blocked.text_rendered_tokens
        doubt = "; texts that it does not hold are in neither lengths nor ids" if counted < said else ""
        return f"{said:,} tokens for the turns with text that say theirs, counted as {counted:,} here{doubt}"
