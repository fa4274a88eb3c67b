"""Draws: the same everywhere, with the distribution that is asked for."""

from __future__ import annotations

import hashlib
import random

import msgspec
import pytest

from kvbench.traces.synth.dice import Amounts, Dice, Draw, drawn, drawn_whole, of_turn


def test_the_draws_of_a_seed_never_change() -> None:
    """MT19937, seeded with the text and its SHA-512: what Python has done for seeds of text since 3.2."""
    seed = b"7/s01"
    twister = random.Random(int.from_bytes(seed + hashlib.sha512(seed).digest(), "big"))
    dice = Dice("7/s01")
    assert [dice.rank() for _ in range(4)] == [twister.random() for _ in range(4)]
    assert Dice("7/s01").rank() == 0.26905069345937815
    assert Dice("7/s01").shuffled(range(6)) == [2, 5, 4, 3, 0, 1]


def test_uniform_ranges_of_whole_numbers_have_each_number_equally_often() -> None:
    draw = Draw(range=(2, 4))
    assert [draw.whole(rank) for rank in (0.0, 0.33, 0.34, 0.66, 0.67, 0.999999)] == [2, 2, 3, 3, 4, 4]
    assert draw.at(0.25) == 2.5


def test_values_come_by_their_weights() -> None:
    draw = Draw(values=(10, 20, 30), weights=(1, 0, 3))
    assert [draw.at(rank) for rank in (0.0, 0.24, 0.26, 0.999)] == [10, 10, 30, 30]
    assert [Draw(values=(1, 2)).at(rank) for rank in (0.49, 0.5)] == [1, 2]


def test_quantiles_are_joined_by_lines() -> None:
    draw = Draw(quantiles=((0, 1), (0.5, 3), (0.5, 10), (1, 20)))
    assert [draw.at(rank) for rank in (0.0, 0.25, 0.5, 0.75)] == [1, 2, 10, 15]
    assert draw.whole(0.26) == 2


def test_log_normal_quantiles() -> None:
    draw = Draw(median=100, sigma=1.0, range=(20, 500))
    assert draw.at(0.5) == pytest.approx(100)
    # 84.1345% of a normal distribution lies below one sigma
    assert draw.at(0.841344746) == pytest.approx(271.828, rel=1e-5)
    assert [draw.at(0.0), draw.at(0.99999)] == [20, 500]


def test_a_rank_near_a_uniform_one_is_uniform_and_near() -> None:
    dice = Dice("near")
    counts = [0] * 10
    for _ in range(20_000):
        rank = dice.rank()
        near = dice.near(rank)
        assert abs(near - rank) <= 0.05 + 1e-9
        counts[int(10 * near)] += 1
    # 2,000 each, give or take six standard deviations of 42
    assert max(abs(count - 2000) for count in counts) < 255


def test_amounts_hold_from_a_turn_on() -> None:
    amounts = (Draw(values=(5,), from_turn=2), Draw(values=(7,), from_turn=10))
    assert [drawn_whole(of_turn(amounts, turn), 0.5) for turn in (0, 2, 9, 10, 99)] == [5, 5, 5, 7, 7]
    assert drawn(of_turn(3.5, 4), 0.1) == 3.5
    assert drawn_whole(2.6, 0.1) == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "found none of them"),
        ({"median": 1}, "go together"),
        ({"sigma": 1, "range": [1, 2]}, "go together"),
        ({"median": 0, "sigma": 1}, "above 0"),
        ({"range": [2, 1]}, "least, most"),
        ({"range": [1, 2], "values": [1]}, "least, most"),
        ({"values": []}, "one or more"),
        ({"values": [1, 2], "weights": [1]}, "as many weights"),
        ({"values": [1], "weights": [0]}, "not all 0"),
        ({"range": [1, 2], "weights": [1]}, "go with values"),
        ({"values": [1], "quantiles": [[0, 1], [1, 2]]}, "values and quantiles"),
        ({"quantiles": [[0, 1]]}, "rise from share 0 to share 1"),
        ({"quantiles": [[0, 1], [0.9, 2]]}, "rise from share 0 to share 1"),
        ({"quantiles": [[0, 2], [1, 1]]}, "rise from share 0 to share 1"),
        ({"values": [-1]}, ">= 0"),
        ({"mean": 3}, "unknown field"),
    ],
)
def test_half_a_distribution_is_refused(given: dict[str, object], message: str) -> None:
    class Holder(msgspec.Struct):
        amount: Amounts

    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert({"amount": given}, Holder)
