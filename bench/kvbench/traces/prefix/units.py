"""Hits on DeepSeek's prefix units (rule `units`; see UnitsRule for what of it is documented and what assumed).

A request leaves a unit where its prompt ends and one where its output ends. Where it parts from an earlier request the
common prefix becomes a unit too, which this request does not yet hit: A+B, A+C, A+D is miss, miss, hit on A.

Floor: the longest unit that the prompt wholly begins with, that was built (its last token surely computed, build_s ago
when this request was sent) and that nobody left unused for lifetime_s since. Ceiling: the longest unit of whose tokens,
rounded down to whole granules, the prompt begins with all, and whose makers were sent before this request's first
token. Where the ids of an output are not known, its unit raises only the ceiling, and only if the re-sent text is long
enough to hold it.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kvbench.model import Expectation
from kvbench.traces.prefix.radix import Node, grow, match, split
from kvbench.traces.prefix.rules import FAR_NS, Sent, UnitsRule

BEST_EFFORT = "units are built, found and kept best effort"


@dataclass(slots=True)
class _Seen:
    """Who did a thing first, and the first other one: for each request, when another one did."""

    holder: str | None = None
    first_ns: int = FAR_NS
    other_ns: int = FAR_NS

    def add(self, key: str, at_ns: int) -> None:
        if self.holder is None:
            self.holder, self.first_ns = key, at_ns
        elif key != self.holder and at_ns < self.other_ns:
            self.other_ns = at_ns

    def by_others(self, key: str) -> int:
        return self.other_ns if key == self.holder else self.first_ns

    def copy(self) -> _Seen:
        return _Seen(self.holder, self.first_ns, self.other_ns)


@dataclass(slots=True)
class _Kept:
    """From when on something is surely there, and its last sure use."""

    since_ns: int = FAR_NS
    used_ns: int = -1

    def at(self, now_ns: int, lifetime_ns: int, build_ns: int = 0) -> bool:
        return self.since_ns + build_ns <= now_ns <= self.used_ns + lifetime_ns

    def renew(self, now_ns: int, lifetime_ns: int, since_ns: int) -> None:
        """Made (again) so as to be there from `since_ns` on, by a request sent now; FAR_NS: it may have failed to."""
        if since_ns >= FAR_NS:
            return
        if self.at(now_ns, lifetime_ns):
            self.used_ns = now_ns
        elif now_ns < self.since_ns < FAR_NS:
            self.since_ns = self.used_ns = min(self.since_ns, since_ns)
        else:
            self.since_ns = self.used_ns = since_ns


@dataclass(slots=True)
class _Mark:
    """passed: requests that went through or ended here. near: ends of units from here on, less than a granule on.
    covered: the prefix is computed. unit: a unit ends here."""

    passed: _Seen = field(default_factory=_Seen)
    near: _Seen = field(default_factory=_Seen)
    covered: _Kept = field(default_factory=_Kept)
    unit: _Kept = field(default_factory=_Kept)


_Node = Node[_Mark]


@dataclass(slots=True)
class _Pending:
    sent: Sent
    end: _Node
    floor: int
    repeated: int
    """Tokens of the longest unit that ends in output of unknown ids and that the prompt can begin with."""


class UnitHits:
    """See HitModel, whose interface this is."""

    def __init__(self, rule: UnitsRule, emit: Callable[[str, Expectation], None]) -> None:
        self.rule = rule
        self._emit = emit
        self._roots: dict[str, _Node] = {}
        self._last: dict[str, Sent] = {}
        self._pending: deque[_Pending] = deque()
        self._last_sent_ns = -1
        self._build_ns = round(rule.build_s * 1e9)
        self._lifetime_ns = round(rule.lifetime_s * 1e9)

    def add(self, sent: Sent, resent_bytes: int = 0) -> None:
        if sent.sent_ns < self._last_sent_ns:
            raise ValueError("requests must come in order of sending")
        self._last_sent_ns = sent.sent_ns
        self._settle(sent.sent_ns)
        repeated = self._repeated(self._last.get(sent.session_id), sent, resent_bytes)
        root = self._roots.setdefault(sent.salt, Node(None, b"", 0, _Mark()))
        floor = self._floor(root, sent)
        end = self._insert(root, sent, sent.ids, sent.computed_ns)
        if sent.output_ids is not None and len(sent.output_ids):
            computed_ns = sent.released_ns if sent.first_token_ns is not None else FAR_NS
            self._insert(root, sent, sent.ids + sent.output_ids, computed_ns)
        self._last[sent.session_id] = sent
        self._pending.append(_Pending(sent, end, floor, repeated))

    def finish(self) -> None:
        self._settle(FAR_NS)

    # ------------------------------------------------------------------------------------------------ internals

    def _settle(self, now_ns: int) -> None:
        while self._pending and self._pending[0].sent.decided_ns <= now_ns:
            pending = self._pending.popleft()
            ceiling = max(self._ceiling(pending), pending.floor)
            self._emit(
                pending.sent.key,
                Expectation(
                    rule=self.rule.name,
                    input_tokens=len(pending.sent.ids),
                    floor=pending.floor,
                    ceiling=ceiling,
                    reason=BEST_EFFORT if pending.floor < ceiling else None,
                ),
            )

    def _floor(self, root: _Node, sent: Sent) -> int:
        """Called before the request itself is in the tree."""
        now_ns, rule = sent.sent_ns, self.rule
        found = match(root, sent.ids.tobytes())
        best = covered = 0
        for node in found.nodes[1:]:
            if node.mark.unit.at(now_ns, self._lifetime_ns):
                best = max(best, self._usable(node.depth, sent))
            if node.mark.covered.at(now_ns, self._lifetime_ns, self._build_ns):
                covered = node.depth
        if rule.interval_tokens is not None:
            if found.below is not None and found.below.mark.covered.at(now_ns, self._lifetime_ns, self._build_ns):
                covered = found.depth
            for end in range(covered // rule.interval_tokens, 0, -1):
                usable = self._usable(end * rule.interval_tokens, sent)
                if usable:
                    return max(best, usable)
        return best

    def _usable(self, unit_tokens: int, sent: Sent) -> int:
        """What a unit that the prompt begins with is surely worth; nothing if no token would be left to compute."""
        fine, coarse = self.rule.fine_tokens, self.rule.coarse_tokens
        return unit_tokens // coarse * coarse if unit_tokens // fine * fine < len(sent.ids) else 0

    def _ceiling(self, pending: _Pending) -> int:
        key, before_ns = pending.sent.key, pending.sent.decided_ns
        tokens, interval = pending.repeated, self.rule.interval_tokens
        for node in pending.end.path():
            if node.depth <= tokens:
                break
            if interval is not None and node.mark.passed.by_others(key) < before_ns:
                tokens = max(tokens, node.depth // interval * interval)
            if node.mark.near.by_others(key) < before_ns or _parted(node, key) < before_ns:
                tokens = max(tokens, node.depth)
                break
        return self.rule.ceiling_tokens(tokens, len(pending.sent.ids))

    def _repeated(self, last: Sent | None, sent: Sent, resent_bytes: int) -> int:
        if last is None or last.output_ids is not None or not last.output_tokens or last.salt != sent.salt:
            return 0
        start = len(last.ids)
        if sent.ids[:start] != last.ids:
            return 0
        interval = self.rule.interval_tokens
        # a repeated token stands for at least one byte of text
        most = start + min(last.output_tokens, resent_bytes)
        made = start + last.output_tokens
        ends = [made // size * size for size in (self.rule.fine_tokens, self.rule.coarse_tokens)]
        repeated = max((end for end in ends if start < end <= most), default=0)
        if interval is not None and most // interval * interval > start:
            repeated = max(repeated, most // interval * interval)
        return repeated

    def _insert(self, root: _Node, sent: Sent, ids: array[int], computed_ns: int) -> _Node:
        """The node at the end of `ids`, with what a request that computed them leaves on the way."""
        data, now_ns = ids.tobytes(), sent.sent_ns
        built_ns = min(FAR_NS, computed_ns + self._build_ns)
        found = match(root, data)
        nodes = found.nodes
        if found.below is not None:
            nodes.append(self._split(found.below, found.inside))
        rest = data[nodes[-1].depth * ids.itemsize :]
        if rest:
            fork = nodes[-1]
            if fork.parent is not None and fork.children:
                if fork.mark.covered.at(now_ns, self._lifetime_ns):
                    fork.mark.unit.renew(now_ns, self._lifetime_ns, built_ns)
                if len(fork.children) == 1:
                    self._near(fork.parent, fork.depth, sent)
            nodes.append(grow(fork, rest, _Mark()))
        end = nodes[-1]
        for node in nodes[1:]:
            mark = node.mark
            mark.passed.add(sent.key, now_ns)
            if computed_ns < FAR_NS and mark.unit.at(now_ns, self._lifetime_ns):
                mark.unit.used_ns = now_ns
            mark.covered.renew(now_ns, self._lifetime_ns, computed_ns)
        end.mark.unit.renew(now_ns, self._lifetime_ns, built_ns)
        self._near(end, end.depth, sent)
        return end

    def _split(self, below: _Node, inside: int) -> _Node:
        coarse, mark = self.rule.coarse_tokens, below.mark
        middle = split(
            below, inside, _Mark(mark.passed.copy(), covered=_Kept(mark.covered.since_ns, mark.covered.used_ns))
        )
        if below.depth // coarse == middle.depth // coarse:
            middle.mark.near = mark.near.copy()
            children = list(below.children.values())
            if len(children) > 1 and children[1].mark.passed.holder is not None:
                middle.mark.near.add(children[1].mark.passed.holder, children[1].mark.passed.first_ns)
        return middle

    def _near(self, node: _Node, depth: int, sent: Sent) -> None:
        """A unit of `depth` tokens, stored up to its last whole granule, is matched from there on: the largest granule
        there may be stores the least, and so is matched soonest."""
        coarse = self.rule.coarse_tokens
        for above in node.path():
            if above.depth < depth // coarse * coarse:
                break
            above.mark.near.add(sent.key, sent.sent_ns)


def _parted(node: _Node, key: str) -> int:
    """When two requests other than `key` had parted here; three branches are enough to know, in order of coming."""
    times = []
    for child in node.children.values():
        times.append(child.mark.passed.by_others(key))
        if len(times) == 3:
            break
    return sorted(times)[1] if len(times) > 1 else FAR_NS
