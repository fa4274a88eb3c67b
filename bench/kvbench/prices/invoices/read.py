"""An invoice out of its files, its format told by the content."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

from kvbench.errors import InputError, UsageError
from kvbench.prices.invoices import deepseek, mapped, openrouter, pages
from kvbench.prices.invoices.lines import Invoice
from kvbench.prices.invoices.repeated import once
from kvbench.prices.invoices.table import header

MAX_BYTES = 1 << 30
_HINT = "another CSV is read by a column map: --columns MAP.toml (docs/billing.md)"


def read_invoice(paths: Sequence[Path], columns: Path | None = None) -> Invoice:
    """The files of one invoice, a zip among them or not.

    Raises InputError where one cannot be read, their formats differ, or not one row can be read; UsageError for a
    column map with a format that needs none.
    """
    shown = ", ".join(str(path) for path in paths)
    if len({path.absolute() for path in paths}) < len(paths):
        raise UsageError("--invoice names one file twice", hint="its rows would count twice")
    texts = [each for path in paths for each in _texts(path)]
    if not texts:
        raise InputError("no CSV or JSON in it", path=shown, hint=_HINT)
    found = _by_content(texts, shown) if columns is None else mapped.read(texts, shown, mapped.load_map(columns))
    if not found.lines and not found.charges:
        bad = found.bad
        why = f"{len(bad):,} rows, of which none can be read; the first: {bad[0]}" if bad else "no row but the header"
        raise InputError(why, path=shown, hint=_HINT)
    return once(found)


def _by_content(texts: Sequence[tuple[str, str]], shown: str) -> Invoice:
    if all(text.lstrip()[:1] in ("{", "[") for _, text in texts):
        if len(texts) > 1:
            raise InputError("several JSON files: put their pages into one array", path=shown)
        return pages.read(texts[0][1], texts[0][0])
    heads = [header(text) for _, text in texts]
    for reader, is_table in (
        (deepseek.read, deepseek.is_table),
        (openrouter.read, openrouter.is_table),
        (pages.read_csv, pages.is_table),
    ):
        known = [is_table(head) for head in heads]
        if all(known):
            return reader(texts, shown)
        if any(known):
            other = texts[known.index(False)][0]
            raise InputError("not a table of the same export as the other file", path=other)
    columns = ", ".join(heads[0][:12])
    raise InputError(f"no invoice of a known format; its first line is: {columns[:200]}", path=texts[0][0], hint=_HINT)


def _texts(path: Path) -> list[tuple[str, str]]:
    """(name, text) of each table of a file."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError("larger than 1 GiB", path=path, hint="split it by date")
        data = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"--invoice {path}: no such file") from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from None
    if not data.startswith(b"PK"):
        return [(path.name, _text(data, path.name))]
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [each for each in archive.infolist() if _is_table(each.filename)]
            if sum(each.file_size for each in members) > MAX_BYTES:
                raise InputError("more than 1 GiB when unpacked", path=path, hint="split it by date")
            return [(f"{path.name}/{each.filename}", _text(archive.read(each), each.filename)) for each in members]
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, OSError) as error:
        raise InputError(f"a zip that cannot be unpacked: {error}", path=path) from None


def _is_table(name: str) -> bool:
    parts = name.split("/")
    return name.lower().endswith((".csv", ".json")) and not parts[0].startswith("__MACOSX") and parts[-1][:1] != "."


def _text(data: bytes, name: str) -> str:
    if b"\0" in data[:4096] and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError("not a text", path=name)
    try:
        encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 at byte {error.start}", path=name) from None
