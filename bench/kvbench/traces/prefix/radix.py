"""A radix tree of prompts, exact to the token, in memory linear in the tokens that differ.

Nodes stand where prompts end and where they part: the positions that DeepSeek's units can have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

TOKEN_BYTES = 4

Mark = TypeVar("Mark")


@dataclass(slots=True, eq=False)
class Node(Generic[Mark]):
    """The prefix of `depth` tokens that ends here; `edge` holds its last ones, from the parent on. `children` by their
    first token, in order of their coming."""

    parent: Node[Mark] | None
    edge: bytes
    depth: int
    mark: Mark
    children: dict[bytes, Node[Mark]] = field(default_factory=dict)

    def path(self) -> Iterator[Node[Mark]]:
        """This node and those above it, without the root."""
        node: Node[Mark] = self
        while node.parent is not None:
            yield node
            node = node.parent


@dataclass(slots=True)
class Match(Generic[Mark]):
    """How far the tree knows `data`: whole nodes from the top, then `inside` tokens of the edge to `below`."""

    nodes: list[Node[Mark]]
    below: Node[Mark] | None
    inside: int

    @property
    def depth(self) -> int:
        return self.nodes[-1].depth + self.inside


def match(root: Node[Mark], data: bytes) -> Match[Mark]:
    """Follow `data` (four bytes a token) from the root."""
    nodes, at = [root], 0
    while at < len(data):
        child = nodes[-1].children.get(data[at : at + TOKEN_BYTES])
        if child is None:
            break
        if not data.startswith(child.edge, at):
            return Match(nodes, child, _common_tokens(child.edge, data, at))
        nodes.append(child)
        at += len(child.edge)
    return Match(nodes, None, 0)


def split(below: Node[Mark], inside: int, mark: Mark) -> Node[Mark]:
    """A node `inside` tokens into the edge to `below`, between it and its parent."""
    parent, cut = below.parent, inside * TOKEN_BYTES
    assert parent is not None
    middle = Node(parent, below.edge[:cut], parent.depth + inside, mark)
    parent.children[below.edge[:TOKEN_BYTES]] = middle
    below.parent, below.edge = middle, below.edge[cut:]
    middle.children[below.edge[:TOKEN_BYTES]] = below
    return middle


def grow(parent: Node[Mark], rest: bytes, mark: Mark) -> Node[Mark]:
    """A new node at the end of `rest` under `parent`."""
    node = Node(parent, rest, parent.depth + len(rest) // TOKEN_BYTES, mark)
    parent.children[rest[:TOKEN_BYTES]] = node
    return node


def _common_tokens(edge: bytes, data: bytes, at: int) -> int:
    low, high = 0, min(len(edge), len(data) - at) // TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if edge[low * TOKEN_BYTES : middle * TOKEN_BYTES] == data[at + low * TOKEN_BYTES : at + middle * TOKEN_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low
