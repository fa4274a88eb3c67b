"""What a trace is like, in numbers: lengths, pauses, fan-out, and what its prompts share, each as a list of values.

Sharing is read in blocks, in trace time. A prompt's leading blocks that were sent before, by anybody, are what it could
hit; the session that last listed the deepest of them is the one it begins with. So every block is either new or in
exactly one class, and the ceiling hit rate of an unbounded cache is (blocks - distinct) / blocks.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Literal

import msgspec

from kvbench.model import Tree
from kvbench.traces.blocks import BlockedTrace, BlockRequest

With = Literal["nothing", "previous", "session", "parent", "sibling", "root", "sub_agent"]


class BeginSample(msgspec.Struct, frozen=True):
    """A prompt that does not just add to the one before.

    blocks: leading ones that were sent before. lag: that many sessions of the kind back. dropped: blocks of the
    previous turn that are gone; length_share: its length in the previous turn's. whole: all whole blocks of the other
    session's last prompt are shared. others: sessions of other trees were there to begin with; siblings: of its own.
    """

    with_: With
    turn: int
    blocks: int
    lag: int
    dropped: int
    new_tokens: int
    length_share: float
    whole: bool
    others: bool
    siblings: bool


class SpawnSample(msgspec.Struct, frozen=True):
    """Sub-agents called by one turn. can_join: there is a turn after it."""

    turn: int
    children: int
    joined: int
    can_join: bool


class KindSample(msgspec.Struct):
    """Sessions of one kind. Values by turn are one list a session, of (turn, value)."""

    turns: list[int] = []
    begins: list[BeginSample] = []
    growth: list[list[tuple[int, int]]] = []
    output: list[list[tuple[int, int]]] = []
    pause_s: list[list[tuple[int, float]]] = []
    cuts: list[BeginSample] = []
    after: list[tuple[int, BeginSample | None]] = []
    """For each turn after one of at least a whole block: tokens of that one, and how this one cuts it, if it does."""
    turn_numbers: Counter[int] = msgspec.field(default_factory=Counter)
    """How many sessions have each turn."""
    spawns: list[SpawnSample] = []
    first_delay_s: list[float] = []
    """Sub-agents: from the end of the turn that calls them to their first request."""


class Sample(msgspec.Struct):
    block_size: int
    tokens: str
    """What counts them, in words."""
    root: KindSample
    sub_agent: KindSample
    gap_s: list[float] = []
    input_tokens: list[int] = []
    shared_by: list[int] = []
    """For each distinct block that several trees sent: how many."""
    blocks: int = 0
    distinct: int = 0
    partial_tail: bool = False
    depth: int = 1

    @property
    def ceiling(self) -> float | None:
        """Share of blocks that a prefix cache without a limit hits."""
        return (self.blocks - self.distinct) / self.blocks if self.blocks else None


def sample(blocked: BlockedTrace) -> Sample:
    """Read a trace twice. Memory: some 200 bytes a distinct block."""
    out = Sample(blocked.block_size, "", KindSample(), KindSample())
    starts = sorted(entry.start_s for entry in blocked.trace.tree_entries)
    out.gap_s = [round(after - before, 3) for before, after in pairwise(starts)]
    parents: dict[str, str] = {}
    for tree in blocked.trace.trees():
        _add_tree(tree, out, parents)
    sharing = _Sharing(out, parents)
    for request, chain in blocked.in_order():
        sharing.add(request, chain)
    sharing.finish()
    out.tokens = blocked.blocking().tokens
    return out


def _add_tree(tree: Tree, out: Sample, parents: dict[str, str]) -> None:
    """Everything but what is shared."""
    called: dict[tuple[str, int], list[str]] = {}
    depth = {tree.root_id: 1}
    for session in tree.sessions:
        if session.parent is not None:
            parents[session.session_id] = session.parent.session_id
            called.setdefault((session.parent.session_id, session.parent.turn), []).append(session.session_id)
    for session in tree.sessions:
        name, level = session.session_id, 1
        while name in parents and name not in depth:
            name, level = parents[name], level + 1
        depth[session.session_id] = level + depth.get(name, 1) - 1
        kind = out.root if session.parent is None else out.sub_agent
        kind.turns.append(len(session.turns))
        kind.turn_numbers.update(range(len(session.turns)))
        kind.output.append(
            [(turn.turn, turn.output_tokens) for turn in session.turns if turn.output_tokens is not None]
        )
        kind.pause_s.append([(turn.turn, turn.delay_s) for turn in session.turns[1:]])
        if session.parent is not None:
            kind.first_delay_s.append(session.turns[0].delay_s)
        for turn in session.turns:
            children = called.get((session.session_id, turn.turn), [])
            if children:
                last = turn.turn + 1 == len(session.turns)
                after = () if last else session.turns[turn.turn + 1].after
                joined = sum(child in after for child in children)
                kind.spawns.append(SpawnSample(turn.turn, len(children), joined, not last))
    out.depth = max(out.depth, max(depth.values()))


class _Seen(msgspec.Struct):
    """One session so far. nodes: its last prompt's blocks; number: of its kind, in order of first requests."""

    name: str
    tree: str
    kind: Literal["root", "sub_agent"]
    number: int
    nodes: list[int] = []
    tokens: int = 0
    growth: list[tuple[int, int]] = []


class _Sharing:
    """The tree of all prefixes sent so far: a node is a block after all blocks before it."""

    def __init__(self, out: Sample, parents: dict[str, str]) -> None:
        self._out = out
        self._parents = parents
        self._sessions: dict[str, _Seen] = {}
        self._nodes: dict[tuple[int, int], int] = {}
        self._last: list[_Seen] = []
        """The session that last listed each node."""
        self._trees: list[int] = []
        """How many trees sent each node."""
        self._last_tree: list[str] = []
        self._count = {"root": 0, "sub_agent": 0}
        self._in_tree: Counter[str] = Counter()

    def add(self, request: BlockRequest, chain: list[int]) -> None:
        out, size = self._out, self._out.block_size
        seen = self._sessions.get(request.session_id)
        first = seen is None
        others = self._count["root"] + self._count["sub_agent"] > self._in_tree[request.root_id]
        siblings = self._in_tree[request.root_id] > 1
        if seen is None:
            kind: Literal["root", "sub_agent"] = "sub_agent" if request.sub_agent else "root"
            seen = _Seen(request.session_id, request.root_id, kind, self._count[kind])
            self._sessions[request.session_id] = seen
            self._count[kind] += 1
            self._in_tree[request.root_id] += 1
        before = seen.nodes
        nodes, sent_before, giver = self._walk(seen, chain, request.kept)
        kept = _common(before, nodes)
        full = min(len(before), seen.tokens // size)
        out.blocks += len(chain)
        out.input_tokens.append(request.input_tokens)
        out.partial_tail = out.partial_tail or len(chain) * size > request.input_tokens
        group = out.root if seen.kind == "root" else out.sub_agent
        cut: BeginSample | None = None
        if not first and kept >= full and sent_before == kept:
            # Of a prompt without a whole block nobody can tell whether it was kept: a shorter one did not grow.
            if full or request.input_tokens >= seen.tokens:
                seen.growth.append((request.turn, max(0, request.input_tokens - seen.tokens)))
        else:
            with_, lag = self._class(seen, giver, sent_before, kept, first)
            begin = BeginSample(
                with_,
                request.turn,
                sent_before,
                lag,
                max(0, full - sent_before),
                max(0, request.input_tokens - sent_before * size),
                round(request.input_tokens / seen.tokens, 4) if seen.tokens else 1.0,
                giver is not None and sent_before >= max(1, min(len(giver.nodes), giver.tokens // size)),
                others,
                siblings,
            )
            (group.begins if first else group.cuts).append(begin)
            cut = begin
        if full:
            group.after.append((seen.tokens, cut))
        seen.nodes, seen.tokens = nodes, request.input_tokens

    def _walk(self, seen: _Seen, chain: list[int], kept: int) -> tuple[list[int], int, _Seen | None]:
        """(nodes of the chain, how many leading ones were sent before, the session that last listed the deepest)"""
        nodes = seen.nodes[:kept]
        at = nodes[-1] if nodes else -1
        sent_before = len(nodes)
        giver = self._last[at] if nodes else None
        for block in chain[kept:]:
            key = (at, block)
            node = self._nodes.get(key)
            if node is None:
                node = self._nodes[key] = len(self._last)
                self._last.append(seen)
                self._trees.append(1)
                self._last_tree.append(seen.tree)
            else:
                sent_before += 1
                giver = self._last[node]
                self._last[node] = seen
                if self._last_tree[node] != seen.tree:
                    self._trees[node] += 1
                    self._last_tree[node] = seen.tree
            nodes.append(node)
            at = node
        return nodes, sent_before, giver

    def _class(self, seen: _Seen, giver: _Seen | None, sent_before: int, kept: int, first: bool) -> tuple[With, int]:
        if not sent_before or giver is None:
            return "nothing", 0
        if not first and sent_before == kept:
            return "previous", 0
        if giver is seen:
            return "session", 0
        if giver.name == self._parents.get(seen.name):
            return "parent", 0
        if giver.tree == seen.tree:
            return "sibling", 0
        return giver.kind, max(1, self._count[giver.kind] - giver.number - (giver.kind == seen.kind and first))

    def finish(self) -> None:
        self._out.distinct = len(self._last)
        self._out.shared_by = [count for count in self._trees if count > 1]
        for seen in self._sessions.values():
            group = self._out.root if seen.kind == "root" else self._out.sub_agent
            group.growth.append(seen.growth)


def _common(a: list[int], b: list[int]) -> int:
    high = min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    return next(i for i in range(high) if a[i] != b[i])
