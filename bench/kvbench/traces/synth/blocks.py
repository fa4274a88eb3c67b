"""Traces without text: lengths and block ids, drawn so that prompts share what the recipe says they share.

A prompt is what it shares with an earlier one, whole blocks of it, and new tokens behind that, whose blocks nobody has
sent. New blocks get new ids and a turn names only those, so a trace stays linear in its new blocks.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from kvbench.model import Session, Tree, Turn, TurnRef
from kvbench.traces.formats.sink import shared_blocks
from kvbench.traces.synth.dice import Dice, drawn, drawn_whole, of_turn
from kvbench.traces.synth.fields import Begin, BlocksRecipe, Cut, Kind
from kvbench.traces.synth.names import letters
from kvbench.traces.synth.sharing import Ids, Sent, Source

_MS = 3


def trees(recipe: BlocksRecipe, roots: int) -> Iterator[Tree]:
    """In order of their start. One tree, and what later ones can share, is in memory at a time."""
    source = Source(recipe)
    ranks = [_stratified(f"{recipe.seed}/{what}", roots) for what in ("turns", "begin", "length")]
    starts = Dice(f"{recipe.seed}/starts")
    at_s = 0.0
    for number in range(roots):
        builder = _Tree(recipe, source, number, len(str(roots)))
        yield builder.build(round(at_s, _MS), *(group[number] for group in ranks))
        at_s += drawn(recipe.gap_s, starts.rank())


def _stratified(seed: str, count: int) -> Sequence[float]:
    """Ranks of `count` sessions, one in each of as many equal parts of 0..1: few are spread as many would be."""
    dice = Dice(seed)
    return [(place + dice.rank()) / count for place in dice.shuffled(range(count))]


class _Prompt:
    """A prompt: its whole blocks, a last partial one's id apart, and its length in tokens."""

    __slots__ = ("ids", "tail", "tokens")

    def __init__(self, ids: Ids, tail: Ids, tokens: int) -> None:
        self.ids = ids
        self.tail = tail
        self.tokens = tokens


class _Tree:
    def __init__(self, recipe: BlocksRecipe, source: Source, number: int, digits: int) -> None:
        self._recipe = recipe
        self._source = source
        self._number = number
        self._root_id = f"s{number + 1:0{digits}d}"
        self._dice = Dice(f"{recipe.seed}/{number}")
        self._sessions: list[Session] = []
        self._sub_agents: list[Sent] = []

    def build(self, start_s: float, turns_rank: float, begin_rank: float, length_rank: float) -> Tree:
        ranks = (turns_rank, begin_rank, length_rank)
        self._session(self._root_id, "root", self._recipe.root, {"start_s": start_s}, ranks, None, 1)
        # Children are finished before the session that called them: the root comes first in the file.
        return Tree(root_id=self._root_id, start_s=start_s, sessions=tuple(reversed(self._sessions)))

    def _session(
        self,
        name: str,
        kind_name: str,
        kind: Kind,
        first: dict[str, Any],
        ranks: tuple[float, float, float],
        parent: _Prompt | None,
        depth: int,
    ) -> None:
        recipe, dice = self._recipe, self._dice
        count = max(1, drawn_whole(kind.turns, ranks[0]))
        sent = Sent(self._source.serial(), self._number, first.get("parent"))
        prompt = self._begun(kind.begins, ranks[1], ranks[2], None, sent, parent)
        growth, output, pause = dice.rank(), dice.rank(), dice.rank()
        turns: list[Turn] = []
        before: _Prompt | None = None
        fields = first
        children = 0
        for number in range(count):
            if before is not None:
                growth = self._next_rank(growth, kind.keep.growth)
                pause = self._next_rank(pause, kind.keep.pause)
                output = self._next_rank(output, kind.keep.output)
                fields["delay_s"] = round(drawn(of_turn(kind.pause_s, number), pause), _MS)
                cut = next((cut for cut in kind.cuts if dice.chance(_chance(cut, before.tokens))), None)
                if cut is not None:
                    prompt = self._begun(cut.begins, dice.rank(), dice.rank(), before, sent, parent)
                else:
                    prompt = self._grown(before, drawn_whole(of_turn(kind.growth_tokens, number), growth), sent.serial)
                if recipe.max_input_tokens is not None and prompt.tokens > recipe.max_input_tokens:
                    break
            length = None if kind.output_tokens is None else drawn_whole(of_turn(kind.output_tokens, number), output)
            turns.append(self._turn(name, number, prompt, before, length, fields))
            sent.add(prompt.ids)
            if number == 0:
                self._source.add(kind_name, sent)
                if kind_name == "sub_agent":
                    self._sub_agents.append(sent)
            fields, before = {}, prompt
            spawn = kind.spawn
            if spawn is None or depth >= recipe.max_depth or not dice.chance(drawn(of_turn(spawn.chance, number), 0.5)):
                continue
            joined = []
            for _ in range(drawn_whole(spawn.children, dice.rank())):
                child = f"{name}.{letters(children)}"
                children += 1
                delay_s = round(drawn(spawn.delay_s, dice.rank()), _MS)
                asked = {"parent": TurnRef(name, number), "delay_s": delay_s}
                if dice.chance(spawn.joined):
                    joined.append(child)
                assert recipe.sub_agent is not None
                child_ranks = (dice.rank(), dice.rank(), dice.rank())
                self._session(child, "sub_agent", recipe.sub_agent, asked, child_ranks, prompt, depth + 1)
            if joined:
                fields["after"] = tuple(joined)
        self._sessions.append(Session(session_id=name, turns=tuple(turns)))

    def _next_rank(self, rank: float, keep: float) -> float:
        return self._dice.near(rank) if self._dice.chance(keep) else self._dice.rank()

    def _turn(
        self,
        name: str,
        number: int,
        prompt: _Prompt,
        before: _Prompt | None,
        output: int | None,
        fields: dict[str, Any],
    ) -> Turn:
        kept = shared_blocks(before.ids, prompt.ids) if before is not None else 0
        return Turn(
            session_id=name,
            turn=number,
            line=0,
            input_tokens=prompt.tokens,
            output_tokens=None if output is None else max(1, output),
            keep_blocks=kept or None,
            hash_ids=(*prompt.ids[kept:], *prompt.tail),
            **fields,
        )

    def _prompt(self, shared: Ids, new_tokens: int, session: int) -> _Prompt:
        """`shared` and behind it new tokens. Ids of new blocks are this prompt's own."""
        size = self._recipe.block_size
        tokens = max(1, len(shared) * size + new_tokens)
        shared = shared[: tokens // size]
        ids = shared + self._source.new_ids(tokens // size - len(shared), session)
        has_tail = self._recipe.partial_tail and tokens % size > 0
        return _Prompt(ids, self._source.new_ids(1 if has_tail else 0, session), tokens)

    def _grown(self, before: _Prompt, growth: int, session: int) -> _Prompt:
        return self._prompt(before.ids, before.tokens - len(before.ids) * self._recipe.block_size + growth, session)

    def _begun(
        self,
        begins: Sequence[Begin],
        rank: float,
        length_rank: float,
        before: _Prompt | None,
        own: Sent,
        parent: _Prompt | None,
    ) -> _Prompt:
        begin, rank = self._chosen(begins, rank, before, parent)
        dice = self._dice
        blocks = None if begin.blocks is None else drawn_whole(begin.blocks, rank)
        shared: Ids = array("q")
        match begin.with_:
            case "prompt":
                shared = self._source.prompts[self._prompt_name(begin, rank)]
            case "previous" if before is not None:
                shared = before.ids
                if begin.dropped_blocks is not None:
                    blocks = max(0, len(shared) - drawn_whole(begin.dropped_blocks, rank))
            case "session":
                shared = own.ids
            case "parent" if parent is not None:
                shared = parent.ids
            case "sibling" if self._sub_agents:
                shared = self._longest_sibling(own)
            case "root" | "sub_agent" if self._source.others(begin.with_, self._number):
                lag = drawn_whole(begin.lag, dice.rank())
                donor = None
                if begin.whole and blocks is not None and dice.chance(begin.whole):
                    donor = self._source.whole_donor(begin.with_, self._number, lag, blocks)
                    blocks = blocks if donor is None else len(donor)
                if donor is None:
                    donor = self._source.donor(begin.with_, self._number, lag, blocks or 0)
                # The first one of its length has nobody to share it with, and is as long.
                shared = self._source.new_ids(blocks or 0, own.serial) if donor is None else donor
        if blocks is not None:
            shared = shared[:blocks]
        held = len(shared) * self._recipe.block_size
        if begin.length_share is not None and before is not None:
            new_tokens = max(0, round(before.tokens * drawn(begin.length_share, length_rank)) - held)
        else:
            new_tokens = drawn_whole(begin.new_tokens or 0.0, length_rank)
        if before is None and self._recipe.max_input_tokens is not None:
            new_tokens = min(new_tokens, max(0, self._recipe.max_input_tokens - held))
        if before is None or begin.with_ != "previous":
            self._source.sent(shared, own.serial)
        return self._prompt(shared, new_tokens, own.serial)

    def _longest_sibling(self, own: Sent) -> Ids:
        """Of those that were called together with this session only the first prompts: the others come later."""
        prompts = (sent.first if sent.call == own.call else sent.ids for sent in self._sub_agents if sent is not own)
        return max(prompts, key=len, default=array("q"))

    def _prompt_name(self, begin: Begin, rank: float) -> str:
        prompts = self._recipe.prompts
        return begin.prompt or prompts[_weighted([prompt.weight for prompt in prompts], rank)[0]].name

    def _chosen(
        self, begins: Sequence[Begin], rank: float, before: _Prompt | None, parent: _Prompt | None
    ) -> tuple[Begin, float]:
        """By weight, among those that there is something to begin with for; and the rank that is left for it."""
        there = [begin for begin in begins if self._is_there(begin, before, parent)] or list(begins)
        number, rest = _weighted([begin.weight for begin in there], rank)
        return there[number], rest

    def _is_there(self, begin: Begin, before: _Prompt | None, parent: _Prompt | None) -> bool:
        match begin.with_:
            case "previous" | "session":
                return before is not None
            case "parent":
                return parent is not None
            case "sibling":
                return bool(self._sub_agents)
            case "root" | "sub_agent":
                return self._source.others(begin.with_, self._number) > 0
        return True


def _chance(cut: Cut, tokens: int) -> float:
    return next((step.chance for step in reversed(cut.chance) if step.from_tokens <= tokens), 0.0)


def _weighted(weights: Sequence[float], rank: float) -> tuple[int, float]:
    """Which one a rank falls on, and its rank within that one: what is spread evenly stays so, part by part."""
    sums = [0.0, *accumulate(weights)]
    at = rank * sums[-1]
    number = next((i for i, upto in enumerate(sums[1:]) if at < upto), len(weights) - 1)
    return number, min(max((at - sums[number]) / (weights[number] or 1.0), 0.0), 1.0)
