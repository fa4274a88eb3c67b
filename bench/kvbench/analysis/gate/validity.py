"""Why runs cannot be compared: each reason says what, which runs, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from kvbench.analysis.gate.evidence import Evidence
from kvbench.errors import UsageError

COPY_SHARE = 0.01
"""Requests of two runs that agree to the nanosecond: beyond this share one is a copy of the other, whole or in part."""
TOKENS_LIMIT = (0.01, 0.05)
"""Input and output tokens may differ by this much, over the turns that all runs have; an endpoint without ignore_eos
ends answers where it likes."""
FAILED_LIMIT = 0.01
SERVER_NUMBERS_LIMIT = 0.01
"""A server that is started again may find room for a few blocks more or less."""
ORDER_LIMIT = 0.25
"""|mean rank of new - mean rank of base| / (runs / 2): 1 for AABB, 0 for ABBA, 0.2 for ABAB of 5 + 5. A drift over all
runs biases the comparison by about half of this share of it."""
RULES_FACT = "settings.rules"
OTHER_RULES = "some runs were made by the agentx rules and others were not: they measure different things"
_SHOWN = 6


@dataclass(frozen=True)
class Treatment:
    """FIELD or FIELD=VALUE: a fact, or all facts below it, that is meant to differ between the sides."""

    field: str
    value: str | None = None

    @classmethod
    def parse(cls, text: str) -> Treatment:
        name, equals, value = text.partition("=")
        if not name:
            raise UsageError(f"--treatment {text}: names no field", hint="for example --treatment server.server")
        return cls(name, value if equals else None)

    def covers(self, fact: str) -> bool:
        return fact == self.field or fact.startswith(f"{self.field}.")


def refusals(
    base: Sequence[Evidence], new: Sequence[Evidence], treatments: Sequence[Treatment], *, allow_order: bool
) -> list[str]:
    """All reasons, none where the runs can be compared. UsageError for a treatment that names no field."""
    runs = [*base, *new]
    # A run that is given twice has its problems once.
    reasons = list(dict.fromkeys(f"{run.label} {problem}" for run in runs for problem in run.problems))
    reasons += _copies(runs)
    reasons += _incomplete(runs)
    if not base:
        reasons += _not_one(new)
    else:
        reasons += _facts(base, new, treatments)
        reasons += _turns(runs)
        reasons += _tokens(runs)
    reasons += _together(runs)
    if base and not allow_order:
        reasons += _order(base, new)
    return reasons


def too_many_failed(runs: Sequence[Evidence]) -> list[str]:
    """Runs whose latencies are of what succeeded alone, so that they flatter the endpoint."""
    return [
        f"{run.failed:,} of {(run.completed or 0) + (run.failed or 0):,} turns of {run.label} failed"
        for run in runs
        if run.failed_share > FAILED_LIMIT
    ]


def _copies(runs: Sequence[Evidence]) -> Iterator[str]:
    for one, other in combinations(runs, 2):
        if one.label == other.label:
            yield f"{one.label} is given twice: each run counts once"
        elif (shared := len(one.marks & other.marks)) > COPY_SHARE * min(len(one.marks), len(other.marks)):
            agree = "every figure agrees" if len(one.marks) == 1 else f"{shared:,} requests agree to the nanosecond"
            yield f"{one.label} and {other.label} are copies: {agree}; run again"


def _incomplete(runs: Sequence[Evidence]) -> Iterator[str]:
    for run in runs:
        if run.requested is None or run.completed is None:
            continue
        done = run.completed + (run.failed or 0)
        if done < run.requested:
            yield f"{run.label} has {done:,} of {run.requested:,} turns that were asked for: run it to its end"
        elif run.completed == 0:
            yield f"{run.label} has no turn that succeeded"


def _facts(base: Sequence[Evidence], new: Sequence[Evidence], treatments: Sequence[Treatment]) -> Iterator[str]:
    names = sorted({name for run in (*base, *new) for name in run.facts})
    differ = {name for name in names if not _alike(name, [run.facts.get(name) for run in (*base, *new)])}
    for treatment in treatments:
        covered = [name for name in names if treatment.covers(name)]
        if not covered:
            tops = sorted({name.partition(".")[0] for name in names})
            raise UsageError(
                f"--treatment {treatment.field}: the runs have no such field",
                hint=f"a field of run.json by its dotted name, below {', '.join(tops)}",
            )
        if not differ.intersection(covered):
            yield (
                f"{treatment.field} is declared as what differs, and is the same in all runs "
                f"({_value(new[0].facts.get(covered[0]))}): was the server switched?"
            )
        if treatment.value is not None and (got := new[0].facts.get(treatment.field)) != treatment.value:
            yield f"{treatment.field} of the new runs is {_value(got)}, not {treatment.value} as declared"
    shown = 0
    for name in sorted(differ):
        if name == RULES_FACT:
            yield OTHER_RULES
            continue
        declared = any(treatment.covers(name) for treatment in treatments)
        if name.startswith("trace."):
            if name == "trace.sha256":
                yield "the runs replay different traces: runs can be compared on one trace only"
            continue
        if declared:
            for side, group in (("base", base), ("new", new)):
                if not _alike(name, [run.facts.get(name) for run in group]):
                    yield f"{name} differs inside the {side} runs, where the treatment must be one"
            continue
        shown += 1
        if shown <= _SHOWN:
            yield _difference(name, base, new)
    if shown > _SHOWN:
        yield f"{shown - _SHOWN} more fields differ (kvbench compare lists them)"


def _difference(name: str, base: Sequence[Evidence], new: Sequence[Evidence]) -> str:
    values = {side: [run.facts.get(name) for run in group] for side, group in (("base", base), ("new", new))}
    told = {side: " | ".join(sorted({_value(value) for value in of})) for side, of in values.items()}
    for side, of in values.items():
        if not _alike(name, of):
            # No treatment: that would have to be one inside a side.
            return f"{name} differs inside the {side} runs ({told[side]}): leave out those that are not like the rest"
    sides = f"base {told['base']}, new {told['new']}"
    return f"{name} differs: {sides}; --treatment {name} if that is what is tested"


def _not_one(runs: Sequence[Evidence]) -> Iterator[str]:
    """Runs that are judged by absolute values alone still stand for one thing."""
    names = sorted({name for run in runs for name in run.facts})
    differ = [name for name in names if not _alike(name, [run.facts.get(name) for run in runs])]
    for name in differ[:_SHOWN]:
        values = sorted({_value(run.facts.get(name)) for run in runs})
        yield f"{name} differs inside the new runs ({' | '.join(values)}): they are judged as one"
    if len(differ) > _SHOWN:
        yield f"{len(differ) - _SHOWN} more fields differ"


def _alike(name: str, values: Sequence[str | None]) -> bool:
    if len(set(values)) == 1:
        return True
    if not name.startswith("server."):
        return False
    try:
        numbers = [float(value) for value in values if value is not None]
    except ValueError:
        return False
    return len(numbers) == len(values) and max(numbers) - min(numbers) <= SERVER_NUMBERS_LIMIT * abs(max(numbers))


def _value(value: str | None) -> str:
    return "not set" if value is None else value if len(value) <= 60 else f"{value[:57]}..."


def _turns(runs: Sequence[Evidence]) -> Iterator[str]:
    """Only where nothing failed: a turn that failed is missing among the ok ones and counted elsewhere."""
    known = [run for run in runs if run.turns is not None and run.same_turns and not run.failed]
    for run in known[1:]:
        assert run.turns is not None
        assert known[0].turns is not None
        if run.turns.keys() != known[0].turns.keys():
            other = len(run.turns.keys() ^ known[0].turns.keys())
            yield f"{run.label} and {known[0].label} have {other:,} turns that the other has not"
            return


def _tokens(runs: Sequence[Evidence]) -> Iterator[str]:
    for which, (word, limit) in enumerate(zip(("input", "output"), TOKENS_LIMIT, strict=True)):
        sums = _sums(runs, which)
        told = {label: total for label, total in sums.items() if total is not None}
        if not told:
            continue
        if silent := sorted(sums.keys() - told.keys()):
            yield f"{silent[0]} reports no {word} tokens where others do: whether they did the same work is not known"
        least, most = min(told, key=lambda label: told[label]), max(told, key=lambda label: told[label])
        if told[most] - told[least] > limit * told[most]:
            yield (
                f"{word} tokens differ on the same turns: {told[least]:,} in {least}, {told[most]:,} in {most} "
                f"(limit {limit:.0%}): not the same work"
            )


def _sums(runs: Sequence[Evidence], which: int) -> dict[str, int | None]:
    if any(run.turns is None for run in runs):
        # Tokens are of what succeeded: where turns failed, an average turn's are compared.
        each = [max(run.completed or 1, 1) if any(run.failed for run in runs) else 1 for run in runs]
        totals = [run.tokens[which] for run in runs]
        return {
            run.label: None if total is None else round(total / of)
            for run, total, of in zip(runs, totals, each, strict=True)
        }
    turns = [run.turns for run in runs if run.turns is not None]
    common = set(turns[0]).intersection(*turns[1:])
    told = [key for key in common if all(of[key][which] is not None for of in turns)]
    if not told:
        return {
            run.label: None if run.turns is None or all(t[which] is None for t in run.turns.values()) else 0
            for run in runs
        }
    return {run.label: sum(of[key][which] or 0 for key in told) for run, of in zip(runs, turns, strict=True)}


def _together(runs: Sequence[Evidence]) -> Iterator[str]:
    timed = [run for run in runs if run.url and run.started_at and run.ended_at]
    for one, other in combinations(sorted(timed, key=_started), 2):
        assert one.ended_at is not None
        assert other.started_at is not None
        if one.url == other.url and other.started_at < one.ended_at and one.label != other.label:
            yield f"{one.label} and {other.label} ran on {one.url} at the same time: each was the other's load"


def _started(run: Evidence) -> float:
    return run.started_at.timestamp() if run.started_at is not None else 0.0


def _order(base: Sequence[Evidence], new: Sequence[Evidence]) -> Iterator[str]:
    runs = [(run, False) for run in base] + [(run, True) for run in new]
    if any(run.started_at is None for run, _ in runs):
        yield "when the runs were made is not known, so a drift would pass for a change; --allow-order accepts that"
        return
    order = [is_new for _, is_new in sorted(runs, key=lambda item: _started(item[0]))]
    ranks = [[i for i, is_new in enumerate(order) if is_new is side] for side in (False, True)]
    means = [sum(side) / len(side) for side in ranks]
    lopsided = abs(means[1] - means[0]) / (len(order) / 2)
    switches = sum(a != b for a, b in pairwise(order))
    # Each side in one block, even a central one, would take a drift's bend for a change.
    if lopsided > ORDER_LIMIT or switches < min(len(base), len(new)) / 2:
        pattern = "".join("N" if is_new else "B" for is_new in order)
        yield (
            f"the runs are not interleaved ({pattern}): a drift would be taken for a change (4% of drift run BBNN: 10% "
            "and more false alarms); make them in turn, BNNB, or --allow-order"
        )
