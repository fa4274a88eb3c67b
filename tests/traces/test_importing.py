"""Any published format opens by its content, a big one in little memory, and leaves nothing behind."""

import gzip
import hashlib
import json
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from tests.imported import taken_for

from kvbench.errors import FailedError, InputError, UsageError
from kvbench.traces.importing import open_workload, validate_workload

NATIVE = '{"kvbench_trace": 1, "name": "n"}\n{"session_id": "a", "turn": 0, "append": []}\n'
WEKA: dict[str, Any] = {
    "id": "w",
    "block_size": 64,
    "hash_id_scope": "local",
    "requests": [{"t": 0.0, "type": "n", "model": "m", "in": 130, "out": 9, "hash_ids": [1, 2]}],
}
ROW = {"timestamp": 0, "input_length": 655, "output_length": 52, "hash_ids": [0, 1]}
BAILIAN = {"chat_id": 160, "parent_chat_id": -1, "timestamp": 62.5, "input_length": 48, "output_length": 80, "turn": 1}


@pytest.mark.parametrize(
    ("text", "format_"),
    [
        (NATIVE, "native"),
        ("\ufeff" + NATIVE, "native"),
        (json.dumps(WEKA), "weka"),
        (json.dumps(WEKA) + "\n" + json.dumps(WEKA) + "\n", "weka"),
        (json.dumps(WEKA, indent=1), "weka"),
        ("\ufeff\n" + json.dumps(WEKA, indent=4) + "\n", "weka"),
        (json.dumps(ROW), "mooncake"),
        ("\n" + json.dumps(ROW) + "\n", "mooncake"),
        ('{"delay": 5, "session_id": "a", "messages": []}', "mooncake"),
        ('{"session_id": "a", "turn": 0, "hash_ids": [], "input_length": 1}', "native"),
        (json.dumps({**BAILIAN, "hash_ids": [1, 2, 3]}), "bailian"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10", "azure"),
        ("arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,4808,10\n", "splitwise"),
        ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,GPT-4,1,1,2,API log\n", "burstgpt"),
        (
            "\ufeffTimestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
            "burstgpt",
        ),
        ('{"session_id": "root", "turns": [{"messages": []}]}', "aiperf"),
        ('{"body": {"messages": []}, "timestamp": 5, "messages": []}', "request-log"),
        ('{"messages": [], "tools": []}', "openai-messages"),
        ('{"conversations": [{"from": "human", "value": "hi"}]}', "sharegpt"),
        ('[{"id": "x", "conversations": []}, {"conversations": []}]', "sharegpt"),
        ('{"id": "a", "trace_id": "t", "startTime": 1.0, "endTime": 2.0, "messages": []}', "litellm"),
        ('{"standard_logging_object": {"id": "a"}}', "litellm"),
        ('{"trace_id": "t", "spans": []}', "otel"),
        ('{"resourceSpans": []}', "otel"),
        ('{"span_id": "a", "trace_id": "t", "attributes": {}}', "otel"),
        ("[1, 2]", "native"),
        ("{", "native"),
        ("", "native"),
    ],
)
def test_formats_are_told_apart_by_content(tmp_path: Path, text: str, format_: str) -> None:
    """`native` is also what no reader claims: the native one says what is wrong with it."""
    path = tmp_path / "no-suffix"
    path.write_text(text)
    assert taken_for(path) == format_


def test_what_no_reader_knows_is_refused_as_it_always_was(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(json.dumps(BAILIAN))
    with pytest.raises(InputError, match="not a native kvbench trace"):
        open_workload(path)
    with pytest.raises(InputError, match="no such file"):
        open_workload(tmp_path / "missing")


def test_a_native_trace_is_opened_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    path.write_text(NATIVE)
    with open_workload(path) as opened:
        assert opened.imported is None
        assert opened.header.name == "n"
        assert opened.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("indent", [None, 2])
def test_path_hash_and_size_are_the_sources(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "w.json"
    path.write_text(json.dumps(WEKA, indent=indent) + "\n")
    with open_workload(path) as opened:
        assert opened.path == path
        assert opened.header.name == "w"
        assert opened.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        assert opened.size_bytes == path.stat().st_size
        assert opened.read_tree(0).sessions[0].turns[0].hash_ids == (1, 2)


def test_what_is_made_of_a_trace_is_a_native_trace_again(tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    path.write_text(json.dumps(WEKA))
    with open_workload(path) as opened:
        (tmp_path / "again.jsonl").write_bytes(b"".join([*opened.raw_head(), *opened.raw_lines(0)]))
        with open_workload(tmp_path / "again.jsonl") as again:
            assert again.imported is None
            assert (again.header.name, again.header.block_size) == ("w", 64)
            made, same = opened.read_tree(0).sessions[0].turns[0], again.read_tree(0).sessions[0].turns[0]
            assert (made.hash_ids, made.input_tokens, made.extra) == (same.hash_ids, same.input_tokens, same.extra)


def test_a_trace_over_many_lines_names_the_request_alone(tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    path.write_text(json.dumps({**WEKA, "requests": [{**WEKA["requests"][0], "hash_ids": [1]}]}, indent=2))
    with pytest.raises(InputError) as caught:
        open_workload(path)
    assert str(caught.value).startswith(f"{path}: requests[0].hash_ids: 1 block ids for 130 input tokens")
    assert [error.line for error in validate_workload(path).errors] == [0]
    path.write_text(json.dumps(WEKA, indent=2)[:-20])
    with pytest.raises(InputError, match="ends inside its JSON"):
        open_workload(path)


def test_a_torn_first_line_of_many_is_named(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text(json.dumps(WEKA)[:-5] + "\n" + json.dumps(WEKA) + "\n")
    with pytest.raises(InputError, match="ends inside its JSON") as caught:
        open_workload(path)
    assert caught.value.line == 1
    found = validate_workload(path)
    assert ([error.line for error in found.errors], found.turns) == ([1], 1)


def test_a_directory_is_its_files_in_order_of_their_names(tmp_path: Path) -> None:
    for name, tokens in (("b.json", 130), ("a.json", 140), ("c.jsonl", 150)):
        requests = [{**WEKA["requests"][0], "in": tokens}]
        (tmp_path / name).write_text(json.dumps({**WEKA, "id": None, "requests": requests}))
    (tmp_path / "README.md").write_text("not a trace")
    with open_workload(tmp_path) as opened:
        assert [entry.root_id for entry in opened.tree_entries] == ["a", "b", "c"]
        assert [tree.sessions[0].turns[0].input_tokens for tree in opened.trees()] == [140, 130, 150]
        assert opened.imported is not None
        assert (opened.imported.files, opened.imported.units) == (3, 3)
        first = opened.sha256
    (tmp_path / "b.json").rename(tmp_path / "d.json")
    with open_workload(tmp_path) as opened:
        assert opened.sha256 != first, "the order of the traces is part of what is replayed"
    (tmp_path / "c.jsonl").write_text('{"requests": [{"t": 0, "type": "n", "in": 1}]}')
    with pytest.raises(InputError, match=r"c\.jsonl:1: requests\[0\]\.out: missing"):
        open_workload(tmp_path)
    found = validate_workload(tmp_path)
    assert [(error.file, error.line) for error in found.errors] == [(str(tmp_path / "c.jsonl"), 1)]


def test_a_directory_without_traces(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a directory without a trace file"):
        open_workload(tmp_path)


def test_no_more_than_one_object_is_in_memory(tmp_path: Path) -> None:
    """A long session: 100 requests of up to 4,950 ids, of which each adds 50."""
    path = tmp_path / "w.jsonl"
    requests = []
    for number in range(100):
        ids = list(range(1000, 1000 + 50 * number))
        requests.append({**WEKA["requests"][0], "t": number, "in": 64 * len(ids) + 1, "hash_ids": ids})
    text = json.dumps({**WEKA, "requests": requests})
    with path.open("w") as file:
        for number in range(30):
            file.write(text.replace('"id": "w"', f'"id": "w{number}"') + "\n")
    size = path.stat().st_size
    assert size > 40_000_000
    tracemalloc.start()
    try:
        with open_workload(path) as opened:
            made = sum(len(line) for i in range(opened.tree_count) for line in opened.raw_lines(i))
            assert opened.turn_count == 3000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert made < size / 15, "a turn holds what it adds"
    assert peak < size / 2, "one object takes about nine times its text"


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(json.dumps(ROW))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(FailedError, match="temporary file") as caught:
        open_workload(path)
    assert "TMPDIR" in str(caught.value.hint)


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    path = tmp_path / "m.jsonl"
    path.write_text(json.dumps(ROW))
    with open_workload(path) as opened:
        assert opened.turn_count == 1
        assert list(scratch.iterdir()) == [], "no name, so nothing stays even where the process is killed"


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress], ids=["gzip", "zstd"])
@pytest.mark.parametrize("text", [NATIVE, json.dumps(WEKA), json.dumps(ROW) + "\n" + json.dumps(ROW)])
def test_a_packed_file_is_what_is_in_it(tmp_path: Path, text: str, pack: Callable[[bytes], bytes]) -> None:
    plain, packed = tmp_path / "w.json", tmp_path / "w.json.packed"
    plain.write_text(text)
    packed.write_bytes(pack(text.encode()))
    with open_workload(plain) as a, open_workload(packed) as b:
        assert list(a.trees()) == list(b.trees())
        assert a.sha256 == b.sha256 == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress], ids=["gzip", "zstd"])
def test_a_torn_packed_file_is_named(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "w.packed"
    whole = pack("".join(json.dumps({**ROW, "timestamp": i}) + "\n" for i in range(9999)).encode())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"w\.packed.*(cannot be decompressed|ends inside its JSON)"):
        open_workload(path)


def frames(*parts: bytes) -> bytes:
    return b"".join(map(zstandard.ZstdCompressor().compress, parts))


@pytest.mark.parametrize("format", ["gzip", "zstd"])
def test_a_packed_file_cut_between_two_lines_is_not_taken_for_the_whole(tmp_path: Path, format: str) -> None:
    """Everything up to the cut can be unpacked, and ends with a whole line."""
    lines = [json.dumps({**ROW, "timestamp": i}).encode() + b"\n" for i in range(50)]
    packer: Any = zstandard.ZstdCompressor().compressobj() if format == "zstd" else zlib.compressobj(wbits=31)
    flush = zstandard.COMPRESSOBJ_FLUSH_BLOCK if format == "zstd" else zlib.Z_SYNC_FLUSH
    path = tmp_path / "w.packed"
    path.write_bytes(packer.compress(b"".join(lines)) + packer.flush(flush))
    with pytest.raises(InputError, match=r"w\.packed.*cannot be decompressed.*end"):
        open_workload(path)


def test_frames_of_zstd_one_after_the_other_are_one_file(tmp_path: Path) -> None:
    """As cat a.zst b.zst makes them, and with a frame that is to be skipped."""
    lines = [json.dumps({**ROW, "timestamp": i}).encode() + b"\n" for i in range(50)]
    path = tmp_path / "w.zst"
    skipped = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
    whole = frames(b"".join(lines[:20]), b"") + skipped + frames(b"".join(lines[20:]))
    path.write_bytes(whole)
    with open_workload(path) as opened:
        assert opened.turn_count == 50
        assert opened.sha256 == hashlib.sha256(b"".join(lines)).hexdigest()
    path.write_bytes(whole[:-1])
    with pytest.raises(InputError, match="ends inside a zstd frame"):
        open_workload(path)


@pytest.mark.parametrize("indent", [None, 1])
def test_the_elements_of_an_array_are_read_one_by_one(tmp_path: Path, indent: int | None) -> None:
    """Weka traces in one array; more text than is read at a time."""
    traces = [{**WEKA, "id": f"w{i}", "filler": 'a "]," ' * 200} for i in range(300)]
    path = tmp_path / "w.json"
    path.write_text(json.dumps(traces, indent=indent))
    with open_workload(path) as opened:
        assert [entry.root_id for entry in opened.tree_entries] == [f"w{i}" for i in range(300)]
        assert opened.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        lines = path.read_text().splitlines()
        first = opened.read_tree(1).sessions[0].turns[0]
        assert indent is None or '"id": "w1"' in "".join(lines[first.line - 1 : first.line + 2])
    path.write_text(json.dumps(traces)[:-200])
    with pytest.raises(InputError, match="ends inside its JSON array"):
        open_workload(path)


def test_a_format_can_be_said(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(json.dumps(ROW))
    with pytest.raises(InputError, match="missing required field requests"):
        open_workload(path, format="weka")
    with pytest.raises(UsageError, match="no such format") as caught:
        open_workload(path, format="wekka")
    assert "weka" in str(caught.value.hint)
    with pytest.raises(UsageError, match="only Weka"):
        open_workload(path, nested_t="absolute")


def test_a_directory_of_two_formats_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(ROW))
    (tmp_path / "b.json").write_text(json.dumps(WEKA))
    with pytest.raises(InputError, match=r"several formats.*mooncake: a\.json; weka: b\.json"):
        open_workload(tmp_path)


@pytest.mark.parametrize("text", ['{"foo": 1}\n', "a,b,c\n1,2,3\n", "[]", "plain text"])
def test_what_is_of_no_format_is_told_which_there_are(tmp_path: Path, text: str) -> None:
    path = tmp_path / "log.txt"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        open_workload(path)
    assert caught.value.line == 1
    hint = caught.value.hint
    assert hint is not None
    assert '{"kvbench_trace": 1' in hint
    assert "--format NAME" in hint
    assert "claude-code, " in hint


def test_a_native_trace_with_a_fault_is_told_of_the_fault_alone(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"kvbench_trace": 99}\n')
    with pytest.raises(InputError) as caught:
        open_workload(path)
    assert "claude-code" not in (caught.value.hint or "")
