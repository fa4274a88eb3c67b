"""`kvbench prices`: which price books there are, and what is in one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer


def prices(
    book: Annotated[
        str | None,
        typer.Argument(metavar="[BOOK]", help="A bundled book's name, or a TOML file. Without: list the bundled ones."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check a price book and list its rows: since when they hold, their source, its status and age."""
    from kvbench.prices.listing import book_dict
    from kvbench.prices.load import BOOKS, TEMPLATE, bundled_books, load_book
    from kvbench.render.booktext import book_lines, books_lines

    now = datetime.now(UTC)
    if book is None:
        books = [book_dict(load_book(name), now) for name in bundled_books()]
        _print({"books": books} if json else None, books_lines(books))
        return
    listed = book_dict(load_book(book), now)
    where = ["", f"next: copy {BOOKS / f'{TEMPLATE}.toml'}, which explains every field"] if book == TEMPLATE else []
    _print(listed if json else None, [*book_lines(listed), *where])


def _print(value: dict[str, Any] | None, lines: list[str]) -> None:
    if value is None:
        typer.echo("\n".join(lines))
        return
    from kvbench.render.jsonout import json_text

    typer.echo(json_text(value))
