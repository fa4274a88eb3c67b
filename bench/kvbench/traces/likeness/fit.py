"""A recipe of blocks from a sample: empirical distributions with lines between their points, by turn where they differ.

A turn's growth, output and pause are drawn by turn; that long sessions are long in many turns is kept as the chance
that a rank stays near the one before. What a prompt begins with is drawn together with what follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from kvbench.traces.likeness.sample import BeginSample, KindSample, Sample
from kvbench.traces.synth.dice import Amount, Amounts, Draw
from kvbench.traces.synth.fields import Begin, BlocksRecipe, Chance, Cut, Keep, Kind, Spawn

_T = TypeVar("_T")

FEWEST_VALUES = 30
"""Turns are told apart while each group of them has this many values."""

_MOST_SINGLE_VALUES = 12
_MS = 3
_POINTS = 64
_TAIL = (0.01, 0.005, 0.002, 0.001, 0.0005, 0.0001)
_COMMON = 0.05
"""A number of shared blocks that this share of prompts has is a shared prompt, and kept as it is."""
_BINS = 4
_LENGTH_GROUPS = 16
_REBUILT = 2.0
"""A context cut back and built up again is at most so many times as long as before."""
_NEVER = 1e-6
"""Weight of what is only taken where there is nothing else: the first session has nobody to begin with."""


def fitted(sample: Sample, name: str, source: str) -> BlocksRecipe:
    """A recipe that makes traces like the sample, as many root sessions as it has. The sample has at least one turn."""
    return BlocksRecipe(
        name=name,
        about=f"like {source}",
        roots=len(sample.root.turns),
        block_size=sample.block_size,
        partial_tail=sample.partial_tail,
        gap_s=amount(sample.gap_s) if sample.gap_s else 0.0,
        max_depth=sample.depth,
        root=_kind(sample.root, sample.sub_agent),
        sub_agent=_kind(sample.sub_agent, sample.sub_agent) if sample.sub_agent.turns else None,
    )


def _kind(kind: KindSample, called: KindSample) -> Kind:
    return Kind(
        turns=amount(kind.turns, whole=True),
        begins=_begins(kind.begins),
        growth_tokens=by_turn(kind.growth, whole=True),
        output_tokens=by_turn(kind.output, whole=True) if any(kind.output) else None,
        pause_s=by_turn(kind.pause_s),
        keep=Keep(growth=kept_rank(kind.growth), output=kept_rank(kind.output), pause=kept_rank(kind.pause_s)),
        cuts=_cuts(kind),
        spawn=_spawn(kind, called),
    )


# ------------------------------------------------------------------------------------------------ distributions


def amount(values: Sequence[float], *, whole: bool = False, from_turn: int = 0) -> Amount:
    """The empirical distribution: a number, its few values with their weights, or quantiles. At least one value."""
    distinct = sorted(set(values))
    if len(distinct) == 1 and not from_turn:
        return float(distinct[0])
    if len(distinct) == 1 or (len(distinct) <= _MOST_SINGLE_VALUES and len(values) >= 2 * len(distinct)):
        counts = dict.fromkeys(distinct, 0)
        for value in values:
            counts[value] += 1
        weights = tuple(map(float, counts.values())) if len(distinct) > 1 else None
        return Draw(values=tuple(map(float, distinct)), weights=weights, from_turn=from_turn)
    return Draw(quantiles=_quantiles(values, whole), from_turn=from_turn)


def _quantiles(values: Sequence[float], whole: bool) -> tuple[tuple[float, float], ...]:
    """Lines through the sample's values, each in the middle of its share, so that the mean stays (Hazen's rule).

    Of many values 64 steps are kept, and more of them in the tails.
    """
    import numpy as np

    n = len(values)
    if n <= _POINTS:
        shares = [(i + 0.5) / n for i in range(n)]
    else:
        tails = {share for part in _TAIL if part * n >= 1 for share in (part, 1 - part)}
        shares = sorted({i / _POINTS for i in range(1, _POINTS)} | tails | {0.5 / n, 1 - 0.5 / n})
    shares = [0.0, *shares, 1.0]
    found = np.quantile(np.asarray(values, dtype=float), shares, method="hazen")
    rounded = (float(round(value)) if whole else round(float(value), _MS) for value in found)
    points = [(round(share, 7), value) for share, value in zip(shares, rounded, strict=True)]
    inner = (b for a, b, c in zip(points, points[1:], points[2:], strict=False) if not a[1] == b[1] == c[1])
    return (points[0], *inner, points[-1])


def by_turn(sessions: Sequence[Sequence[tuple[int, float]]], *, whole: bool = False) -> Amounts:
    """A distribution for each group of turns; 0 where there is no value at all (sessions of one turn)."""
    values = [pair for session in sessions for pair in session]
    groups = _groups(values)
    if not groups:
        return 0.0
    if len(groups) == 1:
        return amount([value for _, value in values], whole=whole)
    return tuple(
        _as_draw(amount([value for _, value in group], whole=whole, from_turn=first)) for first, group in groups
    )


def _groups(values: Sequence[tuple[int, _T]]) -> list[tuple[int, list[tuple[int, _T]]]]:
    """(first turn, values), for turns 0, 1, 2-3, 4-7, ...; groups that are too small join the next, or the last one."""
    out: list[tuple[int, list[tuple[int, _T]]]] = []
    held: list[tuple[int, _T]] = []
    first = 0
    edge = -1
    for turn, value in sorted(values, key=lambda pair: pair[0]):
        group = 1 << (turn.bit_length() - 1) if turn else 0
        if group != edge and len(held) >= FEWEST_VALUES:
            out.append((first, held))
            held = []
        if not held:
            first = group
        edge = group
        held.append((turn, value))
    if held and (len(held) >= FEWEST_VALUES or not out):
        out.append((first, held))
    elif held:
        out[-1][1].extend(held)
    return out


def _as_draw(value: Amount) -> Draw:
    return value if isinstance(value, Draw) else Draw(values=(value,))


def kept_rank(sessions: Sequence[Sequence[tuple[int, float]]]) -> float:
    """Correlation of the ranks of one turn and the next, 0 if it is negative; ranks are those in a group of turns."""
    import numpy as np

    ranks: dict[tuple[int, int], float] = {}
    flat = [(turn, (value, number)) for number, session in enumerate(sessions) for turn, value in session]
    for _, group in _groups(flat):
        ordered = sorted(group, key=lambda item: item[1][0])
        low = 0
        while low < len(ordered):
            high = low
            while high < len(ordered) and ordered[high][1][0] == ordered[low][1][0]:
                high += 1
            for turn, (_, number) in ordered[low:high]:
                ranks[number, turn] = (low + high) / 2 / len(ordered)
            low = high
    pairs = [(rank, ranks[number, turn + 1]) for (number, turn), rank in ranks.items() if (number, turn + 1) in ranks]
    if len(pairs) < FEWEST_VALUES:
        return 0.0
    a, b = np.array(pairs).T
    if not a.std() or not b.std():
        return 0.0
    return round(max(0.0, float(np.corrcoef(a, b)[0, 1])), 3)


# --------------------------------------------------------------------------------------------- sharing and fan-out


def _begins(samples: Sequence[BeginSample]) -> tuple[Begin, ...]:
    """Classes by how often they are chosen where they can be, each with its numbers of blocks."""
    with_siblings = [begin for begin in samples if begin.siblings]
    sibling = sum(begin.with_ == "sibling" for begin in with_siblings) / max(1, len(with_siblings))
    classes: dict[str, list[BeginSample]] = {}
    for begin in samples:
        classes.setdefault(begin.with_, []).append(begin)
    # Who begins with nothing because nobody is there says nothing about those who could have chosen.
    counts = {
        name: sum(begin.others or begin.siblings for begin in group) if name == "nothing" else len(group)
        for name, group in classes.items()
        if name != "sibling"
    }
    total = sum(counts.values())
    out: list[Begin] = []
    for name, group in classes.items():
        share = sibling if name == "sibling" else (1 - sibling) * counts[name] / total if total else 1.0
        for part in _parts(group):
            out.append(_begin(part, max(_NEVER, share * len(part) / len(group))))
    return tuple(out)


def _parts(group: list[BeginSample]) -> list[list[BeginSample]]:
    """Prompts that share a number of blocks many do, a part a number; the others in parts of rising numbers."""
    if group[0].with_ == "nothing":
        return [group]
    by_blocks: dict[tuple[bool, int], list[BeginSample]] = {}
    for begin in group:
        by_blocks.setdefault(_size(begin), []).append(begin)
    common = [part for _, part in sorted(by_blocks.items()) if len(part) >= max(2, _COMMON * len(group))]
    rest = [begin for _, part in sorted(by_blocks.items()) if part not in common for begin in part]
    for drops in (False, True):
        some = [begin for begin in rest if _size(begin)[0] is drops]
        bins = max(1, min(_BINS, len(some) // FEWEST_VALUES))
        common += [some[i * len(some) // bins : (i + 1) * len(some) // bins] for i in range(bins) if some]
    return common


def _size(begin: BeginSample) -> tuple[bool, int]:
    """Whether it is told by what is gone of the turn before, and how many blocks that are, or are shared."""
    drops = begin.with_ == "previous" and begin.dropped < begin.blocks
    return drops, begin.dropped if drops else begin.blocks


def _begin(part: list[BeginSample], weight: float) -> Begin:
    drops = _size(part[0])[0]
    blocks = amount([_size(begin)[1] for begin in part], whole=True)
    shares = part[0].with_ != "nothing"
    elsewhere = part[0].with_ in ("root", "sub_agent")
    # A context that was rebuilt is about as long as before, or a part of it, whatever it was cut back to. One that came
    # out several times as long is another prompt: as a share it would multiply with every cut that is drawn.
    relative = part[0].turn > 0 and _is_large(part[0]) and max(begin.length_share for begin in part) <= _REBUILT
    return Begin(
        with_=part[0].with_,
        weight=round(weight, 9),
        lag=amount([begin.lag for begin in part], whole=True) if elsewhere else 1.0,
        blocks=blocks if shares and not drops else None,
        whole=round(sum(begin.whole for begin in part) / len(part), 6) if elsewhere else 0.0,
        dropped_blocks=blocks if drops else None,
        new_tokens=None if relative else amount([begin.new_tokens for begin in part], whole=True),
        length_share=amount([begin.length_share for begin in part]) if relative else None,
    )


def _cuts(kind: KindSample) -> tuple[Cut, ...]:
    """Small ones, that drop less than they keep, and large ones: how often each comes depends on the length so far."""
    out = []
    for large in (False, True):
        cuts = [begin for begin in kind.cuts if _is_large(begin) is large]
        if cuts:
            happened = [(tokens, cut is not None and _is_large(cut) is large) for tokens, cut in kind.after]
            out.append(Cut(chance=_by_length(happened), begins=_begins(cuts)))
    return tuple(out)


def _is_large(begin: BeginSample) -> bool:
    return begin.dropped >= begin.blocks


def _by_length(happened: Sequence[tuple[int, bool]]) -> tuple[Chance, ...]:
    """The share in groups of equal size, in order of length."""
    ordered = sorted(happened)
    groups = max(1, min(_LENGTH_GROUPS, len(ordered) // FEWEST_VALUES))
    out = []
    for i in range(groups):
        group = ordered[i * len(ordered) // groups : (i + 1) * len(ordered) // groups]
        share = round(sum(hit for _, hit in group) / len(group), 6)
        out.append(Chance(from_tokens=group[0][0] if i else 0, chance=share))
    return tuple(out)


def _spawn(kind: KindSample, called: KindSample) -> Spawn | None:
    if not kind.spawns:
        return None
    could = [spawn for spawn in kind.spawns if spawn.can_join]
    return Spawn(
        chance=_chance([spawn.turn for spawn in kind.spawns], kind.turn_numbers),
        children=amount([spawn.children for spawn in kind.spawns], whole=True),
        joined=round(sum(spawn.joined for spawn in could) / max(1, sum(spawn.children for spawn in could)), 6),
        delay_s=amount(called.first_delay_s),
    )


def _chance(turns: Sequence[int], there: dict[int, int]) -> Amounts:
    """By groups of turns: at how many of the turns that there are it happened."""
    happened = dict.fromkeys(there, 0)
    for turn in turns:
        happened[turn] += 1
    trials = [(turn, float(i < happened[turn])) for turn, count in there.items() for i in range(count)]
    groups = _groups(trials)
    shares = [round(sum(value for _, value in group) / len(group), 6) for _, group in groups]
    if len(groups) == 1:
        return shares[0]
    return tuple(Draw(values=(share,), from_turn=first) for (first, _), share in zip(groups, shares, strict=True))
