"""Who is whose parent among spans, as far as requests, and what makes them, go."""

from __future__ import annotations

from math import nan

import msgspec

from kvbench.traces.formats.otel_spans import Kind, Span

Key = tuple[str, str]
"""(trace_id, span_id)"""

_CALLERS = ("agent", "tool")
_MAX_WRAPS = 20
"""Layers of instrumentation around one request."""
_UNKNOWN: Key = ("", "?")
_NONE: Key = ("", "")


class Node(msgspec.Struct):
    """What is known of a span. wraps: it holds another span of the same request; calls: requests that this run of an
    agent or a tool made itself; caller: the run of one that it is in.
    """

    parent: Key
    kind: Kind
    start_s: float
    end_s: float
    agent: str | None
    wraps: bool = False
    calls: int = 0
    caller: Key = _UNKNOWN


class SpanTree:
    """All spans of a source; up to 1 kB each."""

    def __init__(self) -> None:
        self._nodes: dict[Key, Node] = {}

    def add(self, span: Span) -> None:
        """The first of several with one id counts."""
        self._nodes.setdefault(
            (span.trace_id, span.span_id),
            Node(
                (span.trace_id, span.parent_id) if span.parent_id else _NONE,
                span.kind,
                nan if span.start_s is None else span.start_s,
                nan if span.end_s is None else span.end_s,
                span.agent,
            ),
        )

    def settle(self) -> None:
        """After the last span: which requests are there twice, and who made requests.

        A request inside a request is the same one, seen by two instrumentations; the inner one is nearer to it.
        """
        for node in self._nodes.values():
            if node.kind != "call":
                continue
            above = self._request_above(node)
            if above is not None and above.start_s <= node.start_s and node.end_s <= above.end_s:
                above.wraps = True
            caller = self._nodes.get(self._caller(node))
            if caller is not None:
                caller.calls += 1

    def node(self, span: Span) -> Node:
        return self._nodes[span.trace_id, span.span_id]

    def callers(self, node: Node) -> list[tuple[Key, Node]]:
        """The runs of agents and tools that a span is in, nearest first."""
        out: list[tuple[Key, Node]] = []
        met = set()
        key = self._caller(node)
        while key not in met and (above := self._nodes.get(key)) is not None:
            met.add(key)
            out.append((key, above))
            key = self._caller(above)
        return out

    def is_nested(self, node: Node) -> bool:
        """Whether another request is its parent, with no run of an agent or a tool between."""
        above = self._request_above(node)
        for _ in range(_MAX_WRAPS):
            if above is None or not above.wraps:
                break
            above = self._request_above(above)
        return above is not None

    def _request_above(self, node: Node) -> Node | None:
        met = set()
        key = node.parent
        while key not in met and (above := self._nodes.get(key)) is not None:
            if above.kind != "other":
                return above if above.kind == "call" and above is not node else None
            met.add(key)
            key = above.parent
        return None

    def _caller(self, node: Node) -> Key:
        """Found once for all on the way: a conversation may be a chain of thousands."""
        way = [node]
        found = node.caller
        key = node.parent
        met = set()
        while found == _UNKNOWN:
            above = self._nodes.get(key)
            if above is None or key in met:
                found = _NONE
            elif above.kind in _CALLERS:
                found = key
            else:
                met.add(key)
                way.append(above)
                found, key = above.caller, above.parent
        for each in way:
            each.caller = found
        return found
