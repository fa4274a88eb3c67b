from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import zstandard

from kvbench.errors import FailedError, UsageError
from kvbench.traces.output import trace_output

TEXT = b"line\n" * 1000


def write(path: Path) -> bytes:
    with trace_output(path, replace=False) as put:
        put(TEXT)
    return path.read_bytes()


def test_the_name_says_how_it_is_packed_and_the_bytes_are_the_same_every_time(tmp_path: Path) -> None:
    assert write(tmp_path / "t.jsonl") == TEXT
    for suffix in (".gz", ".zst", ".zstd"):
        packed = write(tmp_path / f"t.jsonl{suffix}")
        assert packed == write(tmp_path / f"other.jsonl{suffix}")
        assert len(packed) < 100
        assert suffix != ".gz" or packed[3:8] == bytes(5)  # no name, no time
        found = (
            gzip.decompress(packed)
            if suffix == ".gz"
            else zstandard.ZstdDecompressor().decompressobj().decompress(packed)
        )
        assert found == TEXT


def test_nothing_is_overwritten_not_even_what_appears_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"mine")
    with pytest.raises(UsageError, match="is there already"), trace_output(path, replace=False):
        pytest.fail("opened")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="is there already"), trace_output(link, replace=False):
        pytest.fail("opened")
    late = tmp_path / "late"
    with pytest.raises(UsageError, match="is there already"), trace_output(late, replace=False):
        late.write_bytes(b"somebody else's")
    assert (path.read_bytes(), late.read_bytes()) == (b"mine", b"somebody else's")
    assert {entry.name for entry in tmp_path.iterdir()} == {"t", "link", "late"}


def test_what_may_be_replaced_is_replaced_when_all_is_written(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"old")
    with trace_output(path) as put:
        put(TEXT)
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == TEXT
    assert list(tmp_path.iterdir()) == [path]


def test_what_fails_leaves_no_file(tmp_path: Path) -> None:
    for name in ("t", "t.gz", "t.zst"):
        with pytest.raises(TypeError), trace_output(tmp_path / name) as put:
            [put(part) for part in (TEXT, "no bytes")]  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_missing_directory_is_said(tmp_path: Path) -> None:
    with pytest.raises(FailedError, match="cannot be written: No such file or directory"):
        write(tmp_path / "no" / "t")
