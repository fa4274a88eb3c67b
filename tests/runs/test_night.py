"""night.json: what is written is read, and what cannot be meant is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvbench.errors import InputError
from kvbench.runs.night import Night, NightRun, load_night, records_sha256, write_night

NIGHT = Night(
    kvbench_version="0.1.0",
    night="n1",
    status="done",
    started_at="2026-11-30T00:00:00+00:00",
    runs=(NightRun(run="runs/a", side="base", records_sha256="0" * 64),),
    verdict="pass",
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_night(tmp_path, NIGHT)
    assert load_night(tmp_path) == NIGHT
    assert [path.name for path in tmp_path.iterdir()] == ["night.json"]


def test_additions_of_a_later_kvbench_are_ignored_and_a_new_version_refused(tmp_path: Path) -> None:
    write_night(tmp_path, NIGHT)
    plain = json.loads((tmp_path / "night.json").read_text())
    (tmp_path / "night.json").write_text(json.dumps(plain | {"weather": "fine"}))
    assert load_night(tmp_path) == NIGHT
    (tmp_path / "night.json").write_text(json.dumps(plain | {"schema_version": 2}))
    with pytest.raises(InputError, match="schema_version: version 2; this kvbench reads 1 to 1"):
        load_night(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 1}', "\x00"])
def test_what_is_no_night_is_an_error_of_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "night.json").write_text(text)
    with pytest.raises(InputError, match=r"night\.json"):
        load_night(tmp_path)


def test_the_digest_is_of_the_records(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_bytes(b"abc")
    # FIPS 180-2, appendix B.1
    assert records_sha256(tmp_path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
