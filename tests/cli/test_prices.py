"""`kvbench prices`: what it lists, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Kvbench
from typer.testing import CliRunner

from kvbench.cli.main import app
from kvbench.errors import KvbenchError


def test_a_book_as_json() -> None:
    done = CliRunner().invoke(app, ["prices", "deepseek", "--json"])
    book = json.loads(done.stdout)
    assert book["currencies"] == ["CNY", "USD"]
    flash = next(model for model in book["models"] if model["id"] == "deepseek-flash")
    assert flash["aliases"] == ["deepseek-v4-flash", "deepseek-v4-flash-vision-exp"]
    now = [row for row in book["rows"] if row["model"] == "deepseek-flash" and row["until"] is None]
    assert [(row["currency"], row["hit"], row["miss"], row["output"], row["peak_factor"]) for row in now] == [
        ("CNY", "0.02", "1", "4", "2"),
        ("USD", "0.003", "0.15", "0.6", "2"),
    ]
    assert all(row["source"] and row["age_days"] is not None for row in book["rows"])


def test_a_book_for_people_says_status_source_and_the_end_of_what_is_known() -> None:
    text = CliRunner().invoke(app, ["prices", "deepseek"]).stdout
    assert "secondary" in text
    assert "holidays are known from 2026-08-22 up to, and without, 2027-01-01" in text
    assert "deepseek-chat: no price: retired" in text


def test_the_bundled_books() -> None:
    names = [book["name"] for book in json.loads(CliRunner().invoke(app, ["prices", "--json"]).stdout)["books"]]
    assert names == ["deepseek", "together"]


def test_the_template_is_where_it_says() -> None:
    last = CliRunner().invoke(app, ["prices", "template"]).stdout.splitlines()[-1]
    assert Path(last.removeprefix("next: copy ").partition(",")[0]).is_file()


def test_a_bad_book_is_an_error_with_its_line(tmp_path: Path) -> None:
    template = Path(__file__).parents[2] / "bench/kvbench/prices/books/template.toml"
    text = template.read_text().replace("miss = 2.50", "miss = -2.50")
    (tmp_path / "bad.toml").write_text(text)
    line = text[: text.index("[[row]]")].count("\n") + 1
    done = CliRunner().invoke(app, ["prices", str(tmp_path / "bad.toml")])
    assert isinstance(done.exception, KvbenchError)
    assert f"bad.toml:{line}: row 1, miss: -2.50 is no price" in done.exception.message


@pytest.mark.parametrize("book", ["nope", "nope.toml"])
def test_no_such_book(kvbench: Kvbench, book: str) -> None:
    done = kvbench("prices", book)
    assert done.returncode == 2
    assert "bundled: deepseek, together" in done.stderr
    assert done.stdout == ""
