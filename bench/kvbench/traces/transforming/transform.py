"""`kvbench trace transform`: a subset, several traces in one, copies to scale the load; written tree by tree.

What copies share: everything that at least `shared_by` trees of the sources have, and the prompts that a trace itself
names as shared. What a tree has for itself is new in each further copy: block ids are numbered anew, text gets a marker
where it begins to differ from every other tree's. Lengths, outputs and what was recorded stay the source's.

Memory: some 150 bytes a distinct block, and a distinct message where there are copies; 100 a session.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from kvbench.errors import InputError
from kvbench.model import Session, SharedPrompt, TraceHeader, Tree, Turn, TurnRef, Warning
from kvbench.traces.native import TraceFile
from kvbench.traces.output import Write
from kvbench.traces.transforming.owners import Owners
from kvbench.traces.transforming.plan import Place, Plan, Transform
from kvbench.traces.transforming.texts import TextOwners
from kvbench.traces.write import header_line, prefix_line, turn_line

_MORE_HITS = 0.005
"""Copies that raise the ceiling hit rate by more than this share something that the sources' trees hardly do."""


class BlockCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Block ids of turns without content, over all their prompts. hit_blocks: what a prefix cache without a limit hits,
    each block from the second time on that it is sent: blocks - distinct."""

    blocks: int
    distinct: int
    hit_blocks: int
    hit_rate: float | None


class TransformReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the sources; counts are the result's, unless they are named as the sources' (all their trees)."""

    source_trees: int
    source_turns: int
    trees: int
    sessions: int
    turns: int
    copies: int
    shared_by: int
    shifts_s: tuple[float, ...]
    """How much later than the source the trees of each copy start."""
    pauses_capped: int
    renamed_sources: int
    """Sources whose sessions got other names, because an earlier source has one of them."""
    copies_without_private: int
    """Trees of further copies that have nothing for themselves: they send what the source's tree sends."""
    shared_blocks: int
    """Distinct blocks that copies share."""
    source_blocks: BlockCounts
    result_blocks: BlockCounts
    warnings: tuple[Warning, ...]


def transform(sources: Sequence[TraceFile], wanted: Transform, write: Write) -> TransformReport:
    """Write the lines of the result. Raises InputError or UsageError for what cannot be done with these sources."""
    block_size = _block_size(sources)
    plan = Plan(sources, wanted)
    work = _Work(sources, wanted)
    write(header_line(_header(sources, wanted, block_size)))
    for prompt in work.prompts:
        write(prefix_line(prompt))
    for place in plan.places():
        work.write_tree(place, write)
    return work.report(plan.shifts_s)


def _header(sources: Sequence[TraceFile], wanted: Transform, block_size: int | None) -> TraceHeader:
    names = [source.header.name or source.path.stem for source in sources]
    made = "; ".join(part for part in ("transformed from " + ", ".join(names), wanted.words()) if part)
    unknown = any(source.header.prefixes == "unknown" for source in sources)
    return TraceHeader(
        name="+".join(names),
        block_size=block_size,
        source=made,
        prefixes="unknown" if unknown else None,
        extra=sources[0].header.extra,
    )


def _block_size(sources: Sequence[TraceFile]) -> int | None:
    size: int | None = None
    first = sources[0]
    for source in sources:
        other = source.header.block_size
        if size is None:
            size, first = other, source
        elif other not in (None, size):
            raise InputError(
                f"has blocks of {other} tokens, and {first.path} has blocks of {size}: one trace cannot hold both",
                path=source.path,
                field="block_size",
                hint="merge traces of one block size",
            )
    return size


class _Work:
    def __init__(self, sources: Sequence[TraceFile], wanted: Transform) -> None:
        self._sources = sources
        self._wanted = wanted
        self._blocks = Owners()
        self._texts = TextOwners(wanted.shared_by)
        self._trees = self._sessions = self._turns = self._capped = self._same = 0
        self._source_sent = self._result_sent = 0
        self._new_ids = wanted.copies > 1 or (len(sources) > 1 and not wanted.same_ids)
        self._suffixes = _suffixes(self._read_sources(), wanted.copies)
        self.prompts, self._prompt_names = _prompts(sources)
        self._seen = bytearray(len(self._blocks) * wanted.copies)

    def _read_sources(self) -> list[set[str]]:
        """Count who has what; returns the names of each source's sessions."""
        names = [set[str]() for _ in self._sources]
        for number, s, tree in self._source_trees():
            for session in tree.sessions:
                names[s].add(session.session_id)
                held = 0
                for turn in session.turns:
                    held = _blocks_of(turn, held)
                    self._source_sent += held
                    for block in turn.hash_ids or ():
                        self._blocks.add(self._block(s, block), number)
                if self._wanted.copies > 1:
                    self._texts.count(session, self._sources[s].prefixes, number)
        if self._wanted.copies > 1:
            for number, s, tree in self._source_trees():
                for session in tree.sessions:
                    self._texts.compare(session, self._sources[s].prefixes, number)
        return names

    def _source_trees(self) -> Iterator[tuple[int, int, Tree]]:
        number = 0
        for s, source in enumerate(self._sources):
            for tree in source.trees():
                yield number, s, tree
                number += 1

    def _block(self, source: int, block: int) -> tuple[int, int]:
        """A block id and where it means something."""
        return (0 if self._wanted.same_ids else source), block

    def write_tree(self, place: Place, write: Write) -> None:
        source = self._sources[place.source]
        tree = source.read_tree(place.tree)
        own = False
        for session in tree.sessions:
            texts = self._copied_texts(session, source.prefixes, place.copy)
            own = own or bool(texts)
            held = 0
            for turn in session.turns:
                fields = self._renamed(turn, place) | self._timed(turn, place) | texts.get(turn.turn, {})
                if turn.hash_ids is not None:
                    held = _blocks_of(turn, held)
                    self._result_sent += held
                    fields["hash_ids"], new = self._ids(turn.hash_ids, place)
                    own = own or new
                write(turn_line(msgspec.structs.replace(turn, **fields)))
                self._turns += 1
        self._trees += 1
        self._sessions += len(tree.sessions)
        self._same += place.copy > 0 and not own

    def _copied_texts(
        self, session: Session, prefixes: dict[str, SharedPrompt], copy: int
    ) -> dict[int, dict[str, Any]]:
        return self._texts.copied(session, prefixes, f"[copy {copy + 1}] ") if copy else {}

    def _ids(self, ids: tuple[int, ...], place: Place) -> tuple[tuple[int, ...], bool]:
        """The ids of this copy, and whether one of them is no other copy's."""
        stride = len(self._blocks) * place.copy
        out, own = [], False
        for block in ids:
            thing = self._block(place.source, block)
            number = self._blocks.number(thing)
            if stride and self._blocks.trees(thing) < self._wanted.shared_by:
                number += stride
                own = True
            self._seen[number] = 1
            out.append(number if self._new_ids else block)
        return tuple(out), own

    def _timed(self, turn: Turn, place: Place) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if turn.turn == 0 and turn.parent is None and (turn.start_s is not None or place.start_s):
            fields["start_s"] = place.start_s
        limit_s = self._wanted.max_pause_s
        if limit_s is not None and turn.delay_s > limit_s:
            fields["delay_s"] = limit_s
            self._capped += 1
        if limit_s is not None and turn.recorded is not None:
            # the source's dates hold for the pauses that it had
            fields["recorded"] = msgspec.structs.replace(turn.recorded, at_s=None)
        return fields

    def _renamed(self, turn: Turn, place: Place) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if turn.prefix is not None:
            fields["prefix"] = self._prompt_names[place.source][turn.prefix]
        if suffix := self._suffixes[place.source][place.copy]:
            fields["session_id"] = turn.session_id + suffix
            fields["after"] = tuple(name + suffix for name in turn.after)
            if turn.parent is not None:
                fields["parent"] = TurnRef(turn.parent.session_id + suffix, turn.parent.turn)
        return fields

    def report(self, shifts_s: tuple[float, ...]) -> TransformReport:
        source = _counts(self._source_sent, len(self._blocks))
        result = _counts(self._result_sent, self._seen.count(1))
        return TransformReport(
            source_trees=sum(source.tree_count for source in self._sources),
            source_turns=sum(source.turn_count for source in self._sources),
            trees=self._trees,
            sessions=self._sessions,
            turns=self._turns,
            copies=self._wanted.copies,
            shared_by=self._wanted.shared_by,
            shifts_s=shifts_s,
            pauses_capped=self._capped,
            renamed_sources=sum(bool(group[0]) for group in self._suffixes),
            copies_without_private=self._same,
            shared_blocks=self._blocks.shared(self._wanted.shared_by),
            source_blocks=source,
            result_blocks=result,
            warnings=_doubts(source, result, self._wanted),
        )


def _blocks_of(turn: Turn, before: int) -> int:
    """How many block ids the prompt of `turn` has; the turn before it had `before`."""
    return 0 if turn.hash_ids is None else min(before, turn.keep_blocks or 0) + len(turn.hash_ids)


def _counts(blocks: int, distinct: int) -> BlockCounts:
    hits = blocks - distinct
    return BlockCounts(blocks=blocks, distinct=distinct, hit_blocks=hits, hit_rate=hits / blocks if blocks else None)


def _doubts(source: BlockCounts, result: BlockCounts, wanted: Transform) -> tuple[Warning, ...]:
    if wanted.copies == 1 or not source.blocks or not result.blocks:
        return ()
    if result.hit_blocks * source.blocks <= (source.hit_blocks + _MORE_HITS * source.blocks) * result.blocks:
        return ()
    return (
        Warning(
            code="copies_raise_hits",
            message=f"copies hit one another: what {wanted.shared_by} trees share, all their copies share",
            advice="where the requests of a conversation are trees of their own, raise --shared-by",
        ),
    )


def _suffixes(names: Sequence[set[str]], copies: int) -> list[list[str]]:
    """For each source and copy what is put behind its sessions' names, so that no name is there twice."""
    taken: set[str] = set()
    out: list[list[str]] = []
    for s, group in enumerate(names):
        base = "" if taken.isdisjoint(group) else f"@{s + 1}"
        suffixes = []
        for copy in range(copies):
            suffix = base + (f"~{copy + 1}" if copy else "")
            while any(name + suffix in taken for name in group):
                suffix += "~"
            taken.update(name + suffix for name in group)
            suffixes.append(suffix)
        out.append(suffixes)
    return out


def _prompts(sources: Sequence[TraceFile]) -> tuple[list[SharedPrompt], list[dict[str, str]]]:
    """The shared prompts of all sources, and what each source's names have become: equal prompts of a name are one."""
    kept: dict[str, SharedPrompt] = {}
    names: list[dict[str, str]] = []
    for s, source in enumerate(sources):
        renamed = {}
        for name, prompt in source.prefixes.items():
            new = name
            while new in kept and (kept[new].messages, kept[new].tools) != (prompt.messages, prompt.tools):
                new = f"{new}@{s + 1}"
            kept.setdefault(new, msgspec.structs.replace(prompt, name=new))
            renamed[name] = new
        names.append(renamed)
    return list(kept.values()), names
