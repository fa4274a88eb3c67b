"""A price book of one model and one row, as a user writes it."""

from __future__ import annotations


def book(
    model: str, hit: str, miss: str, output: str, *, name: str = "own", currency: str = "USD", write: str = ""
) -> str:
    """Prices for a million tokens. write: lines that say what is asked for what is written to the cache."""
    return f"""kvbench_prices = 1
name = "{name}"
provider = "Own"
currency = "{currency}"
checked = 2026-11-01
[[model]]
id = "{model}"
hit_rule = "none"
[[row]]
model = "{model}"
currency = "{currency}"
from = 2020-01-01T00:00:00Z
hit = {hit}
miss = {miss}
{write}
output = {output}
status = "official"
source = "made up"
"""
