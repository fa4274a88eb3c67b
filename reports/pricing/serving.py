"""Requests of which it is known what was served, reported honestly or not: for what is inferred, not added up.

knowledge: how closely the hits that a request must have are known. `point`: to the token, as under a block rule;
`narrow` and `wide`: an interval, whose width is drawn from up to 0.2%, or 5%, of the prompt (half of them: none).
"""

from __future__ import annotations

import random

import biller

HONEST = "none"
NOTHING = "the fault did not happen"
"""No lapse was drawn in a run."""
FAULTS = (HONEST, "2% of every hit withheld", "hits of 2% of the requests withheld", "0.5% of the hits lapsed")
KNOWLEDGE = ("point", "narrow", "wide")
VERDICTS = ("confirmed", "disputed", "cannot tell")
_WIDTH = {"point": 0.0, "narrow": 0.002, "wide": 0.05}


def verdict(fault: str, knowledge: str, seed: int, count: int) -> str:
    from kvbench.analysis.billing.served import served
    from kvbench.analysis.billing.sides import asked
    from kvbench.model import Usage
    from kvbench.prices.load import load_book
    from kvbench.prices.priced import Billable
    from kvbench.prices.pricing import PriceList

    rng = random.Random(f"{fault} {knowledge} {seed}")
    billables = []
    withheld = 0
    for used in biller.traffic(seed, count):
        hit = used.tokens["hit"]
        prompt = hit + used.tokens["miss"]
        width = 0 if rng.random() < 0.5 else int(prompt * rng.uniform(0, _WIDTH[knowledge]))
        below = rng.randint(0, width)
        # The rule may know less than the endpoint did, never more.
        floor, ceiling = max(0, hit - below), min(prompt, hit + width - below)
        reported = _reported(hit, fault, rng)
        withheld += hit - reported
        billables.append(
            Billable(
                request_id=used.name,
                model="deepseek-flash",
                usage=Usage(
                    input_tokens=prompt,
                    cached_tokens=reported,
                    output_tokens=used.tokens["output"],
                ),
                start=used.start,
                end=used.end,
                floor=floor,
                ceiling=ceiling,
            )
        )
    if fault != HONEST and not withheld:
        return NOTHING
    return str(served(asked(PriceList([load_book("deepseek")]), billables, "start"))["verdict"])


def _reported(hit: int, fault: str, rng: random.Random) -> int:
    if fault == FAULTS[1]:
        return int(hit * 0.98)
    if fault == FAULTS[2] and rng.random() < 0.02:
        return 0
    if fault == FAULTS[3] and rng.random() < 0.005:
        return 0
    return hit
