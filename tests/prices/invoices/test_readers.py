"""Invoices as their files have them: every shape that is known, and what must not be read."""

from __future__ import annotations

import json
import zipfile
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from kvbench.errors import InputError, KvbenchError, UsageError
from kvbench.prices.invoices.lines import Invoice
from kvbench.prices.invoices.read import read_invoice

OLD = "user_id,utc_date,model,api_key_name,api_key,type,price,amount"
NEW = "user_id,start_time_iso,end_time_iso,model,api_key_name,api_key,type,price,amount"
COST_OLD = "user_id,utc_date,model,wallet_type,cost,currency"
COST_NEW = "user_id,start_time_iso,end_time_iso,model,wallet_type,cost,currency"
HOUR = "2026-10-15T02:00:00+00:00,2026-10-15T03:00:00+00:00"


def write(path: Path, *rows: str, end: str = "\n", bom: bool = False) -> Path:
    path.write_bytes((("\ufeff" if bom else "") + end.join(rows) + end).encode())
    return path


def told(invoice: Invoice) -> list[tuple[datetime, str, int, Decimal | None]]:
    return [(line.start, line.kind, line.tokens, line.price) for line in invoice.lines]


@pytest.mark.parametrize("date", ["20260715", "2026-07-15"])
def test_deepseeks_old_tables_are_of_days(tmp_path: Path, date: str) -> None:
    amount = write(
        tmp_path / "amount.csv",
        OLD,
        f"u,{date},deepseek-v4-flash,agents,sk-1,input_cache_hit_tokens,0.0000000028,1000000",
        f"u,{date},deepseek-v4-flash,agents,sk-1,input_cache_miss_tokens,1.4E-7,2000",
        f"u,{date},deepseek-v4-flash,agents,sk-1,output_tokens,0.00000028,30",
        f"u,{date},deepseek-v4-flash,agents,sk-1,request_count,,7",
        bom=True,
        end="\r\n",
    )
    cost = write(tmp_path / "cost.csv", COST_OLD, f"u,{date},deepseek-v4-flash,Paid,0.0030884,USD", bom=True)
    invoice = read_invoice([amount, cost])
    day = datetime(2026, 7, 15, tzinfo=UTC)
    assert told(invoice) == [
        (day, "hit", 1_000_000, Decimal("2.8E-9")),
        (day, "miss", 2000, Decimal("1.4E-7")),
        (day, "output", 30, Decimal("2.8E-7")),
        (day, "requests", 7, None),
    ]
    assert {line.end for line in invoice.lines} == {datetime(2026, 7, 16, tzinfo=UTC)}
    assert [(charge.amount, charge.wallet) for charge in invoice.charges] == [(Decimal("0.0030884"), "paid")]
    assert (invoice.currency, invoice.unit, invoice.keys) == ("USD", Decimal("1E-7"), ["agents"])
    assert not invoice.bad


def test_deepseeks_new_tables_are_of_hours_in_a_zip_with_rows_of_their_own_for_peak(tmp_path: Path) -> None:
    path = tmp_path / "usage.zip"
    with zipfile.ZipFile(path, "w") as archive:
        rows = [
            NEW,
            f'u,{HOUR},deepseek-flash,"agents, night",sk-1,input_cache_hit_tokens,0.000000006,"1,000,000"',
            f'u,{HOUR},deepseek-flash,"agents, night",sk-1,input_cache_hit_tokens,0.000000003,5',
        ]
        archive.writestr("export/amount-2026.csv", "\ufeff" + "\r\n".join(rows))
        archive.writestr("export/cost-2026.csv", f"{COST_NEW}\nu,{HOUR},deepseek-flash,granted,0.006,CNY\n")
        archive.writestr("__MACOSX/export/._cost-2026.csv", "no table")
    invoice = read_invoice([path])
    two = datetime(2026, 10, 15, 2, tzinfo=UTC)
    assert told(invoice) == [(two, "hit", 1_000_000, Decimal("6E-9")), (two, "hit", 5, Decimal("3E-9"))]
    assert invoice.lines[0].key == "agents, night"
    assert invoice.lines[0].place == "usage.zip/export/amount-2026.csv:2"
    assert (invoice.currency, invoice.charges[0].wallet) == ("CNY", "granted")


@pytest.mark.parametrize(
    ("row", "field", "why"),
    [
        ("u,20260715,m,k,s,output_tokens,0.1E-6,-4", "amount", "'-4' is no number of tokens"),
        ("u,20260715,m,k,s,output_tokens,0.1E-6,1.5", "amount", "'1.5' is no number of tokens"),
        ("u,20260715,m,k,s,output_tokens,0.1E-6,", "amount", "empty"),
        ("u,20260715,m,k,s,output_tokens,,4", "price", "empty"),
        ("u,20260715,m,k,s,output_tokens,NaN,4", "price", "no amount"),
        ("u,20260715,m,k,s,output_tokens,0.28,4", "price", "280,000 a million"),
        ("u,20260715,m,k,s,input_cache_hit_tokens,0.0028,4", "price", "2,800 a million"),
        ('u,20260715,m,k,s,output_tokens,"0,003",4', "price", "decimal comma"),
        ('u,20260715,m,k,s,output_tokens,"1,500",4', "price", "may be a thousand times as much"),
        ('u,20260715,m,k,s,output_tokens,0.1E-6,"0,500"', "amount", "decimal comma"),
        ("u,20260715,m,k,s,images,0.1E-6,4", "type", "none of input_cache_hit_tokens"),
        ("u,20261332,m,k,s,output_tokens,0.1E-6,4", "utc_date", "no date"),
        ("u,20260715,,k,s,output_tokens,0.1E-6,4", "model", "empty"),
        ("u,20260715,m,k,s,output_tokens", None, "6 cells, and 8 columns"),
    ],
)
def test_a_row_that_cannot_be_read_is_named_and_the_others_are_kept(
    tmp_path: Path, row: str, field: str | None, why: str
) -> None:
    good = "u,20260715,m,k,s,output_tokens,0.1E-6,4"
    invoice = read_invoice([write(tmp_path / "amount.csv", OLD, good, row, "", good)])
    assert [line.place for line in invoice.lines] == ["amount.csv:2", "amount.csv:5"]
    (bad,) = invoice.bad
    assert (bad.place, bad.field) == ("amount.csv:3", field)
    assert why in bad.why


def test_windows_that_two_exports_share_count_once(tmp_path: Path) -> None:
    hours = [f"2026-10-15T0{hour}:00:00Z,2026-10-15T0{hour + 1}:00:00Z" for hour in range(3)]
    rows = [
        f"u,{hour},m,k,s,{kind},{price},{tokens + number}"
        for number, hour in enumerate(hours)
        for kind, price, tokens in (("input_cache_hit_tokens", "3E-9", 640), ("output_tokens", "6E-7", 7))
    ]
    same = f"u,{hours[0]},m,k,s,output_tokens,6E-7,7"
    invoice = read_invoice([write(tmp_path / "amount.csv", NEW, *rows[:4], *rows[2:])])
    assert [line.tokens for line in invoice.lines] == [640, 7, 641, 8, 642, 9]
    assert [(bad.place, bad.why) for bad in invoice.bad] == [
        ("amount.csv:6", "the same as amount.csv:4: is an export in it twice?"),
        ("amount.csv:7", "the same as amount.csv:5: is an export in it twice?"),
    ]
    # one number that is there again is none of it
    assert not read_invoice([write(tmp_path / "amount.csv", NEW, *rows, same)]).bad
    with pytest.raises(UsageError, match="one file twice"):
        read_invoice([tmp_path / "amount.csv", tmp_path / "amount.csv"])


def test_an_export_in_two_currencies_is_refused_with_where_they_are(tmp_path: Path) -> None:
    amount = write(tmp_path / "amount.csv", OLD, "u,20261015,m,k,s,output_tokens,0.1E-6,4")
    cost = write(tmp_path / "cost.csv", COST_OLD, "u,20261015,m,Paid,0.1,USD", "u,20261015,m,Paid,0.7,CNY")
    with pytest.raises(InputError, match=r"CNY \(cost\.csv:3\), USD \(cost\.csv:2\)"):
        read_invoice([amount, cost])


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([OLD], "no row of tokens"),
        ([OLD, "u,20261332,m,k,s,output_tokens,0.1E-6,4"], r"amount\.csv:2: utc_date"),
        ([COST_OLD, "u,20261015,m,Paid,0.1,USD"], "no row of tokens"),
        (["a,b,c", "1,2,3"], "no invoice of a known format; its first line is: a, b, c"),
        (['{"data": [], "has_more": true}'], "has_more"),
        (['{"data": [], "has_more": false}'], "no row"),
        (['{"usage": 1}'], "no page of a usage report"),
    ],
)
def test_nothing_to_read_is_an_error_and_never_a_bill_of_nothing(tmp_path: Path, rows: list[str], says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        read_invoice([write(tmp_path / "amount.csv", *rows)])
    assert caught.value.exit_code == 2


def test_a_missing_file_and_what_is_no_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_invoice([tmp_path / "none.csv"])
    (tmp_path / "x.csv").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(InputError, match="zip that cannot be unpacked"):
        read_invoice([tmp_path / "x.csv"])
    (tmp_path / "y.csv").write_bytes(b"a,b\n\xff\xfe\xfd")
    with pytest.raises(InputError, match="not UTF-8"):
        read_invoice([tmp_path / "y.csv"])


def test_openrouters_activity_is_a_request_a_row(tmp_path: Path) -> None:
    head = (
        "generation_id,created_at,cost_total,cost_web_search,cost_cache,cost_file_processing,byok_usage_inference,"
        "tokens_prompt,tokens_completion,tokens_reasoning,tokens_cached,model_permaslug,provider_name,variant,cancelled,"
        "streamed,user,finish_reason_raw,finish_reason_normalized,generation_time_ms,time_to_first_token_ms,"
        "api_key_disabled,api_key_name,app_name"
    )
    tail = "deepseek/deepseek-v4-flash,DeepSeek,standard,false,true,,stop,stop,900,300,false,agents,app"
    path = write(
        tmp_path / "activity.csv",
        head,
        f"gen-1,2026-10-15 02:10:00.123,0.0005,0,-0.002,0,0,1000,50,0,900,{tail}",
        f"gen-2,2026-10-15 02:11:00,0.0001,0,0,0,0,100,50,0,900,{tail}",
    )
    invoice = read_invoice([path])
    assert [(line.kind, line.tokens, line.request_id) for line in invoice.lines] == [
        ("hit", 900, "gen-1"),
        ("miss", 100, "gen-1"),
        ("output", 50, "gen-1"),
    ]
    assert [charge.amount for charge in invoice.charges] == [Decimal("0.0005")]
    assert (invoice.by, invoice.currency) == ("requests", "USD")
    assert str(invoice.bad[0]) == "activity.csv:3: tokens_cached: 900 above tokens_prompt 100"


def test_usage_reports_of_anthropic_count_what_was_cached_apart(tmp_path: Path) -> None:
    result = {
        "uncached_input_tokens": 1500,
        "cache_creation": {"ephemeral_1h_input_tokens": 1000, "ephemeral_5m_input_tokens": 500},
        "cache_read_input_tokens": 200,
        "output_tokens": 70,
        "api_key_id": "apikey_1",
        "model": "claude-x",
    }
    bucket = {"starting_at": "2026-10-15T00:00:00Z", "ending_at": "2026-10-15T01:00:00Z", "results": [result]}
    nameless = {**bucket, "results": [{**result, "model": None}]}
    (tmp_path / "u.json").write_text(json.dumps([{"data": [bucket], "has_more": True}, {"data": [nameless]}]))
    invoice = read_invoice([tmp_path / "u.json"])
    assert {line.kind: line.tokens for line in invoice.lines} == {
        "miss": 1500,
        "hit": 200,
        "write_5m": 500,
        "write_1h": 1000,
        "output": 70,
    }
    assert "grouped by model" in invoice.bad[0].why


def test_usage_reports_of_openai_count_cached_tokens_inside_the_input(tmp_path: Path) -> None:
    result = {
        "object": "organization.usage.completions.result",
        "input_tokens": 1000,
        "input_cached_tokens": 640,
        "output_tokens": 50,
        "num_model_requests": 3,
        "api_key_id": None,
        "model": "gpt-x",
    }
    bucket = {"object": "bucket", "start_time": 1760490000, "end_time": 1760493600, "results": [result]}
    (tmp_path / "u.json").write_text(json.dumps({"object": "page", "data": [bucket], "has_more": False}))
    invoice = read_invoice([tmp_path / "u.json"])
    counts = {"hit": 640, "miss": 360, "output": 50, "requests": 3}
    assert {line.kind: line.tokens for line in invoice.lines} == counts
    assert invoice.lines[0].start == datetime(2025, 10, 15, 1, tzinfo=UTC)
    csv = write(
        tmp_path / "completions_usage.csv",
        "start_time,end_time,start_time_iso,end_time_iso,model,api_key_id,input_tokens,input_cached_tokens,"
        "output_tokens,num_model_requests",
        "1760490000,1760493600,2025-10-15T01:00:00+00:00,2025-10-15T02:00:00+00:00,gpt-x,,1000,640,50,3",
    )
    assert {line.kind: line.tokens for line in read_invoice([csv]).lines} == counts


MAP = """kvbench_invoice = 1
currency = "USD"
window = "hour"
prices_per = "million"
[columns]
start = "Hour"
model = "Model"
kind = "Item"
tokens = "Quantity"
price = "Unit price"
[kinds]
"Cached input" = "hit"
Input = "miss"
Output = "output"
"""


def mapped(tmp_path: Path, text: str, *rows: str) -> Invoice:
    (tmp_path / "map.toml").write_text(text)
    return read_invoice([write(tmp_path / "bill.csv", *rows)], tmp_path / "map.toml")


def test_another_csv_is_read_by_a_column_map(tmp_path: Path) -> None:
    head = "Hour,Model,Item,Quantity,Unit price"
    invoice = mapped(
        tmp_path,
        MAP,
        head,
        "2026-10-15T02:00:00Z,m,cached input,1000,0.006",
        "2026-10-15T02:00:00Z,m,Output,10,1.2",
        "2026-10-15T02:00:00Z,m,Images,10,1.2",
        "2026-10-15T02:30:00Z,m,Output,10,1.2",
    )
    two = datetime(2026, 10, 15, 2, tzinfo=UTC)
    assert told(invoice) == [(two, "hit", 1000, Decimal("6E-9")), (two, "output", 10, Decimal("1.2E-6"))]
    assert [bad.place for bad in invoice.bad] == ["bill.csv:4", "bill.csv:5"]
    assert "is not where its hour begins" in invoice.bad[1].why


@pytest.mark.parametrize(("per", "price"), [("token", "0.003"), ("million", "3000")])
def test_a_price_for_another_number_of_tokens_than_the_map_says_is_no_price(
    tmp_path: Path, per: str, price: str
) -> None:
    rows = ["Hour,Model,Item,Quantity,Unit price", f"2026-10-15T02:00:00Z,m,Output,10,{price}"]
    with pytest.raises(InputError, match="3,000 a million: is it for a token, or for a million"):
        mapped(tmp_path, MAP.replace('"million"', f'"{per}"'), *rows)


def test_a_column_for_each_kind_leaves_misses_of_the_input(tmp_path: Path) -> None:
    text = (
        'kvbench_invoice = 1\n[columns]\nrequest_id = "id"\nstart = "at"\nmodel = "m"\nhit = "c"\ninput = "p"\n'
        'output = "o"\namount = "usd"\ncurrency = "cur"\n'
    )
    rows = ["id,at,m,c,p,o,usd,cur", "a,2026-10-15T02:10:00Z,x,900,1000,5,0.01,usd"]
    invoice = mapped(tmp_path, text, *rows)
    assert [(line.kind, line.tokens) for line in invoice.lines] == [("hit", 900), ("output", 5), ("miss", 100)]
    assert (invoice.by, invoice.currency, invoice.charges[0].request_id) == ("requests", "USD", "a")
    with pytest.raises(InputError, match="several currencies"):
        mapped(tmp_path, text, *rows, "b,2026-10-15T02:10:00Z,x,900,1000,5,0.01,cny")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('window = "hour"', ""), "window: what a row is about is open"),
        (('currency = "USD"', ""), "currency: money has a currency"),
        (('prices_per = "million"', ""), "price belongs to a row"),
        (('"hit"', '"cached"'), "'cached' is none of hit"),
        (('tokens = "Quantity"', 'tokns = "Quantity"'), "unknown field `tokns`"),
        (('tokens = "Quantity"', 'hit = "Quantity"'), "either kind and tokens"),
        (('"Quantity"', '"Amount"'), "no column 'Amount', which the map takes for tokens"),
    ],
)
def test_a_column_map_that_leaves_something_open_is_refused(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    with pytest.raises(KvbenchError) as caught:
        mapped(tmp_path, MAP.replace(*change), "Hour,Model,Item,Quantity,Unit price")
    assert says in caught.value.message
