"""The report on verdicts, on a few seeds: its biller charges what it says, and its faults are found."""

from __future__ import annotations

import importlib
import random
from decimal import Decimal
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[2] / "reports" / "pricing"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("run")


def test_the_biller_charges_what_its_fault_says(load: ModuleType) -> None:
    biller = load.biller
    items = biller.bill(biller.traffic(1, 50), biller.Habits())
    whole = biller.total(items)
    by_hand = sum(
        (2 if 1 <= item.at.hour < 4 or 6 <= item.at.hour < 10 else 1)
        * (item.tokens["hit"] * 3 + item.tokens["miss"] * 150 + item.tokens["output"] * 600)
        for item in items
    )
    assert whole == Decimal(by_hand) / 1_000_000_000
    biller.price_off(items, random.Random(1))
    assert biller.total(items) == whole * Decimal("1.005")
    biller.doubled(items, random.Random(1))
    assert biller.total(items) == whole * Decimal("2.01")


def test_a_fault_of_each_kind_is_found_in_each_invoice(load: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "REQUESTS", 120)
    for number, name in enumerate(load.FAULTS):
        got = load.faulty((name, load.TARGETED[number % 2], number))
        assert got["found"], (name, got)
        assert got["off"] <= 0.02


def test_no_honest_bill_is_disputed(load: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "REQUESTS", 120)
    verdicts = [load.honest((invoice, seed))["verdict"] for invoice in load.INVOICES for seed in range(3)]
    assert "disputed" not in verdicts
    assert "confirmed" in verdicts
