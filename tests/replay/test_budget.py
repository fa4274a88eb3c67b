"""A run never costs more than it may, whatever is in flight and however it ends."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace
from tests.books import book

from kvbench.errors import ConfigError, UsageError
from kvbench.model import Clock, Record
from kvbench.prices.load import load_book, parse_book
from kvbench.prices.pricing import PriceList
from kvbench.replay.budget import Budget

BOOK = book("m", "1", "10", "100")
NOON = datetime(2026, 11, 14, 12, tzinfo=UTC)


def budget(limit: str, book: str = BOOK) -> Budget:
    made = Budget(PriceList([parse_book(book, "own.toml")]), Decimal(limit), lambda: NOON)
    made.zero_unix_ns = int(NOON.timestamp()) * 10**9
    return made


def body(prompt_tokens: int, output_tokens: int | None = 10) -> dict[str, Any]:
    return {"model": "m", "prompt": [7] * prompt_tokens, "max_tokens": output_tokens}


def record(usage: dict[str, Any] | None, *, status: int | None = 200, ok: bool = True, sent: int | None = 1) -> Record:
    return Record(
        request_id="r",
        session_id="s",
        turn=0,
        clock=Clock(scheduled=0, due=0, upload_start=sent, sent=sent, end=2),
        usage_raw=usage,
        http_status=status,
        error_class=None if ok else "broken",
        request_model="m",
    )


def used(hit: int, miss: int, output: int) -> dict[str, Any]:
    return {"prompt_cache_hit_tokens": hit, "prompt_cache_miss_tokens": miss, "completion_tokens": output}


async def test_the_worst_is_set_aside_and_what_it_was_is_spent() -> None:
    spending = budget("1")
    # 1,000 tokens at 10 and 10 at 100, by the million
    reserved = await spending.reserve(body(1000))
    assert reserved == Decimal("0.011")
    spending.settle(reserved, record(used(900, 100, 5)))
    assert spending.spent == Decimal("0.0009") + Decimal("0.001") + Decimal("0.0005")


async def test_text_is_no_more_tokens_than_bytes() -> None:
    text = {"model": "m", "messages": [{"role": "user", "content": "ä" * 100}], "max_tokens": 1}
    # 200 bytes of text in 43 of {"messages":[{"role":"user","content":""}]}, and 512 for a chat template
    assert await budget("1").reserve(text) == Decimal("0.00755") + Decimal("0.0001")


async def test_all_that_a_body_asks_for_is_bounded() -> None:
    plain = await budget("1").reserve(body(1000, 10))
    assert plain == Decimal("0.011")
    assert await budget("1").reserve(body(1000, 10) | {"n": 3}) == plain + 2 * Decimal("0.001")
    text = {"model": "m", "messages": [], "max_tokens": 0, "response_format": {"type": "x" * 100}, "user": "x" * 100}
    # 15 of {"messages":[]}, 130 of ,"response_format":{"type":""} and its hundred, and 512 for a chat template
    assert await budget("1").reserve(text) == Decimal(15 + 130 + 512) * 10 / 10**6
    row = BOOK[BOOK.index("[[row]]") :].replace("miss = 10", 'miss = 20\nservice_tier = "priority"')
    assert await budget("1", BOOK + row).reserve(body(1000, 10) | {"service_tier": "priority"}) == Decimal("0.021")


@pytest.mark.parametrize(
    ("got", "spent"),
    [
        (record(None, status=503, ok=False), "0"),  # refused: nothing was used
        (record(None, status=None, ok=False, sent=None), "0"),  # never left
        (record(None, status=200, ok=False), "0.011"),  # broke off: it may be billed in full
        (record(None, status=None, ok=False), "0.011"),
        (record({"prompt_tokens": 1000, "completion_tokens": 10}), "0.011"),  # hits not told: at most all missed
        (record(used(0, 1000, 500)), "0.06"),  # more than max_tokens: what is billed counts
        (record({"prompt_tokens": -1, "completion_tokens": 10}), "0.011"),
    ],
)
async def test_what_an_attempt_can_have_cost(got: Record, spent: str) -> None:
    spending = budget("1")
    reserved = await spending.reserve(body(1000))
    assert reserved is not None
    spending.settle(reserved, got)
    assert spending.spent == Decimal(spent)


async def test_it_waits_for_what_is_in_flight_and_stops_where_that_does_not_help() -> None:
    spending = budget("0.02")
    first = await spending.reserve(body(1000))
    assert first is not None
    second = asyncio.ensure_future(spending.reserve(body(1000)))
    third = asyncio.ensure_future(spending.reserve(body(1000)))
    await asyncio.sleep(0)
    assert not second.done()
    spending.settle(first, record(used(1000, 0, 0)))
    assert await second == Decimal("0.011")
    await asyncio.sleep(0)
    assert not third.done()
    spending.settle(Decimal("0.011"), record(used(0, 1000, 10)))
    assert await third is None  # 0.012 are spent, 0.008 are left
    assert spending.used_up
    assert "at most USD 0.012" in spending.warnings()[0].message


async def test_peak_prices_are_expected_and_the_dearer_end_counts() -> None:
    spending = Budget(PriceList([load_book("deepseek")]), Decimal(1), lambda: NOON)
    start = datetime(2026, 11, 16, 0, 59, 59, tzinfo=UTC)
    spending.zero_unix_ns = int(start.timestamp()) * 10**9
    reserved = await spending.reserve({"model": "deepseek-flash", "prompt": [7] * 1000, "max_tokens": 0})
    assert reserved == Decimal("0.0003")  # a Saturday, but an answer may end in peak hours
    clock = Clock(scheduled=0, due=0, upload_start=0, sent=0, end=1_000_000_000)
    spending.settle(reserved, replace(record(used(0, 1000, 0)), clock=clock, request_model="deepseek-flash"))
    assert spending.spent == Decimal("0.0003")


@pytest.mark.parametrize("seed", range(5))
async def test_no_order_of_answers_passes_the_limit(seed: int) -> None:
    chance = random.Random(seed)
    spending = budget("0.1")
    bills: list[Decimal] = []

    async def session() -> None:
        while True:
            tokens, output = chance.randrange(1, 3000), chance.randrange(1, 20)
            reserved = await spending.reserve(body(tokens, output))
            if reserved is None:
                return
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            hit = chance.randrange(tokens + 1)
            answer = chance.randrange(output + 1)
            bills.append(Decimal(hit + 10 * (tokens - hit) + 100 * answer) / 10**6)
            spending.settle(reserved, record(used(hit, tokens - hit, answer)))

    await asyncio.wait_for(asyncio.gather(*(session() for _ in range(20))), 20)
    assert spending.spent == sum(bills) <= Decimal("0.1")
    # The largest request may cost 0.032: no more than that is left unused.
    assert sum(bills) > Decimal("0.1") - Decimal("0.032")


@pytest.mark.parametrize(
    ("request_body", "says"),
    [
        (body(1, None), "says no output length"),
        ({**body(1), "model": "k"}, "no price for the model k"),
        ({**body(1), "n": 2.5}, "how many answers"),
        ({**body(1), "n": 2, "best_of": 4}, "how many answers"),
        ({**body(1), "service_tier": "auto"}, "service tier auto"),
        (
            {
                "model": "m",
                "max_tokens": 1,
                "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}],
            },
            "image",
        ),
    ],
)
async def test_what_has_no_bound_is_refused(request_body: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        await budget("1").reserve(request_body)


def test_several_currencies_are_refused() -> None:
    books = [parse_book(BOOK, "a"), parse_book(BOOK.replace("USD", "CNY").replace('"own"', '"other"'), "b")]
    with pytest.raises(UsageError, match="CNY, USD"):
        Budget(PriceList(books), Decimal(1))
