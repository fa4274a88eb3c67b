"""How many session trees have a thing: what enough of them have is shared, the rest is private to a tree."""

from __future__ import annotations

from array import array
from collections.abc import Hashable


class Owners:
    """Counts the trees that have each thing; trees are added one after the other. Some 150 bytes a distinct thing."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._trees = array("I")
        self._last = array("I")

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, thing: Hashable, tree: int) -> None:
        """`tree` counts from 0; all that one tree has is added before the next tree's."""
        number = self._numbers.setdefault(thing, len(self._trees))
        if number == len(self._trees):
            self._trees.append(1)
            self._last.append(tree)
        elif self._last[number] != tree:
            self._trees[number] += 1
            self._last[number] = tree

    def number(self, thing: Hashable) -> int:
        """0, 1, 2, ... in the order in which things were first added."""
        return self._numbers[thing]

    def trees(self, thing: Hashable) -> int:
        """How many trees have it; 0 for what was never added."""
        number = self._numbers.get(thing)
        return 0 if number is None else self._trees[number]

    def shared(self, shared_by: int) -> int:
        """How many things at least `shared_by` trees have."""
        return sum(count >= shared_by for count in self._trees)
