"""Agent traffic from a seed, and a provider that bills it, honestly or not. Shares nothing with what verifies the bill.

Prices are DeepSeek's for Flash from 10 September 2026 on, written out again; peak is Monday to Friday, 01:00-04:00 and
06:00-10:00 UTC, twice the price. The traffic is of Tuesday to Thursday, 13 to 15 October 2026: no holiday among them.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

BEGIN = datetime(2026, 10, 13, tzinfo=UTC)
HOURS = 60
PER_M = {"hit": Decimal("0.003"), "miss": Decimal("0.15"), "output": Decimal("0.60")}
KINDS = ("hit", "miss", "output")
TYPES = {"hit": "input_cache_hit_tokens", "miss": "input_cache_miss_tokens", "output": "output_tokens"}
KEY = "agents"


@dataclass(frozen=True)
class Used:
    """One request as it was, and as usage reported it. refused: it got a 429. silent: its stream broke off, and no
    usage came."""

    name: str
    start: datetime
    end: datetime
    tokens: dict[str, int]
    refused: bool = False
    silent: bool = False


@dataclass
class Item:
    """One request as it is billed."""

    used: Used
    tokens: dict[str, int]
    at: datetime
    peak: bool
    factor: Decimal = Decimal(1)
    times: int = 1

    @property
    def prices(self) -> dict[str, Decimal]:
        return {kind: price / 1_000_000 * (2 if self.peak else 1) * self.factor for kind, price in PER_M.items()}

    @property
    def amount(self) -> Decimal:
        return self.times * sum((self.tokens[kind] * price for kind, price in self.prices.items()), Decimal(0))


@dataclass
class Habits:
    """What an honest provider may do one way or another. moment: what decides on the hour."""

    moment: str = "start"
    clock_s: float = 0.0
    counts_refused: bool = False
    decimals: int = 10
    daily: bool = False
    bom: bool = False
    crlf: bool = False
    wallets: bool = False
    alias: str = "deepseek-flash"
    others: int = 0
    extra: list[Used] = field(default_factory=list)


def is_peak(at: datetime) -> bool:
    return at.weekday() < 5 and (1 <= at.hour < 4 or 6 <= at.hour < 10)


def traffic(seed: int, count: int = 1000, *, silent: int = 0) -> list[Used]:
    """Sessions whose prompts grow turn by turn; hits are multiples of 128 of what the turn before sent."""
    rng = random.Random(f"traffic {seed}")
    found: list[Used] = []
    session = 0
    while len(found) < count:
        session += 1
        at = BEGIN + timedelta(seconds=rng.uniform(0, (HOURS - 3) * 3600))
        before, prompt = 0, rng.randrange(4_000, 16_000)
        for turn in range(min(rng.randrange(5, 45), count - len(found))):
            hit = 0 if turn == 0 or rng.random() < 0.03 else min(before, prompt) // 128 * 128
            output = rng.randrange(40, 1_200)
            length = timedelta(seconds=0.3 + (prompt - hit) / 20_000 + output / rng.uniform(40, 90))
            tokens = {"hit": hit, "miss": prompt - hit, "output": output}
            found.append(Used(f"s{session}.{turn}", at, at + length, tokens, refused=rng.random() < 0.004))
            at += length + timedelta(seconds=rng.expovariate(1 / 25))
            before, prompt = prompt, prompt + output + rng.randrange(100, 3_500)
    for number in rng.sample(range(count), silent):
        found[number] = replace(found[number], silent=True, refused=False)
    return found


def write_usage(path: Path, used: list[Used]) -> None:
    """What a client logs: usage as DeepSeek reports it."""
    with path.open("w") as stream:
        for each in used:
            usage = None
            if not each.silent:
                hit, miss, output = (each.tokens[kind] for kind in KINDS)
                usage = {
                    "prompt_tokens": hit + miss,
                    "completion_tokens": output,
                    "total_tokens": hit + miss + output,
                    "prompt_cache_hit_tokens": hit,
                    "prompt_cache_miss_tokens": miss,
                }
            if each.refused:
                continue
            line = {"id": each.name, "time": each.start.isoformat(), "end": each.end.isoformat()}
            stream.write(json.dumps({**line, "model": "deepseek-flash", "usage": usage}) + "\n")


def bill(used: list[Used], habits: Habits) -> list[Item]:
    """Honest items."""
    items = []
    for each in used:
        if each.refused:
            continue
        at = {"start": each.start, "end": each.end, "middle": each.start + (each.end - each.start) / 2}[habits.moment]
        at += timedelta(seconds=habits.clock_s)
        items.append(Item(each, dict(each.tokens), at, is_peak(at)))
    return items


# ------------------------------------------------------------------------------------------------------------- faults


def hits_as_misses(items: list[Item], rng: random.Random, share: float = 0.005) -> None:
    """Either a part of every hit, or all of some requests' hits until the share is reached."""
    whole = sum(item.tokens["hit"] for item in items)
    if rng.random() < 0.5:
        for item in items:
            _move(item, round(item.tokens["hit"] * share))
        return
    left = round(whole * share)
    for item in rng.sample(items, len(items)):
        moved = min(left, item.tokens["hit"])
        _move(item, moved)
        left -= moved
        if not left:
            return


def _move(item: Item, tokens: int) -> None:
    item.tokens["hit"] -= tokens
    item.tokens["miss"] += tokens


def input_inflated(items: list[Item], rng: random.Random, share: float = 0.01) -> None:
    """Hits and misses alike, or misses alone by as many tokens."""
    alike = rng.random() < 0.5
    for item in items:
        hit, miss = item.tokens["hit"], item.tokens["miss"]
        if alike:
            item.tokens["hit"], item.tokens["miss"] = round(hit * (1 + share)), round(miss * (1 + share))
        else:
            item.tokens["miss"] = miss + round((hit + miss) * share)


def output_inflated(items: list[Item], rng: random.Random, share: float = 0.03) -> None:
    for item in items:
        item.tokens["output"] = round(item.tokens["output"] * (1 + share))


def price_off(items: list[Item], rng: random.Random, share: str = "0.005") -> None:
    for item in items:
        item.factor = 1 + Decimal(share)


def wrong_peak_hour(items: list[Item], rng: random.Random) -> None:
    """One off-peak hour of a day, with something in it, at the peak price."""
    hours = sorted({item.at.replace(minute=0, second=0, microsecond=0) for item in items if not item.peak})
    chosen = rng.choice(hours)
    for item in items:
        if item.at.replace(minute=0, second=0, microsecond=0) == chosen:
            item.peak = True


def hits_short(items: list[Item], rng: random.Random, tokens: int = 64) -> None:
    for item in items:
        _move(item, min(tokens, item.tokens["hit"]))


def doubled(items: list[Item], rng: random.Random) -> None:
    for item in items:
        item.times = 2


def duplicate(items: list[Item], rng: random.Random) -> None:
    rng.choice(items).times = 2


def total(items: list[Item]) -> Decimal:
    return sum((item.amount for item in items), Decimal(0))


# -------------------------------------------------------------------------------------------------------------- files


def write_export(directory: Path, items: list[Item], habits: Habits, refused: list[Used]) -> list[Path]:
    """DeepSeek's two tables, by hour, or by day with the older columns."""
    step = timedelta(days=1) if habits.daily else timedelta(hours=1)
    tokens: dict[tuple[datetime, str, Decimal | None], int] = defaultdict(int)
    costs: dict[datetime, Decimal] = defaultdict(Decimal)
    for item in items:
        window = _floor(item.at, habits.daily)
        for kind in KINDS:
            if item.tokens[kind]:
                tokens[window, TYPES[kind], item.prices[kind]] += item.times * item.tokens[kind]
        tokens[window, "request_count", None] += item.times
        costs[window] += item.amount
    if habits.counts_refused:
        for each in refused:
            tokens[_floor(each.start, habits.daily), "request_count", None] += 1
    model, user = habits.alias, "7f3a"
    dates = ["utc_date"] if habits.daily else ["start_time_iso", "end_time_iso"]
    amount = [["user_id", *dates, "model", "api_key_name", "api_key", "type", "price", "amount"]]
    for (window, kind, price), count in sorted(tokens.items(), key=lambda entry: (entry[0][0], entry[0][1])):
        shown = "" if price is None else f"{price.normalize():f}"
        amount.append([user, *_when(window, step, habits), model, KEY, "sk-a1***9f", kind, shown, str(count)])
    cost = [["user_id", *dates, "model", "wallet_type", "cost", "currency"]]
    for window, money in sorted(costs.items()):
        shown_money = money.quantize(Decimal(1).scaleb(-habits.decimals), ROUND_HALF_UP)
        parts = [("Paid", shown_money)]
        if habits.wallets:
            granted = (shown_money / 3).quantize(shown_money)
            parts = [("granted", granted), ("paid", shown_money - granted)]
        for wallet, part in parts:
            cost.append([user, *_when(window, step, habits), model, wallet, f"{part:f}", "USD"])
    paths = [directory / "amount.csv", directory / "cost.csv"]
    for path, table in zip(paths, (amount, cost), strict=True):
        end = "\r\n" if habits.crlf else "\n"
        text = ("\ufeff" if habits.bom else "") + end.join(",".join(cells) for cells in table) + end
        path.write_bytes(text.encode())
    return paths


def write_requests(directory: Path, items: list[Item]) -> tuple[Path, Path]:
    """A row a request, in a layout of no provider, and the map of its columns."""
    path, columns = directory / "requests.csv", directory / "columns.toml"
    rows = ["id,when,model,cached,prompt,completion,cost"]
    for item in items:
        for _ in range(item.times):
            hit, miss, output = (item.tokens[kind] for kind in KINDS)
            one = item.amount / item.times
            rows.append(f"{item.used.name},{item.at.isoformat()},deepseek-flash,{hit},{hit + miss},{output},{one:.10f}")
    path.write_text("\n".join(rows) + "\n")
    columns.write_text(
        'kvbench_invoice = 1\ncurrency = "USD"\n\n[columns]\nrequest_id = "id"\nstart = "when"\nmodel = "model"\n'
        'hit = "cached"\ninput = "prompt"\noutput = "completion"\namount = "cost"\n'
    )
    return path, columns


def _floor(at: datetime, daily: bool) -> datetime:
    at = at.replace(minute=0, second=0, microsecond=0)
    return at.replace(hour=0) if daily else at


def _when(window: datetime, step: timedelta, habits: Habits) -> list[str]:
    if habits.daily:
        return [f"{window:%Y%m%d}"]
    return [window.isoformat(), (window + step).isoformat()]
