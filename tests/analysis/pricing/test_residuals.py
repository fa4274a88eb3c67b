"""Residuals and granularity of a price report, on figures worked out by hand."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from kvbench.analysis.pricing.granularity import Granules, accident
from kvbench.analysis.pricing.report import PriceFold, Source
from kvbench.model import Usage
from kvbench.prices.load import load_book
from kvbench.prices.priced import Billable
from kvbench.prices.pricing import PriceList
from kvbench.render.price_text import price_lines
from kvbench.traces.prefix import BlockRule, StepsRule, UnitsRule
from kvbench.traces.prefix.rules import granules_of

NOW = datetime(2026, 11, 30, tzinfo=UTC)
UNITS = UnitsRule().name


def one(cached: int | None, floor: int | None = None, ceiling: int | None = None, **more: Any) -> Billable:
    """10,000 tokens of input, Thursday noon unless said otherwise: hit 0.003, miss 0.15 a million."""
    start = more.pop("start", datetime(2026, 10, 15, 12, tzinfo=UTC))
    return Billable(
        request_id=f"r{random.random()}",
        model="deepseek-flash",
        usage=Usage(input_tokens=10_000, cached_tokens=cached, output_tokens=10),
        start=start,
        floor=floor,
        ceiling=ceiling,
        rule=None if floor is None else UNITS,
        **more,
    )


def report(*billables: Billable, unpredicted: str | None = None) -> dict[str, Any]:
    fold = PriceFold(PriceList([load_book("deepseek")]))
    for billable in billables:
        fold.add(billable)
    return fold.report(Source(kind="run", path="here", unpredicted=unpredicted), NOW)


def test_residuals_are_distances_from_the_interval_by_where_they_fell() -> None:
    peak = datetime(2026, 10, 15, 1, 30, tzinfo=UTC)
    got = report(
        one(0, 0, 128, turn=0, sub_agent=False),
        one(6_400, 6_400, 6_400, turn=1, pause_s=0.5, sub_agent=False),
        one(5_376, 6_400, 6_464, turn=2, pause_s=400.0, sub_agent=False),
        one(5_888, 6_400, 6_400, turn=3, pause_s=61.0, sub_agent=True, start=peak),
        one(6_656, 6_400, 6_400, turn=60, pause_s=4_000.0, sub_agent=True),
        one(128),
        one(None, 128, 256),
    )
    found = got["residuals"]
    assert (found["requests"], found["inside"], found["below"], found["above"]) == (5, 2, 2, 1)
    assert (found["not_predicted"], found["hits_not_reported"]) == (1, 1)
    # 5,376 is 1,024 below, at 0.147 a million; 5,888 is 512 below at twice that; 6,656 is 256 above.
    assert (found["below_tokens"], found["above_tokens"]) == (1_536, 256)
    assert Decimal(found["below_amount"]) == Decimal("0.000147") * 1_024 / 1_000 + Decimal("0.000294") * 512 / 1_000
    assert Decimal(found["above_amount"]) == Decimal("0.000147") * 256 / 1_000
    assert found["tokens"] == {
        "least": -1_024,
        "p5": pytest.approx(-921.6),  # a fifth of the way from -1,024 to -512
        "p50": 0,
        "p95": pytest.approx(204.8),
        "most": 256,
        "mean": pytest.approx(-256),
    }
    assert found["median_width"] == 0
    by = {name: {where: (b["below"], b["above"]) for where, b in bins.items()} for name, bins in found["by"].items()}
    assert by == {
        "turn": {"0": (0, 0), "1": (0, 0), "2-4": (2, 0), "50 and on": (0, 1)},
        "pause": {
            "first turn": (0, 0),
            "below 1 s": (0, 0),
            "1-5 min": (1, 0),
            "5-60 min": (1, 0),
            "1 h and more": (0, 1),
        },
        "session": {"root": (1, 0), "sub-agent": (1, 1)},
        "hour": {"01": (1, 0), "12": (1, 1)},
    }
    lines = price_lines(got)
    (row,) = [line.split() for line in lines if "sub-agent" in line]
    assert row[:4] == ["sub-agent", "2", "1", "1"]


def test_where_nothing_was_predicted_it_is_said() -> None:
    got = report(one(128), unpredicted="the endpoint tells no token ids")
    assert got["residuals"]["requests"] == 0
    (line,) = [line for line in price_lines(got) if line.startswith("residual")]
    assert line == "residual   not predicted: the endpoint tells no token ids"


def test_no_table_where_all_is_as_predicted() -> None:
    lines = price_lines(report(one(6_400, 6_400, 6_400, turn=1)))
    assert any("1 of 1 request inside [floor, ceiling]" in line for line in lines)
    assert not any("outside, by" in line for line in lines)


# -------------------------------------------------------------------------------------------------------- granularity


def granules(*sizes: int, rule: str | None = None) -> dict[str, Any]:
    found = Granules()
    for size in sizes:
        found.add(size, rule)
    return found.as_dict()


def test_the_granule_is_the_common_divisor_of_hits() -> None:
    # hits of the V4 era seen in public
    got = granules(200_448, 2_432, 20_608, 22_784, 435_033_856, 0, rule=UNITS)
    assert (got["granule_tokens"], got["hits"], got["sizes"]) == (128, 5, 5)
    # 1 - 1/zeta(5), zeta(5) = 1.0369277551...
    assert got["accident"] == pytest.approx(1 - 1 / 1.0369277551433699)
    assert got["agrees"] is None  # 3.6% is no proof of it
    assert granules(640, 640, 640)["sizes"] == 1
    assert granules(0)["granule_tokens"] is None


def test_the_chance_of_an_accident_is_that_of_random_numbers() -> None:
    rng = random.Random(1)
    for n in (2, 3, 5):
        drawn = sum(math.gcd(*(rng.randrange(1, 10**9) for _ in range(n))) > 1 for _ in range(20_000)) / 20_000
        assert accident(n) == pytest.approx(drawn, abs=0.012)
    assert accident(1) == 1


@pytest.mark.parametrize(
    ("step", "rule", "agrees"),
    [
        (64, UNITS, True),
        (128, UNITS, True),
        (256, UNITS, False),
        (32, UNITS, False),
        (16, BlockRule(16).name, True),
        (16, BlockRule(32).name, False),
        (64, BlockRule(32).name, False),
        (128, StepsRule().name, True),
        (64, StepsRule().name, False),
        (1, None, None),
    ],
)
def test_the_granule_is_held_against_the_rule(step: int, rule: str | None, agrees: bool | None) -> None:
    got = granules(*(step * number for number in range(11, 40)), rule=rule)
    assert (got["granule_tokens"], got["agrees"]) == (step, agrees)
    assert bool(got["differs"]) == (agrees is False)


def test_a_hit_that_the_rule_cannot_give_differs_however_few_there_are() -> None:
    assert granules(640, 650, rule=BlockRule(64).name)["agrees"] is False
    assert granules(640, 1_280, rule=BlockRule(64).name)["agrees"] is None


def test_other_steps_are_a_finding_of_their_own() -> None:
    got = report(*(one(96 * number, 96 * number, 96 * number) for number in range(1, 30)))
    (found,) = [each for each in got["findings"] if each["kind"] == "granularity_differs"]
    # of 96, 192, ... 2,784 the even multiples are multiples of 64 too
    assert (found["requests"], found["amount"]) == (15, "0")
    assert "steps of 96" in found["evidence"]
    assert any("DIFFERS" in line for line in price_lines(got))


def test_the_names_of_rules_say_their_steps() -> None:
    assert granules_of(UNITS) == (64, 128)
    assert granules_of(UnitsRule(64, 0, 60, 2048).name) == (64, 64)
    assert granules_of(BlockRule(48, None, 128).name) == (48, 48)
    assert granules_of(StepsRule().name + " (ids by tokenizer words)") == (128, 128)
    assert granules_of("something else") is None
