"""Price books: the bundled ones load and say what they must, and each kind of mistake is named with its line."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from kvbench.errors import InputError, UsageError
from kvbench.prices.load import bundled_books, load_book, parse_book
from kvbench.prices.priced import Billable, Unpriced
from kvbench.prices.pricing import PriceList
from kvbench.usage import normalise

HEAD = """kvbench_prices = 1
name = "b"
provider = "P"
currency = "USD"
checked = 2026-11-30
[[model]]
id = "m"
[[model]]
id = "n"
"""
ROW = """[[row]]
model = "m"
currency = "USD"
from = 2026-01-01T00:00:00Z
miss = 1
output = 2
status = "official"
source = "s"
"""


def test_what_is_bundled() -> None:
    assert bundled_books() == ["deepseek", "together"]
    for name in (*bundled_books(), "template"):
        book = load_book(name)
        assert book.rows
        assert all(row.source and row.status for row in book.rows)


def test_every_known_row_of_deepseek() -> None:
    rows = [(row.model, row.currency, f"{row.start:%m-%d %H:%M}", row.status) for row in load_book("deepseek").rows]
    assert sorted(rows) == [
        ("deepseek-flash", "CNY", "08-16 16:00", "official"),
        ("deepseek-flash", "CNY", "09-10 04:00", "official"),
        ("deepseek-flash", "USD", "04-24 00:00", "official"),
        ("deepseek-flash", "USD", "04-26 12:15", "official"),
        ("deepseek-flash", "USD", "08-16 16:00", "official"),
        ("deepseek-flash", "USD", "09-10 04:00", "official"),
        ("deepseek-v4-pro", "CNY", "08-16 16:00", "official"),
        ("deepseek-v4-pro", "USD", "04-24 00:00", "secondary"),
        ("deepseek-v4-pro", "USD", "04-26 12:15", "official"),
        ("deepseek-v4-pro", "USD", "08-16 16:00", "official"),
    ]


def test_offsets_are_read_and_kept_as_utc() -> None:
    book = parse_book(HEAD + ROW.replace("2026-01-01T00:00:00Z", "2026-01-01T08:00:00+08:00"), "b.toml")
    assert book.rows[0].start == datetime(2026, 1, 1, tzinfo=UTC)


ALIASES = """[[alias]]
name = "x"
model = "m"
until = 2026-06-01T00:00:00Z
[[alias]]
name = "x"
model = "n"
from = 2026-06-01T00:00:00Z
"""


def test_an_alias_may_change_its_model_but_not_name_two() -> None:
    book = parse_book(HEAD + ROW + ALIASES, "b.toml")
    assert book.models_named("x", datetime(2026, 5, 31, 23, 59, 59, tzinfo=UTC)) == {"m"}
    assert book.models_named("x", datetime(2026, 6, 1, tzinfo=UTC)) == {"n"}
    with pytest.raises(InputError, match="alias x: is ambiguous: billed as m and as n"):
        parse_book(HEAD + ROW + ALIASES.replace("from = 2026-06-01", "from = 2026-05-01"), "b.toml")


def test_a_model_of_two_books_is_refused_until_one_is_named() -> None:
    books = [parse_book(HEAD + ROW, "b.toml"), parse_book(HEAD.replace('name = "b"', 'name = "c"') + ROW, "c.toml")]
    usage = normalise({"prompt_tokens": 1, "completion_tokens": 1})
    request = Billable(request_id="r", model="m", usage=usage, start=datetime(2026, 2, 1, tzinfo=UTC))
    got = PriceList(books).price(request)
    assert isinstance(got, Unpriced)
    assert got.reason == "ambiguous_model"
    assert "m in b, m in c" in got.why


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (ROW.replace("miss = 1\n", ""), 10, "missing required field `miss`"),
        (ROW.replace("miss = 1", "miss = -1"), 10, "row 1, miss: -1 is no price"),
        (ROW.replace("miss = 1", "miss = -1.5"), 10, "row 1, miss: -1.5 is no price"),
        (ROW.replace("miss = 1", "miss = nan"), 10, "is no price"),
        (ROW.replace("miss = 1", 'miss = "free"'), 10, "miss"),
        (ROW.replace("T00:00:00Z", "T00:00:00"), 10, "has no time zone"),
        (ROW.replace("2026-01-01T00:00:00Z", "0001-01-01T00:00:00+12:00"), 10, "is no date of a price"),
        (ROW.replace('model = "m"', 'model = "k"'), 10, "there are: m, n"),
        (ROW.replace("miss = 1", "mis = 1\nmiss = 1"), 10, "unknown field `mis`"),
        (ROW.replace("miss = 1", "miss = 1\nuntil = 2026-01-01T00:00:00Z"), 10, "is not after from"),
        (ROW.replace("miss = 1", 'miss = 1\npeak = "x"\npeak_factor = 2'), 10, 'no [[peak]] is named "x"'),
        (ROW.replace("miss = 1", 'miss = 1\npeak = "x"'), 10, "both or none"),
        (ROW.replace("miss = 1", 'miss = 1\nwrite = "miss"\nwrite_5m = 1'), 10, "leave one out"),
        (ROW.replace("official", "rumour"), 10, "status"),
        (ROW + ROW.replace("2026-01-01", "2026-03-01"), 18, "holds at the same time as the row of line 10"),
        (ROW.replace("miss = 1", "miss = 1\nhit = 1.5"), 10, "hit 1.5 is above miss 1"),
        (ROW.replace("miss = 1", "miss = 1\ninput_from = 9\ninput_below = 9"), 10, "input_below must be above"),
    ],
)
def test_mistakes_in_rows_have_a_line(text: str, line: int, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_book(HEAD + text, "b.toml")
    assert caught.value.line == line
    assert says in caught.value.message


DAYS = """[[holidays]]
name = "y"
known_from = 2026-01-01
known_until = 2027-01-01
days = [2026-10-01]
source = "s"
"""
PEAK = """[[peak]]
name = "x"
from = 2026-01-01T00:00:00Z
hours = ["01:00-04:00"]
status = "official"
source = "s"
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (PEAK.replace("01:00-04:00", "22:00-02:00"), "is no window of a day"),
        (PEAK.replace("01:00-04:00", "1-4"), "is no window of a day"),
        (PEAK + 'weekdays = ["Monday"]\n', "'Monday' is no weekday: Mon,"),
        (PEAK + 'holidays = "y"\n', 'no [[holidays]] is named "y"'),
        (PEAK + PEAK, "has two phases at once"),
        (PEAK + DAYS + DAYS, "two lists have one name"),
        (PEAK + DAYS.replace("2026-10-01", "2027-10-01"), "2027-10-01 is outside of what the list covers"),
        (PEAK.replace("2026-01-01", "2026-02-01"), "does not say what is peak at 2026-01-01"),
    ],
)
def test_mistakes_in_peak_hours(text: str, says: str) -> None:
    row = ROW.replace("miss = 1", 'miss = 1\npeak = "x"\npeak_factor = 2')
    assert parse_book(HEAD + row + PEAK, "b.toml").peaks[0].hours
    with pytest.raises(InputError, match=says.replace("[", r"\[")):
        parse_book(HEAD + row + text, "b.toml")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kvbench_prices = 2\n", "expected 1"),
        ("", "expected 1"),
        ("kvbench_prices = 1\n", "missing required field"),
        ("= 3", "not TOML"),
        (HEAD.replace('"USD"', '"EUR"') + ROW, "no row has this currency; there are USD"),
        (HEAD + HEAD[HEAD.index("[[model]]") :] + ROW, "the same id"),
        (HEAD + ROW + '[[alias]]\nname = "n"\nmodel = "m"\n', "is a model's id already"),
    ],
)
def test_mistakes_in_the_book(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_book(text, "b.toml")


def test_no_such_book(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_book("nope")
    assert "deepseek, together" in (caught.value.hint or "")
    with pytest.raises(UsageError):
        load_book(str(tmp_path / "nope.toml"))
    (tmp_path / "latin.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="cannot be read"):
        load_book(str(tmp_path / "latin.toml"))
