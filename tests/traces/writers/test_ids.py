from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.errors import InputError
from kvbench.traces.writers.ids import KeptIds, KeyedIds, NumberedIds, read_key


def test_kept_ids_stay_and_fresh_ones_follow_the_largest() -> None:
    ids = KeptIds(7)
    assert ids.trace([3, 7, -1]) == (3, 7, -1)
    assert [ids.fresh(), ids.fresh()] == [8, 9]
    assert KeptIds(-5).fresh() == 0


def test_numbers_never_mix_texts_ids_and_fresh_ones() -> None:
    ids = NumberedIds()
    assert ids.text([-9, 5, -9]) == (1, 2, 1)
    assert ids.trace([5, -9]) == (3, 4)
    assert ids.fresh() == 5
    assert ids.text([5, 6]) == (2, 6)


def test_keyed_ids_depend_on_key_scope_and_kind() -> None:
    key, value = b"k" * 32, [-(2**63), 2**63, 0]
    ids = KeyedIds(key, "32\0tokenizer", "file")
    same = KeyedIds(key, "32\0tokenizer", "another file")
    assert ids.text(value) == same.text(value)
    made = [
        *ids.text(value),
        *ids.trace(value),
        *same.trace(value),
        *KeyedIds(key, "64\0tokenizer", "file").text(value),
        *KeyedIds(b"j" * 32, "32\0tokenizer", "file").text(value),
        *(ids.fresh() for _ in range(3)),
        *(same.fresh() for _ in range(3)),
    ]
    assert len(set(made)) == len(made) == 21
    assert all(0 <= block < 2**63 for block in made)
    assert any(block >= 2**62 for block in made)


def test_a_key_is_a_files_bytes(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"0123456789abcdef")
    two.write_bytes(b"0123456789abcdef\n")
    assert len(read_key(one)) == 32
    assert read_key(one) != read_key(two)
    one.write_bytes(b"0123456789abcde")
    with pytest.raises(InputError, match="a key of 15 bytes could be guessed"):
        read_key(one)
    with pytest.raises(InputError, match="No such file"):
        read_key(tmp_path / "none")
