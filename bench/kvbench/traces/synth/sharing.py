"""What sessions without text have sent, and what a later one can begin with."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TypeAlias

from kvbench.model import TurnRef
from kvbench.traces.synth.dice import Dice, drawn_whole
from kvbench.traces.synth.fields import BlocksRecipe

_REMEMBERED_BLOCKS = 1 << 24
"""Of the prompts of one kind of session that later ones can begin with; older sessions are forgotten."""

_SEARCHED = 4096
"""Sessions to each side of the one that was drawn to look for a fitting one among."""

Ids: TypeAlias = "array[int]"


class Sent:
    """The longest prompt that a session has sent, and its first one, in whole blocks. call: what turn called it."""

    __slots__ = ("_none", "call", "first", "ids", "serial", "tree")

    def __init__(self, serial: int, tree: int, call: TurnRef | None) -> None:
        self.serial = serial
        self.tree = tree
        self.call = call
        self.first: Ids = array("q")
        self.ids: Ids = array("q")
        self._none = True

    def add(self, ids: Ids) -> None:
        if self._none:
            self.first, self._none = ids, False
        if len(ids) >= len(self.ids):
            self.ids = ids


class Source:
    """What outlives a tree: block ids, shared prompts, and the prompts of the last sessions of each kind."""

    def __init__(self, recipe: BlocksRecipe) -> None:
        self._sessions: dict[str, list[Sent]] = {"root": [], "sub_agent": []}
        self._held = {"root": 0, "sub_agent": 0}
        self._serial = 0
        self._last = array("Q")
        """For each block id the session that was the last to send it, but for those that only kept it."""
        dice = Dice(f"{recipe.seed}/prompts")
        self.prompts = {
            prompt.name: self.new_ids(drawn_whole(prompt.tokens, dice.rank()) // recipe.block_size, 0)
            for prompt in recipe.prompts
        }

    def serial(self) -> int:
        """A number for a new session."""
        self._serial += 1
        return self._serial

    def new_ids(self, count: int, session: int) -> Ids:
        first = len(self._last)
        self._last.extend(array("Q", [session]) * count)
        return array("q", range(first, first + count))

    def sent(self, ids: Ids, session: int) -> None:
        last = self._last
        for block in ids:
            last[block] = session

    def add(self, kind: str, sent: Sent) -> None:
        group = self._sessions[kind]
        group.append(sent)
        self._held[kind] += len(sent.first)
        if self._held[kind] > 2 * _REMEMBERED_BLOCKS and len(group) > 2:
            kept = len(group)
            self._held[kind] = 0
            while kept and self._held[kind] < _REMEMBERED_BLOCKS:
                kept -= 1
                self._held[kind] += len(group[kept].ids)
            del group[:kept]

    def others(self, kind: str, tree: int) -> int:
        """How many sessions of this kind there are of other trees; they come before those of the tree being made."""
        group = self._sessions[kind]
        count = len(group)
        while count and group[count - 1].tree == tree:
            count -= 1
        return count

    def donor(self, kind: str, tree: int, lag: int, blocks: int) -> Ids | None:
        """The prompt of the `lag`-th last session of other trees, or of the nearest one that fits better.

        It has as many blocks, and was the last to send them: else they would be more recent than the lag says. First
        prompts are preferred, as a later one may be sent after the session that is to begin with it. None: no prompt
        has as many blocks.
        """
        nearest: Ids | None = None
        later: Ids | None = None
        for sent in self._around(kind, tree, lag):
            if len(sent.first) >= blocks:
                if not blocks or self._last[sent.first[blocks - 1]] == sent.serial:
                    return sent.first
                nearest = sent.first if nearest is None else nearest
            elif later is None and len(sent.ids) >= blocks:
                later = sent.ids
        return nearest if nearest is not None else later

    def whole_donor(self, kind: str, tree: int, lag: int, blocks: int) -> Ids | None:
        """The longest prompt of the nearest session that was the last to send its own, and of `blocks` blocks, to a
        sixteenth."""
        off = blocks // 16
        for sent in self._around(kind, tree, lag):
            if abs(len(sent.ids) - blocks) <= off and sent.ids and self._last[sent.ids[-1]] == sent.serial:
                return sent.ids
        return None

    def _around(self, kind: str, tree: int, lag: int) -> Iterator[Sent]:
        """Sessions of other trees from the `lag`-th last on, as many times older as newer, so that lags stay what they
        were drawn as."""
        group, count = self._sessions[kind], self.others(kind, tree)
        lag = min(max(lag, 1), count)
        for more in range(min(count, _SEARCHED)):
            for back in (lag + more, lag - lag * more // (lag + more)):
                if 0 < back <= count:
                    yield group[count - back]
