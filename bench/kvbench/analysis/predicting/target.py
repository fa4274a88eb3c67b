"""What is to be predicted: the turns of a trace, or of a run's trace, each with its chain of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvbench.analysis.predicting.load import Planned
from kvbench.errors import RefusedError
from kvbench.model import Record, Tree
from kvbench.runs.blocks import BlockRow, read_blocks
from kvbench.runs.reader import Run
from kvbench.runs.writer import TRACE_FILE
from kvbench.traces.blocks import BlockedTrace
from kvbench.traces.importing import open_workload

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Key = tuple[str, int]
"""(session id, turn)"""


@dataclass(frozen=True)
class Target:
    """Turns in file order. rows: the blocks of each; records: of the run it was, by turn, where there was one."""

    name: str
    planned: tuple[Planned, ...]
    starts_s: tuple[float, ...]
    rows: tuple[BlockRow, ...]
    roots: tuple[str, ...]
    input_tokens: Ints
    output_tokens: Ints
    takes_s: Floats
    """From sending to the last token, as it was recorded; 0 where nothing was."""
    records: tuple[Record, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def trees(self) -> int:
        return len(self.starts_s)

    @property
    def block_size(self) -> int:
        return self.rows[0].block_size


def target_of_run(run: Run) -> Target:
    """The turns that a run sent. RefusedError where it has no blocks, or turns without an answer."""
    rows = {row.request_id: row for row in read_blocks(run.path)}
    if not rows:
        raise RefusedError(
            f"{run.path}: the run does not hold its prompts' blocks, so nothing says what would be found of them",
            hint="kvbench run on a server with /tokenize, with a block rule ([expected_hits])",
        )
    final = {(r.session_id, r.turn): r for r in run.records if r.final}
    made = _Maker()
    kept: list[tuple[BlockRow, Record]] = []
    with open_workload(run.path / TRACE_FILE) as trace:
        for tree in trace.trees():
            for key in made.add(tree):
                record = final.get(key)
                row = None if record is None else rows.get(record.request_id)
                if record is None or row is None or not record.ok:
                    raise RefusedError(
                        f"{run.path}: turn {key[1]} of session {key[0]} was not answered: the run cannot be thought of "
                        "at another load",
                        hint="predict from a run whose turns were all answered",
                    )
                kept.append((row, record))
    return Target(
        name=run.info.name,
        planned=tuple(made.planned),
        starts_s=tuple(made.starts_s),
        rows=tuple(row for row, _ in kept),
        roots=tuple(record.root_id or record.session_id for _, record in kept),
        input_tokens=np.array([row.input_tokens for row, _ in kept], np.int64),
        output_tokens=np.array([r.usage.output_tokens or max(1, len(r.clock.chunks)) for _, r in kept], np.int64),
        takes_s=np.array([_took_s(record) for _, record in kept]),
        records=tuple(record for _, record in kept),
    )


def block_size_of(run: Path) -> int | None:
    """Of the blocks that a run's prompts were cut into; None where it has none."""
    return next((row.block_size for row in read_blocks(run)), None)


def target_of_trace(blocked: BlockedTrace) -> Target:
    """The turns of an open trace, cut into blocks as `blocked` has it."""
    if blocked.trace.header.prefixes == "unknown":
        raise RefusedError(
            f"{blocked.trace.path}: arrivals and lengths alone; which prompts begin alike is not known",
            hint="a source with hash ids or text can be predicted",
        )
    made = _Maker()
    rows: list[BlockRow] = []
    outputs: list[int] = []
    takes_s: list[float] = []
    roots: list[str] = []
    for tree in blocked.trace.trees():
        keys = made.add(tree)
        found: dict[Key, BlockRow] = {}
        answers: dict[Key, tuple[int, float]] = {}
        for request in blocked.tree(tree):
            key = (request.session_id, request.turn)
            found[key] = BlockRow(
                request_id=f"{request.session_id}/{request.turn}",
                session_id=request.session_id,
                block_size=blocked.block_size,
                input_tokens=request.input_tokens,
                own=request.input_tokens // blocked.block_size,
                kept=request.kept,
                new=list(request.new_ids),
            )
            answers[key] = (request.output_tokens or 1, request.end_s - request.start_s)
        for key in keys:
            rows.append(found[key])
            outputs.append(answers[key][0])
            takes_s.append(answers[key][1])
            roots.append(tree.root_id)
    if not rows:
        raise RefusedError(f"{blocked.trace.path}: there is no turn in it")
    return Target(
        name=blocked.trace.header.name or Path(blocked.trace.path).stem,
        planned=tuple(made.planned),
        starts_s=tuple(made.starts_s),
        rows=tuple(rows),
        roots=tuple(roots),
        input_tokens=np.array([row.input_tokens for row in rows], np.int64),
        output_tokens=np.array(outputs, np.int64),
        takes_s=np.array(takes_s),
        notes=(f"blocks of {blocked.block_size} tokens: {blocked.blocking().tokens}",),
    )


def _took_s(record: Record) -> float:
    sent, end = record.clock.sent, record.clock.end
    return 0.0 if sent is None or end is None else (end - sent) / 1e9


class _Maker:
    """Turns in file order, by session, each with what it waits for."""

    def __init__(self) -> None:
        self.planned: list[Planned] = []
        self.starts_s: list[float] = []

    def add(self, tree: Tree) -> list[Key]:
        number, first = len(self.starts_s), len(self.planned)
        self.starts_s.append(tree.start_s)
        keys = list(_keys(tree))
        at = {key: first + i for i, key in enumerate(keys)}
        last = {session.session_id: len(session.turns) - 1 for session in tree.sessions}
        for session in tree.sessions:
            for turn in session.turns:
                waits = [at[name, last[name]] for name in turn.after]
                if turn.turn:
                    waits.append(at[session.session_id, turn.turn - 1])
                elif turn.parent is not None:
                    waits.append(at[turn.parent.session_id, turn.parent.turn])
                self.planned.append(Planned(number, tuple(dict.fromkeys(waits)), turn.delay_s))
        return keys


def _keys(tree: Tree) -> Iterator[Key]:
    for session in tree.sessions:
        for turn in session.turns:
            yield session.session_id, turn.turn
