"""In what steps hits are reported, estimated from the counts alone, and whether the assumed hit rule has those steps.

Every hit is a multiple of the true granule, so the greatest common divisor of all hits is one too. It can be larger by
accident only: n independent whole numbers have a common divisor above 1 with probability 1 - 1/zeta(n) (Nymann 1972).
n counts different sizes, as a size that comes again adds nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from kvbench.traces.prefix.rules import granules_of

ACCIDENT = 0.001
"""From which chance of an accident on nothing is said against a rule."""
_KNOWN = {
    1: "single tokens",
    16: "vLLM's smallest block",
    64: "the storage unit that DeepSeek documented in August 2024",
    128: "as DeepSeek's hits since V4, and OpenAI's steps",
    256: "as Moonshot's hits, by one measurement",
}


def accident(sizes: int) -> float:
    """The chance that so many independent numbers have a common divisor above 1."""
    if sizes < 2:
        return 1.0
    from scipy.special import zetac

    above = float(zetac(sizes))
    return above / (1 + above)


class Granules:
    """Feeds on reported hits of one model, with the rules that predicted them."""

    def __init__(self) -> None:
        self._sizes: Counter[int] = Counter()
        self._rules: set[str] = set()

    def add(self, cached: int | None, rule: str | None) -> None:
        if cached:
            self._sizes[cached] += 1
        if rule is not None:
            self._rules.add(rule)

    def as_dict(self) -> dict[str, Any]:
        """granule_tokens null: no hit was reported. agrees null: nothing to compare, or too few sizes to say."""
        sizes = sorted(self._sizes)
        if not sizes:
            return {"granule_tokens": None, "hits": 0, "sizes": 0, "accident": None, "known": None, "rules": []}
        granule = math.gcd(*sizes)
        chance = accident(len(sizes))
        rules = sorted(self._rules)
        verdicts = [_compared(granule, chance, sizes, rule) for rule in rules]
        differs = next((says for agrees, says in verdicts if agrees is False), None)
        told = [agrees for agrees, _ in verdicts if agrees is not None]
        return {
            "granule_tokens": granule,
            "hits": self._sizes.total(),
            "sizes": len(sizes),
            "accident": chance,
            "known": _KNOWN.get(granule),
            "rules": rules,
            "agrees": None if not told else differs is None,
            "differs": differs,
            "off_the_rule": sum(self._sizes[size] for size in sizes if _is_off(size, rules)),
        }


def _compared(granule: int, chance: float, sizes: list[int], rule: str) -> tuple[bool | None, str | None]:
    steps = granules_of(rule)
    if steps is None:
        return None, None
    fine, coarse = steps
    if granule % fine:
        odd = next(size for size in sizes if size % fine)
        return False, f"hits come in steps of {granule:,}, and {odd:,} is none that the rule {rule} can give"
    if granule % coarse == 0 and granule > coarse and chance < ACCIDENT:
        return False, (
            f"all hits are multiples of {granule:,}, where the rule {rule} has steps of {coarse:,}: they are coarser, "
            "or reported so"
        )
    return (True, None) if chance < ACCIDENT else (None, None)


def _is_off(size: int, rules: list[str]) -> bool:
    return any(steps is not None and size % steps[0] for steps in map(granules_of, rules))
