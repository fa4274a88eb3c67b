"""Exact prices of single requests, worked out by hand; and what is refused instead of being priced."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from kvbench.errors import UsageError
from kvbench.prices.load import load_book
from kvbench.prices.money import plain
from kvbench.prices.priced import Billable, Priced, Unpriced
from kvbench.prices.pricing import PriceList
from kvbench.usage import normalise

DEEPSEEK = PriceList([load_book("deepseek")])
TEMPLATE = PriceList([load_book("template")])
MAY = datetime(2026, 5, 1, tzinfo=UTC)
JULY = datetime(2026, 7, 1, 12, tzinfo=UTC)
NOVEMBER = datetime(2026, 11, 14, 12, tzinfo=UTC)  # a Saturday


def priced(prices: PriceList, model: str, start: datetime, usage: dict[str, Any], **more: Any) -> Priced:
    got = prices.price(Billable(request_id="r", model=model, usage=normalise(usage), start=start, **more))
    assert isinstance(got, Priced), got
    return got


def refused(prices: PriceList, model: str, start: datetime, usage: dict[str, Any], **more: Any) -> Unpriced:
    got = prices.price(Billable(request_id="r", model=model, usage=normalise(usage), start=start, **more))
    assert isinstance(got, Unpriced), got
    return got


def kinds(got: Priced) -> dict[str, tuple[int, Decimal | None]]:
    return {part.kind: (part.tokens, part.amount.exact) for part in got.parts}


def anthropic(rest: int, read: int, short: int, long: int, output: int) -> dict[str, Any]:
    return {
        "input_tokens": rest,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": short + long,
        "cache_creation": {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": long},
        "output_tokens": output,
        "service_tier": "standard",
    }


def test_a_month_of_an_agents_traffic() -> None:
    usage = {
        "prompt_tokens": 435_801_472,
        "prompt_cache_hit_tokens": 435_033_856,
        "prompt_cache_miss_tokens": 767_616,
        "completion_tokens": 179_763,
    }
    got = priced(DEEPSEEK, "deepseek-v4-flash", MAY, usage)
    # 435.033856 x 0.0028 + 0.767616 x 0.14 + 0.179763 x 0.28
    assert got.amount.exact == Decimal("1.2180947968") + Decimal("0.10746624") + Decimal("0.05033364")
    assert f"{got.amount.exact:.3f}" == "1.376"


def test_a_hit_of_may_costs_a_token() -> None:
    row = priced(DEEPSEEK, "deepseek-flash", MAY, {"prompt_tokens": 1, "completion_tokens": 0, "cached_tokens": 1}).row
    assert row.per_token("hit") == Decimal("2.8e-9")


def test_what_was_read_from_the_cache_leaves_the_rest() -> None:
    usage = {"prompt_tokens": 17_111, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 17_102}}
    got = priced(DEEPSEEK, "deepseek-flash", MAY, usage)
    assert [(part.kind, part.tokens) for part in got.parts] == [("hit", 17_102), ("miss", 9), ("output", 1)]


def test_hit_and_miss_are_the_prompt_not_more() -> None:
    usage = {
        "prompt_tokens": 100,
        "prompt_cache_hit_tokens": 20,
        "prompt_cache_miss_tokens": 80,
        "prompt_tokens_details": {"cached_tokens": 20},
        "completion_tokens": 0,
    }
    got = priced(DEEPSEEK, "deepseek-flash", MAY, usage)
    assert sum(part.tokens for part in got.parts) == 100


def test_kimi_at_96_percent_hits() -> None:
    usage = {"prompt_tokens": 1_000_000, "prompt_tokens_details": {"cached_tokens": 960_000}, "completion_tokens": 0}
    assert priced(PriceList([load_book("together")]), "kimi-k3", NOVEMBER, usage).amount.exact == Decimal("0.408")


def test_a_week_of_october_is_peak_for_35_of_168_hours() -> None:
    monday = datetime(2026, 10, 12, tzinfo=UTC)
    usage = {"prompt_tokens": 1000, "cached_tokens": 0, "completion_tokens": 0}
    peak = [priced(DEEPSEEK, "deepseek-flash", monday + timedelta(hours=hour), usage).peak for hour in range(168)]
    assert (sum(peak), len(peak)) == (35, 168)
    assert [hour for hour in range(24) if peak[hour]] == [1, 2, 3, 6, 7, 8, 9]


def test_anthropics_input_is_the_uncached_rest_and_writes_have_two_prices() -> None:
    got = priced(TEMPLATE, "example-latest", JULY, anthropic(9, 1_000_000, 200_000, 100_000, 1000))
    assert kinds(got) == {
        "hit": (1_000_000, Decimal("0.25")),
        "write_5m": (200_000, Decimal("0.625")),
        "write_1h": (100_000, Decimal("0.5")),
        "miss": (9, Decimal("0.0000225")),
        "output": (1000, Decimal("0.01")),
    }


def test_writes_that_cost_what_a_miss_does_are_no_kind_of_their_own() -> None:
    got = priced(TEMPLATE, "example-large", NOVEMBER, anthropic(9, 1000, 200, 100, 10))
    assert [(part.kind, part.tokens) for part in got.parts] == [("hit", 1000), ("miss", 309), ("output", 10)]


def test_writes_whose_lifetime_is_not_told_are_an_interval() -> None:
    usage = anthropic(0, 0, 0, 0, 0) | {"cache_creation_input_tokens": 1_000_000}
    del usage["cache_creation"]
    usage["output_tokens_details"] = {"reasoning_tokens": 0}
    amount = priced(TEMPLATE, "example-large", JULY, usage).amount
    assert (amount.least, amount.most, amount.exact) == (Decimal("3.125"), Decimal("5"), None)


def test_hits_that_are_not_told_are_an_interval_and_never_none() -> None:
    got = priced(DEEPSEEK, "deepseek-flash", MAY, {"prompt_tokens": 1_000_000, "completion_tokens": 0})
    assert (got.amount.least, got.amount.most, got.amount.exact) == (Decimal("0.0028"), Decimal("0.14"), None)
    assert [(part.kind, part.tokens) for part in got.parts] == [("input", 1_000_000)]


def test_reasoning_is_inside_the_output() -> None:
    usage = {
        "prompt_tokens": 1_000_000,
        "cached_tokens": 1_000_000,
        "completion_tokens": 1_000_000,
        "completion_tokens_details": {"reasoning_tokens": 400_000},
    }
    assert priced(DEEPSEEK, "deepseek-flash", MAY, usage).amount.exact == Decimal("0.0028") + Decimal("0.28")
    assert kinds(
        priced(TEMPLATE, "example-large", JULY, usage | {"prompt_tokens_details": {"cache_write_tokens": 0}})
    ) == {
        "hit": (1_000_000, Decimal("0.25")),
        "reasoning": (400_000, Decimal("4")),
        "output": (600_000, Decimal("6")),
    }


def test_a_placeholder_of_output_is_an_interval() -> None:
    usage = {"prompt_tokens": 1, "cached_tokens": 0, "completion_tokens": 1}
    got = priced(DEEPSEEK, "deepseek-flash", MAY, usage, output_open=True, output_most=1_000_000)
    # one token missed, 0.14 by a million
    assert (got.amount.least, got.amount.most) == (Decimal("0.00000042"), Decimal("0.28000014"))
    unbounded = priced(DEEPSEEK, "deepseek-flash", MAY, usage, output_open=True)
    assert (unbounded.amount.least, unbounded.amount.most) == (Decimal("0.00000042"), None)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"prompt_tokens": 100_000}, "0.2"),
        ({"prompt_tokens": 199_999}, "0.399998"),
        ({"prompt_tokens": 200_000}, "0.8"),
        ({"service_tier": "default"}, "4"),
        ({"service_tier": "priority"}, "4"),
        ({"service_tier": "batch"}, "1"),
    ],
)
def test_tariffs_by_length_tier_and_batch(more: dict[str, Any], expected: str) -> None:
    usage = {"prompt_tokens": 1_000_000, "cached_tokens": 0, "completion_tokens": 0} | more
    assert priced(TEMPLATE, "example-large", NOVEMBER, usage).amount.exact == Decimal(expected)


def test_a_batch_may_be_said_of_the_request() -> None:
    usage = {"prompt_tokens": 1_000_000, "cached_tokens": 0, "completion_tokens": 0}
    assert priced(TEMPLATE, "example-large", NOVEMBER, usage, batch=True).amount.exact == Decimal("1")


def test_server_tools_have_a_list_of_their_own() -> None:
    usage = {
        "prompt_tokens": 1000,
        "cached_tokens": 0,
        "completion_tokens": 0,
        "server_tool_use": {"web_search_requests": 3},
    }
    cny = PriceList([load_book("deepseek")], "CNY")
    # three calls at 5 by 1,000, 1,000 tokens at 1 by 1,000,000
    assert priced(cny, "deepseek-flash", NOVEMBER, usage).amount.exact == Decimal("0.015") + Decimal("0.001")
    assert "no price in USD" in refused(DEEPSEEK, "deepseek-flash", NOVEMBER, usage).why
    before = datetime(2026, 10, 31, 15, 59, 59, tzinfo=UTC)
    assert refused(cny, "deepseek-flash", before, usage).reason == "no_price"
    assert priced(cny, "deepseek-flash", before + timedelta(seconds=1), usage).amount.exact == Decimal("0.016")


def test_the_moment_that_decides_is_an_option() -> None:
    usage = normalise({"prompt_tokens": 1_000_000, "cached_tokens": 0, "completion_tokens": 0})
    start = datetime(2026, 11, 16, 0, 59, 59, tzinfo=UTC)
    request = Billable(
        request_id="r", model="deepseek-flash", usage=usage, start=start, end=start + timedelta(seconds=1)
    )
    amounts = [got.amount.exact for at in ("start", "end") if isinstance(got := DEEPSEEK.price(request, at), Priced)]
    assert amounts == [Decimal("0.15"), Decimal("0.30")]


@pytest.mark.parametrize(
    ("model", "start", "usage", "reason", "says"),
    [
        ("deepseek-v5", MAY, {}, "unknown_model", "deepseek-v4-pro"),
        ("DeepSeek-Flash", MAY, {}, "unknown_model", "deepseek-flash"),
        ("deepseek-chat", MAY, {}, "no_row", "retired on 2026-07-24"),
        ("deepseek-flash", datetime(2025, 1, 1, tzinfo=UTC), {}, "no_row", "2026-04-24"),
        ("deepseek-flash", MAY, {"prompt_tokens": None}, "no_usage", "input_tokens"),
        ("deepseek-flash", MAY, {"prompt_tokens": 0, "cached_tokens": 0}, "no_usage", "a placeholder"),
        ("deepseek-flash", MAY, {"completion_tokens": None}, "no_usage", "output_tokens"),
        ("deepseek-flash", MAY, {"cached_tokens": 101}, "bad_usage", "101"),
        ("deepseek-flash", MAY, {"prompt_tokens": -1}, "bad_usage", "negative"),
        ("deepseek-flash", MAY, {"prompt_cache_hit_tokens": 9}, "bad_usage", "disagree"),
        ("deepseek-flash", MAY, {"service_tier": "flex"}, "no_row", "flex"),
    ],
)
def test_what_is_refused(model: str, start: datetime, usage: dict[str, Any], reason: str, says: str) -> None:
    full = {"prompt_tokens": 100, "cached_tokens": 10, "completion_tokens": 5} | usage
    got = refused(DEEPSEEK, model, start, full)
    assert got.reason == reason
    assert says in got.why


def test_a_kind_without_a_price_is_refused_and_not_free() -> None:
    usage = {"prompt_tokens": 100, "cached_tokens": 10, "completion_tokens": 5}
    assert refused(TEMPLATE, "example-large", NOVEMBER, usage | {"service_tier": "batch"}).reason == "no_price"
    written = {
        "prompt_tokens": 100,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cache_write_tokens": 50, "cached_tokens": 0},
    }
    assert refused(PriceList([load_book("together")]), "kimi-k3", NOVEMBER, written).reason == "no_price"


def test_no_list_in_a_currency_is_refused_as_a_whole() -> None:
    with pytest.raises(UsageError, match="no list in it; there are CNY, USD"):
        PriceList([load_book("deepseek")], "EUR")


def test_two_books_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="two price books have the name deepseek"):
        PriceList([load_book("deepseek"), load_book("together"), load_book("deepseek")])


def test_money_is_never_rounded() -> None:
    usage = {"prompt_tokens": 2**53, "cached_tokens": 2**53 - 1, "completion_tokens": 1}
    got = priced(DEEPSEEK, "deepseek-v4-pro", MAY, usage)
    # 9007199254740991 x 0.003625 = 32651097298436.092375, then 0.435 and 0.87, all by a millionth
    assert plain(got.amount.exact or Decimal(0)) == "32651097.298437397375"
