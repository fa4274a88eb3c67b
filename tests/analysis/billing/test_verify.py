"""Bills against usage: three requests and their export written out by hand, and faults whose amounts are worked out.

Flash from 2026-09-10: hit 0.003, miss 0.15, output 0.60 USD a million, twice that at peak. 2026-10-15 is a Thursday:
02:00 is peak, 12:00 is not.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvbench.analysis.billing.verify import Terms, verify
from kvbench.errors import InputError, UsageError
from kvbench.model import Usage
from kvbench.prices.invoices.lines import Charge, Invoice, InvoiceLine
from kvbench.prices.invoices.read import read_invoice
from kvbench.prices.load import load_book, parse_book
from kvbench.prices.priced import Billable
from kvbench.prices.pricing import PriceList

PRICES = PriceList([load_book("deepseek")])
DAY = datetime(2026, 10, 15, tzinfo=UTC)
REPORT: dict[str, Any] = {"total": {"currency": "USD"}, "findings": []}
DEDICATED = Terms(dedicated=True)
HEAD = "user_id,start_time_iso,end_time_iso,model,api_key_name,api_key,type,price,amount"


def request(name: str, at: str, hit: int, miss: int, output: int, **more: Any) -> Billable:
    hours, minutes, seconds = (int(part) for part in f"{at}:00".split(":")[:3])
    start = DAY + timedelta(hours=hours, minutes=minutes, seconds=seconds)
    usage = Usage(input_tokens=hit + miss, cached_tokens=hit, output_tokens=output)
    fields: dict[str, Any] = {"start": start, "end": start + timedelta(seconds=10), "usage": usage, **more}
    return Billable(request_id=name, model="deepseek-flash", **fields)


OURS = [
    request("r1", "12:10", 100_000, 5_000, 1_000),
    request("r2", "12:30", 50_000, 2_000, 500),
    request("r3", "02:30", 80_000, 1_000, 200),
]
HONEST = {
    (12, "hit"): ("0.000000003", 150_000),
    (12, "miss"): ("0.00000015", 7_000),
    (12, "output"): ("0.0000006", 1_500),
    (12, "requests"): ("", 2),
    (2, "hit"): ("0.000000006", 80_000),
    (2, "miss"): ("0.0000003", 1_000),
    (2, "output"): ("0.0000012", 200),
    (2, "requests"): ("", 1),
}
"""0.0024 in hour 12 and 0.00102 in hour 2: 0.00342."""
TYPES = {
    "hit": "input_cache_hit_tokens",
    "miss": "input_cache_miss_tokens",
    "output": "output_tokens",
    "requests": "request_count",
}


def export(tmp_path: Path, cells: dict[tuple[int, str], tuple[str, int]], key: str = "agents") -> Invoice:
    rows = [HEAD]
    for (hour, kind), (price, tokens) in cells.items():
        start, end = DAY + timedelta(hours=hour), DAY + timedelta(hours=hour + 1)
        times = f"{start.isoformat()},{end.isoformat()}"
        rows.append(f"u,{times},deepseek-v4-flash,{key},sk,{TYPES[kind]},{price},{tokens}")
    (tmp_path / "amount.csv").write_text("\n".join(rows) + "\n")
    return read_invoice([tmp_path / "amount.csv"])


def check(invoice: Invoice, ours: list[Billable] = OURS, terms: Terms | None = DEDICATED) -> dict[str, Any]:
    return verify(REPORT, ours, PRICES, invoice, terms=terms)


def kinds(report: dict[str, Any]) -> dict[str, Decimal]:
    return {finding["kind"]: Decimal(finding["amount"]) for finding in report["findings"]}


@pytest.mark.parametrize("terms", [DEDICATED, None, Terms(key="agents")])
def test_an_honest_bill_is_confirmed_and_nothing_could_have_hidden(tmp_path: Path, terms: Terms | None) -> None:
    report = check(export(tmp_path, HONEST), terms=terms)
    assert (report["verdict"], report["findings"]) == ("confirmed", [])
    assert report["bill"]["expected"] == report["bill"]["invoiced"] == "0.00342"
    assert report["bill"]["tolerance"] == {"amount": "0", "tokens": 0}
    # The dearest single token: one of output at peak.
    assert (report["detectable"]["amount"], report["detectable"]["tokens"]) == ("0.0000012", 1)


@pytest.mark.parametrize("hour", [0, 1])
def test_on_a_change_of_price_the_unknown_moment_bounds_what_shows(tmp_path: Path, hour: int) -> None:
    """From 00:59:50 to 01:00:10: 0.00165 off-peak, twice that at peak, and both are honest."""
    ours = [request("r1", "00:59:50", 100_000, 5_000, 1_000, end=DAY + timedelta(hours=1, seconds=10))]
    peak = hour == 1
    prices = {"hit": ("0.000000003", "0.000000006"), "miss": ("0.00000015", "0.0000003")}
    prices["output"] = ("0.0000006", "0.0000012")
    used = {"hit": 100_000, "miss": 5_000, "output": 1_000}
    cells = {(hour, kind): (prices[kind][peak], used[kind]) for kind in used} | {(hour, "requests"): ("", 1)}
    report = check(export(tmp_path, cells), ours)
    assert report["verdict"] == "confirmed"
    assert report["detectable"]["by_fault"]["wrong_peak_hour"]["amount"] == "0.00165"
    assert report["detectable"]["amount"] == "0.00165"
    assert "change of price" in report["detectable"]["to_see_less"]


def test_request_by_request_a_change_of_price_bounds_what_shows_too() -> None:
    end = DAY + timedelta(hours=1, seconds=10)
    edge = request("r1", "00:59:50", 100_000, 5_000, 1_000, end=end)
    sure = request("r2", "12:10", 100_000, 5_000, 1_000)
    charges = [
        Charge(start=DAY + timedelta(hours=at), end=None, amount=Decimal("0.00165"), request_id=name, place=name)
        for at, name in ((1, "r1"), (12, "r2"))
    ]
    bill = Invoice(
        path="b", format="f", shape="s", by="requests", kinds=(), lines=(), charges=tuple(charges), currency="USD"
    )
    report = check(bill, [edge, sure])
    assert report["verdict"] == "confirmed"
    assert report["detectable"]["by_fault"]["wrong_peak_hour"]["amount"] == "0.00165"


FAULTS: list[tuple[str, dict[tuple[int, str], tuple[str, int]], str, str]] = [
    (
        "1,000 hits as misses",
        {(12, "hit"): ("0.000000003", 149_000), (12, "miss"): ("0.00000015", 8_000)},
        "hits_as_misses",
        "0.000147",
    ),
    ("700 misses more", {(12, "miss"): ("0.00000015", 7_700)}, "input_inflated", "0.000105"),
    ("100 output tokens more", {(12, "output"): ("0.0000006", 1_600)}, "output_inflated", "0.00006"),
    ("a price 1% above the list", {(12, "miss"): ("0.0000001515", 7_000)}, "price_off", "0.0000105"),
    ("the peak price off-peak", {(12, "miss"): ("0.0000003", 7_000)}, "wrong_peak_hour", "0.00105"),
    (
        "64 hits of each request as misses",
        {
            (12, "hit"): ("0.000000003", 149_872),
            (12, "miss"): ("0.00000015", 7_128),
            (2, "hit"): ("0.000000006", 79_936),
            (2, "miss"): ("0.0000003", 1_064),
        },
        "hits_short_by_granule",
        "0.000037632",
    ),
    (
        "r2 twice",
        {
            (12, "hit"): ("0.000000003", 200_000),
            (12, "miss"): ("0.00000015", 9_000),
            (12, "output"): ("0.0000006", 2_000),
            (12, "requests"): ("", 3),
        },
        "duplicates",
        "0.00075",
    ),
    (
        "everything doubled",
        {name: (price, 2 * tokens) for name, (price, tokens) in HONEST.items()},
        "doubled_bill",
        "0.00342",
    ),
    ("an hour without a request", {(15, "hit"): ("0.000000003", 10_000)}, "billed_without_request", "0.00003"),
]


@pytest.mark.parametrize(("name", "change", "kind", "amount"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_a_fault_is_named_with_its_exact_amount(
    tmp_path: Path, name: str, change: dict[tuple[int, str], tuple[str, int]], kind: str, amount: str
) -> None:
    report = check(export(tmp_path, HONEST | change))
    assert report["verdict"] == "disputed"
    assert kinds(report) == {kind: Decimal(amount)}
    (finding,) = report["findings"]
    assert finding["evidence"]
    assert "deepseek-flash" in finding["where"][0]["row"]


@pytest.mark.parametrize(("name", "change", "kind", "amount"), FAULTS[:2] + FAULTS[5:6], ids=["moved", "more", "64"])
def test_the_bill_differs_by_what_the_findings_add_up_to(
    tmp_path: Path, name: str, change: dict[tuple[int, str], tuple[str, int]], kind: str, amount: str
) -> None:
    both = HONEST | change | {(2, "output"): ("0.0000012", 250)}
    report = check(export(tmp_path, both))
    bill = report["bill"]
    assert sum(kinds(report).values()) == Decimal(bill["invoiced"]) - Decimal(bill["expected"])
    assert kinds(report)["output_inflated"] == Decimal("0.00006")


def test_traffic_of_others_is_not_accused_and_not_waved_through(tmp_path: Path) -> None:
    change = {(12, "miss"): ("0.00000015", 9_000), (12, "requests"): ("", 4), (16, "hit"): ("0.000000003", 10)}
    shared = check(export(tmp_path, HONEST | change), terms=None)
    assert (shared["verdict"], shared["findings"]) == ("cannot tell", [])
    assert shared["bill"]["unattributed"] == {"tokens": 2010, "amount": "0.00030003"}
    assert shared["detectable"]["amount"] is None
    assert kinds(check(export(tmp_path, HONEST | change))) == {
        "input_inflated": Decimal("0.0003"),
        "billed_without_request": Decimal("0.00000003"),
    }


def test_hits_that_are_missing_are_proof_whoever_else_uses_the_key(tmp_path: Path) -> None:
    change = {(12, "hit"): ("0.000000003", 149_000), (12, "miss"): ("0.00000015", 20_000), (12, "requests"): ("", 9)}
    report = check(export(tmp_path, HONEST | change), terms=None)
    assert report["verdict"] == "disputed"
    assert kinds(report) == {"hits_as_misses": Decimal("0.000147")}


def test_a_doubled_bill_is_disputed_on_a_key_that_others_may_use(tmp_path: Path) -> None:
    report = check(export(tmp_path, {at: (price, 2 * n) for at, (price, n) in HONEST.items()}), terms=None)
    assert report["verdict"] == "disputed"
    assert kinds(report) == {"doubled_bill": Decimal("0.00342")}


def test_a_bill_that_asks_less_is_neither_confirmed_nor_disputed(tmp_path: Path) -> None:
    report = check(export(tmp_path, HONEST | {(12, "output"): ("0.0000006", 1_400)}))
    assert report["verdict"] == "cannot tell"
    assert kinds(report) == {"billed_less": Decimal("-0.00006")}


def test_a_request_whose_usage_nobody_knows_makes_its_hour_unsure_and_no_other(tmp_path: Path) -> None:
    lost = request("r4", "12:40", 0, 0, 0, usage=Usage())
    more = {(12, "miss"): ("0.00000015", 9_000), (12, "requests"): ("", 3)}
    assert check(export(tmp_path, HONEST | more), [*OURS, lost])["verdict"] == "cannot tell"
    report = check(export(tmp_path, HONEST | more | {(2, "output"): ("0.0000012", 300)}), [*OURS, lost])
    assert (report["verdict"], kinds(report)) == ("disputed", {"output_inflated": Decimal("0.00012")})


@pytest.mark.parametrize("hour", [0, 1])
def test_a_request_over_the_edge_of_a_peak_hour_may_be_billed_on_either_side(tmp_path: Path, hour: int) -> None:
    ours = [*OURS, request("edge", "00:59:55", 1_000, 1_000, 1_000)]
    hit, miss, output = (
        ("0.000000006", "0.0000003", "0.0000012") if hour else ("0.000000003", "0.00000015", "0.0000006")
    )
    there = {(hour, "hit"): (hit, 1_000), (hour, "miss"): (miss, 1_000), (hour, "output"): (output, 1_000)}
    other = {(1 - hour, "requests"): ("", 0)}
    report = check(export(tmp_path, HONEST | there | other), ours)
    assert (report["verdict"], report["findings"]) == ("confirmed", [])
    assert report["bill"]["expected"] == report["bill"]["invoiced"]


def test_a_daily_bill_at_peak_for_what_was_used_off_peak(tmp_path: Path) -> None:
    head = "user_id,utc_date,model,api_key_name,api_key,type,price,amount"
    rows = [
        ("input_cache_hit_tokens", "0.000000003", 150_000),
        ("input_cache_miss_tokens", "0.00000015", 6_500),
        ("output_tokens", "0.0000006", 1_500),
        ("input_cache_hit_tokens", "0.000000006", 80_000),
        ("input_cache_miss_tokens", "0.0000003", 1_500),
        ("output_tokens", "0.0000012", 200),
        ("request_count", "", 3),
    ]
    text = "\n".join([head, *(f"u,20261015,deepseek-flash,k,s,{kind},{price},{count}" for kind, price, count in rows)])
    (tmp_path / "amount.csv").write_text(text)
    report = check(read_invoice([tmp_path / "amount.csv"]))
    # 500 tokens at twice 0.15.
    assert kinds(report) == {"wrong_peak_hour": Decimal("0.000075")}


def test_money_that_is_not_the_sum_of_its_own_tokens_is_disputed(tmp_path: Path) -> None:
    export(tmp_path, HONEST)
    cost = ["user_id,start_time_iso,end_time_iso,model,wallet_type,cost,currency"]
    for hour, amount in ((12, "0.0025"), (2, "0.0010")):
        times = f"{(DAY + timedelta(hours=hour)).isoformat()},{(DAY + timedelta(hours=hour + 1)).isoformat()}"
        cost.append(f"u,{times},deepseek-v4-flash,Paid,{amount},USD")
    (tmp_path / "cost.csv").write_text("\n".join(cost))
    report = check(read_invoice([tmp_path / "amount.csv", tmp_path / "cost.csv"]))
    # 0.0024 and 0.00102: the second is off by less than the last decimal printed.
    assert report["verdict"] == "confirmed", report["findings"]
    (tmp_path / "cost.csv").write_text("\n".join(cost).replace("0.0025", "0.0026"))
    report = check(read_invoice([tmp_path / "amount.csv", tmp_path / "cost.csv"]))
    assert (report["verdict"], kinds(report)) == ("disputed", {"cost_off": Decimal("0.0002")})


def test_several_keys_need_a_name_and_only_that_keys_lines_count(tmp_path: Path) -> None:
    export(tmp_path, HONEST)
    text = (tmp_path / "amount.csv").read_text()
    (tmp_path / "amount.csv").write_text(text + text.partition("\n")[2].replace("agents", "others"))
    invoice = read_invoice([tmp_path / "amount.csv"])
    with pytest.raises(UsageError, match="2 keys: agents, others"):
        check(invoice)
    with pytest.raises(UsageError, match="not on the invoice; there are: agents, others"):
        check(invoice, terms=Terms(key="agent"))
    assert check(invoice, terms=Terms(key="agents", dedicated=True))["verdict"] == "confirmed"


def test_another_currency_is_refused() -> None:
    line = InvoiceLine(start=DAY, end=DAY + timedelta(hours=1), model="m", kind="hit", tokens=1, place="x:1")
    fields: dict[str, Any] = {"path": "x", "format": "f", "shape": "s", "by": "windows", "kinds": ("hit",)}
    with pytest.raises(UsageError, match="invoice is in CNY, and the requests are priced in USD"):
        check(Invoice(**fields, lines=(line,), currency="CNY"))
    day = InvoiceLine(start=DAY, end=DAY + timedelta(days=1), model="m", kind="hit", tokens=1, place="x:2")
    with pytest.raises(InputError, match="windows overlap"):
        check(Invoice(**fields, lines=(line, day)))


def test_rows_that_cannot_be_read_leave_no_confirmation(tmp_path: Path) -> None:
    export(tmp_path, HONEST)
    with (tmp_path / "amount.csv").open("a") as stream:
        stream.write("u,not a row\n")
    report = check(read_invoice([tmp_path / "amount.csv"]))
    assert report["verdict"] == "cannot tell"
    assert report["bill"]["bad_rows"] == ["amount.csv:10: 2 cells, and 9 columns"]


def test_a_price_of_a_second_hand_row_disputes_nothing(tmp_path: Path) -> None:
    text = Path(load_book.__code__.co_filename).with_name("books").joinpath("deepseek.toml").read_text()
    prices = PriceList([parse_book(text.replace('status = "official"', 'status = "secondary"'), "own")])
    invoice = export(tmp_path, HONEST | {(12, "miss"): ("0.0000001515", 7_000)})
    report = verify(REPORT, OURS, prices, invoice, terms=DEDICATED)
    assert report["verdict"] == "cannot tell"
    assert report["findings"][0]["proof"] is False


# ------------------------------------------------------------------------------------------------- request by request


def by_request(*rows: tuple[str, int, int, int, str]) -> Invoice:
    """(id, hit, miss, output, amount)"""
    lines: list[InvoiceLine] = []
    charges: list[Charge] = []
    for number, (name, hit, miss, output, amount) in enumerate(rows, 2):
        base: dict[str, Any] = {"start": DAY, "end": None, "request_id": name, "place": f"bill.csv:{number}"}
        for kind, tokens in (("hit", hit), ("miss", miss), ("output", output)):
            lines.append(InvoiceLine(**base, model="deepseek-flash", kind=kind, tokens=tokens))
        charges.append(Charge(**base, model="deepseek-flash", amount=Decimal(amount)))
    return Invoice(
        path="bill.csv",
        format="f",
        shape="s",
        by="requests",
        kinds=("hit", "miss", "output"),
        lines=tuple(lines),
        charges=tuple(charges),
        currency="USD",
        unit=Decimal("0.0000001"),
    )


ROWS = [
    ("r1", 100_000, 5_000, 1_000, "0.0016500"),
    ("r2", 50_000, 2_000, 500, "0.0007500"),
    ("r3", 80_000, 1_000, 200, "0.0010200"),
]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (ROWS, {}),
        ([("r1", 99_000, 6_000, 1_000, "0.0017970"), *ROWS[1:]], {"hits_as_misses": "0.000147"}),
        ([*ROWS, ROWS[1]], {"duplicates": "0.00075"}),
        ([*ROWS, *ROWS], {"doubled_bill": "0.00342"}),
        ([("r1", 100_000, 5_000, 1_000, "0.0033000"), *ROWS[1:]], {"charged_twice": "0.00165"}),
        ([("r1", 100_000, 5_000, 1_000, "0.0016600"), *ROWS[1:]], {"price_off": "0.00001"}),
        (ROWS[:2], {"not_invoiced": "-0.00102"}),
        ([*ROWS, ("r9", 10, 0, 0, "0.0000001")], {"billed_without_request": "0.0000001"}),
    ],
)
def test_requests_are_joined_by_their_ids(rows: list[tuple[str, int, int, int, str]], found: dict[str, str]) -> None:
    report = check(by_request(*rows))
    assert report["bill"]["joined"] == "request by request"
    assert kinds(report) == {kind: Decimal(amount) for kind, amount in found.items()}


def test_requests_of_others_beside_ours_leave_a_doubt_where_the_key_is_not_dedicated() -> None:
    report = check(by_request(*ROWS, ("r9", 10, 0, 0, "0.0000001")), terms=None)
    assert (report["verdict"], report["findings"]) == ("confirmed", []), "it is outside the time of ours"
    ours = [request("r0", "00:00", 10, 0, 1), *OURS]
    more = by_request(("r0", 10, 0, 1, "0.0000006"), *ROWS, ("r9", 10, 0, 0, "0.0000001"))
    assert check(more, ours, None)["verdict"] == "cannot tell"


def test_a_request_over_the_edge_of_peak_may_be_charged_either_price() -> None:
    ours = [request("edge", "00:59:55", 0, 1_000, 0)]
    assert check(by_request(("edge", 0, 1_000, 0, "0.00015")), ours)["verdict"] == "confirmed"
    assert check(by_request(("edge", 0, 1_000, 0, "0.00030")), ours)["verdict"] == "confirmed"
    assert kinds(check(by_request(("edge", 0, 1_000, 0, "0.00040")), ours)) == {"price_off": Decimal("0.0001")}


# ---------------------------------------------------------------------------------------------------- whatever is sent

TOKENS = st.integers(0, 200_000)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 6 * 3600),
            st.integers(1, 900),
            TOKENS,
            st.integers(1, 200_000),
            st.integers(1, 4000),
            st.booleans(),
        ),
        min_size=1,
        max_size=25,
    ),
    st.sampled_from(["start", "middle", "end", "either"]),
)
def test_an_honest_bill_is_never_disputed_whichever_moment_decides(
    sent: list[tuple[int, int, int, int, int, bool]], decides: str
) -> None:
    ours: list[Billable] = []
    sums: dict[tuple[datetime, str, Decimal | None], int] = {}
    price = {"hit": Decimal("3E-9"), "miss": Decimal("1.5E-7"), "output": Decimal("6E-7")}
    for number, (at, length, hit, miss, output, by_end) in enumerate(sent):
        start = DAY + timedelta(seconds=at)
        end = start + timedelta(seconds=length)
        usage = Usage(input_tokens=hit + miss, cached_tokens=hit, output_tokens=output)
        ours.append(Billable(request_id=f"r{number}", model="deepseek-flash", usage=usage, start=start, end=end))
        moment = {"start": start, "end": end, "middle": start + (end - start) / 2}.get(decides)
        moment = moment or (end if by_end else start)
        hour = moment.replace(minute=0, second=0, microsecond=0)
        factor = 2 if moment.hour in (1, 2, 3, 6, 7, 8, 9) else 1
        for kind, tokens in (("hit", hit), ("miss", miss), ("output", output), ("requests", 1)):
            name = (hour, kind, price[kind] * factor if kind in price else None)
            sums[name] = sums.get(name, 0) + tokens
    lines = tuple(
        InvoiceLine(
            start=hour,
            end=hour + timedelta(hours=1),
            model="deepseek-flash",
            kind=kind,
            tokens=tokens,
            price=each,
            place="x:1",
        )
        for (hour, kind, each), tokens in sums.items()
    )
    invoice = Invoice(
        path="x", format="f", shape="s", by="windows", kinds=("hit", "miss", "output", "requests"), lines=lines
    )
    report = check(invoice, ours)
    assert report["verdict"] != "disputed", report["findings"]
    if decides in ("start", "end"):
        assert (report["verdict"], report["findings"]) == ("confirmed", [])


def test_an_export_without_a_currency_is_of_the_list_that_it_has_the_prices_of(tmp_path: Path) -> None:
    yuan = {"hit": Decimal("0.00000002"), "miss": Decimal("0.000001"), "output": Decimal("0.000004")}
    cells = {
        (hour, kind): (price if kind == "requests" else str(yuan[kind] * (2 if hour == 2 else 1)), tokens)
        for (hour, kind), (price, tokens) in HONEST.items()
    }
    with pytest.raises(UsageError, match=r"6 of its 6 prices are those of the CNY list, 0 of the USD list") as caught:
        check(export(tmp_path, cells))
    assert caught.value.hint == "--currency CNY"
    report = verify(
        {"total": {"currency": "CNY"}, "findings": []}, OURS, PriceList(PRICES.books, "CNY"), export(tmp_path, cells)
    )
    assert report["verdict"] == "confirmed"


# --------------------------------------------------------------------------------------- windows of another clock


def busy(hours: int) -> list[Billable]:
    """A request in each hour from the 14th on, at 40 or 10 minutes past it, of lengths that differ; none on an edge."""
    return [
        request(f"b{hour}", "00:20", 0, 0, 0, start=start, end=start + timedelta(seconds=30), usage=usage)
        for hour in range(hours)
        for start in [DAY + timedelta(hours=hour - 24, minutes=10 if hour % 2 else 40)]
        for usage in [Usage(input_tokens=3_137 * hour + 1_001, cached_tokens=3_008 * hour, output_tokens=17 * hour + 5)]
    ]


def billed_at(
    ours: list[Billable], ahead: timedelta, length: timedelta, *, miss_factor: Decimal = Decimal(1)
) -> Invoice:
    """What an honest biller asks for them, in windows whose times are `ahead` of UTC."""
    sums: dict[tuple[datetime, Decimal, str], int] = {}
    for each in ours:
        assert each.start is not None
        hour = each.start.hour
        factor = Decimal(2 if each.start.weekday() < 5 and (1 <= hour < 4 or 6 <= hour < 10) else 1)
        local = each.start + ahead
        start = local - (local - datetime(2026, 1, 1, tzinfo=UTC)) % length
        usage = each.usage
        hit, miss, output = usage.cached_tokens or 0, (usage.input_tokens or 0), usage.output_tokens or 0
        for kind, price, tokens in (
            ("hit", "0.000000003", hit),
            ("miss", "0.00000015", int((miss - hit) * miss_factor)),
            ("output", "0.0000006", output),
        ):
            name = start, Decimal(price) * factor, kind
            sums[name] = sums.get(name, 0) + tokens
    lines = tuple(
        InvoiceLine(
            start=start, end=start + length, model="deepseek-flash", kind=kind, tokens=tokens, price=price, place="x:1"
        )
        for (start, price, kind), tokens in sums.items()
    )
    return Invoice(path="x", format="x", shape="x", by="windows", kinds=("hit", "miss", "output"), lines=lines)


@pytest.mark.parametrize(
    ("ahead", "length"),
    [(ahead, timedelta(hours=1)) for ahead in (8, -5, 1, 5.5)] + [(ahead, timedelta(days=1)) for ahead in (8, -5, 1)],
)
@pytest.mark.parametrize("dedicated", [True, False])
def test_an_honest_bill_by_another_clock_is_no_fault(length: timedelta, ahead: float, dedicated: bool) -> None:
    ours = busy(70)
    there = billed_at(ours, timedelta(hours=ahead), length)
    report = check(there, ours, Terms(dedicated=dedicated))
    assert (report["verdict"], report["findings"]) == ("cannot tell", [])
    assert f"with {abs(ahead):g} h {'taken off' if ahead > 0 else 'added'}" in report["verdict_reasons"][0]
    assert report["detectable"]["amount"] is None
    assert check(billed_at(ours, timedelta(0), length), ours)["verdict"] == "confirmed"


def test_a_bill_by_another_clock_is_told_where_it_has_a_fault_too() -> None:
    """Its fault cannot be told from the hours; its times are to be mended first."""
    report = check(billed_at(busy(70), timedelta(hours=8), timedelta(hours=1), miss_factor=Decimal("1.05")), busy(70))
    assert report["verdict"] == "cannot tell"
    assert "with 8 h taken off" in report["verdict_reasons"][0]


def test_a_fault_of_a_whole_bill_is_no_other_clock() -> None:
    """Traffic that repeats itself agrees at any shift as well as at none."""
    ours = [replace(each, usage=Usage(input_tokens=5_000, cached_tokens=4_096, output_tokens=90)) for each in busy(70)]
    there = billed_at(ours, timedelta(0), timedelta(hours=1), miss_factor=Decimal("1.05"))
    assert kinds(check(there, ours)).keys() == {"input_inflated"}
    there = billed_at(busy(70), timedelta(0), timedelta(hours=1), miss_factor=Decimal("1.05"))
    assert kinds(check(there, busy(70))).keys() == {"input_inflated"}


@pytest.mark.parametrize(("starts", "billed"), [(-9, 9), (0, -1)], ids=["by its end", "by a clock that is late"])
def test_requests_on_an_edge_are_no_other_clock(starts: int, billed: int) -> None:
    """By day, with a request at each midnight that is billed on its other side: one kind is off, the days are right."""
    ours = busy(70)
    for day in range(3):
        midnight = DAY + timedelta(days=day - 1)
        edge = replace(ours[0], start=midnight + timedelta(seconds=starts), end=midnight + timedelta(seconds=9))
        ours.append(
            replace(
                edge,
                request_id=f"edge{day}",
                usage=Usage(input_tokens=901 + day, cached_tokens=640 + day, output_tokens=11 + day),
            )
        )
    off = timedelta(seconds=billed - starts)
    moved = [replace(e, start=e.start + off) if e.request_id[0] == "e" and e.start else e for e in ours]
    assert check(billed_at(moved, timedelta(0), timedelta(days=1)), ours)["verdict"] == "confirmed"
    there = billed_at(moved, timedelta(0), timedelta(days=1), miss_factor=Decimal("1.05"))
    report = check(there, ours)
    assert (report["verdict"], kinds(report).keys()) == ("disputed", {"input_inflated"})


def test_tokens_that_only_stand_in_later_windows_are_no_excess(tmp_path: Path) -> None:
    """Half of hour 12 is billed in hour 14: the bill asks for what was used, to the token."""
    late = {
        **HONEST,
        (12, "hit"): ("0.000000003", 100_000),
        (12, "miss"): ("0.00000015", 5_000),
        (12, "output"): ("0.0000006", 1_000),
        (12, "requests"): ("", 1),
        (14, "hit"): ("0.000000003", 50_000),
        (14, "miss"): ("0.00000015", 2_000),
        (14, "output"): ("0.0000006", 500),
        (14, "requests"): ("", 1),
    }
    report = check(export(tmp_path, late))
    assert (report["verdict"], report["findings"]) == ("cannot tell", [])
    assert "in other windows" in report["verdict_reasons"][0]
    more = check(export(tmp_path, {**late, (14, "output"): ("0.0000006", 501)}))
    assert more["verdict"] == "disputed"
