"""CSV logs of arrivals and lengths: Azure, Splitwise, BurstGPT."""

import csv
import os
import random
from datetime import datetime
from pathlib import Path

import pytest

from kvbench.errors import InputError
from kvbench.model import Session
from kvbench.traces.formats.azure import date_ticks
from kvbench.traces.importing import open_workload, validate_workload

DATA = os.environ.get("KVBENCH_TEST_DATA")
needs_data = pytest.mark.skipif(DATA is None, reason="KVBENCH_TEST_DATA is not set")

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
BURST = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"


def write(tmp_path: Path, *lines: str, end: str = "\n") -> Path:
    path = tmp_path / "a.csv"
    path.write_bytes(end.join(lines).encode())
    return path


def sessions_of(path: Path) -> list[Session]:
    with open_workload(path) as opened:
        return [session for tree in opened.trees() for session in tree.sessions]


def test_a_row_is_a_session_of_its_own_with_blocks_of_its_own(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        AZURE,
        "2023-11-16 18:17:03.9799600,1025,10",
        "2023-11-16 18:17:04.0319601,512,0",
        "2023-11-17 00:00:00,1,3",
        end="\r\n",
    )
    made = sessions_of(path)
    assert [session.turns[0].start_s for session in made] == [0.0, 0.0520001, 20_576.02004]
    assert [session.turns[0].hash_ids for session in made] == [(1, 2, 3), (4,), (5,)]
    assert [session.turns[0].input_tokens for session in made] == [1025, 512, 1]
    assert [session.turns[0].output_tokens for session in made] == [10, 1, 3]
    assert [session.turns[0].line for session in made] == [2, 3, 4]
    with open_workload(path) as opened:
        report = opened.imported
        assert opened.header.block_size == 512
    assert report is not None
    assert (report.units, report.turns, report.notes, report.dropped) == (3, 3, {"zero_output": 1}, {})
    assert any("nothing is ever hit" in sentence for sentence in report.sentences())


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2024-05-10 00:00:00.009930+00:00", 0.00993),
        ("2024-05-10T02:00:01Z", 7201.0),
        ("2024-05-10 02:00:01.5+02:00", 1.5),
        ("2024-05-09 19:30:00-05:00", 1800.0),
    ],
)
def test_times_with_and_without_an_offset(text: str, seconds: float) -> None:
    assert date_ticks(text) - date_ticks("2024-05-10 00:00:00") == round(seconds * 10**7)


def test_time_counts_from_the_earliest_row_wherever_it_stands(tmp_path: Path) -> None:
    lines = ["0.5,10,1", "7.25,20,2", "3.0,30,3"]
    for seed in range(6):
        random.Random(seed).shuffle(lines)
        path = write(tmp_path, "arrived_at,num_prefill_tokens,num_decode_tokens", *lines)
        made = {session.turns[0].input_tokens: session.turns[0].start_s for session in sessions_of(path)}
        assert made == {10: 0.0, 20: 6.75, 30: 2.5}
        with open_workload(path) as opened:
            assert opened.imported is not None
            assert opened.imported.units == 3


def test_the_rows_of_a_directory_share_one_clock(tmp_path: Path) -> None:
    for name, clock in (("a", "10:00:05"), ("b", "10:00:00"), ("c", "10:00:09")):
        (tmp_path / f"{name}.csv").write_text(f"{AZURE}\n2023-11-16 {clock},{ord(name)},1\n")
    with open_workload(tmp_path) as opened:
        made = {tree.sessions[0].turns[0].input_tokens: tree.start_s for tree in opened.trees()}
        assert made == {97: 5.0, 98: 0.0, 99: 9.0}
        assert opened.imported is not None
        assert (opened.imported.units, opened.imported.files) == (3, 3)


def test_conversations_of_burstgpt_follow_each_other_and_failed_rows_are_left_out(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        BURST,
        "100.0,s1,43,GPT-4,906,446,1352,Conversation log",
        "150.0,,2,ChatGPT,30,5,35,API log",
        "160.0,s2,0,ChatGPT,0,0,0,Conversation log",
        "170.0,s1,26,ChatGPT,1631,282,1913,Conversation log",
        "180.0,s1,9,ChatGPT,1900,20,1920,Conversation log",
        "190.0,,1,GPT-4,70,0,70,API log",
    )
    talk, lone = sessions_of(path)
    one, two, three = talk.turns
    assert (talk.session_id, one.start_s, one.model) == ("s1", 0.0, "GPT-4")
    assert (two.delay_s, two.model, three.delay_s, three.model) == (27.0, "ChatGPT", 0.0, None)
    assert one.recorded is not None
    assert [(turn.recorded.at_s, turn.recorded.e2e_s) for turn in (one, two, three) if turn.recorded] == [
        (0.0, 43.0),
        (70.0, 26.0),
        (80.0, 9.0),
    ]
    assert (lone.turns[0].start_s, lone.turns[0].extra) == (50.0, {"Log Type": "API log"})
    ids = [block for session in (talk, lone) for turn in session.turns for block in turn.hash_ids or ()]
    assert len(ids) == len(set(ids)) == 2 + 4 + 4 + 1
    with open_workload(path) as opened:
        report = opened.imported
    assert report is not None
    assert (report.units, report.turns, report.dropped, report.notes) == (6, 4, {"failed": 2}, {"clipped_pauses": 1})
    assert [(item.line, item.reason) for item in report.dropped_lines] == [
        (4, "no output tokens: a request that failed (0 input tokens)"),
        (7, "no output tokens: a request that failed (70 input tokens)"),
    ]


def test_columns_stand_in_any_order(tmp_path: Path) -> None:
    one = sessions_of(write(tmp_path, AZURE, "2023-11-16 10:00:00,5,6"))
    two = sessions_of(write(tmp_path, "x, GeneratedTokens,ContextTokens,TIMESTAMP", "9,6,5,2023-11-16 10:00:00"))
    assert one == two


@pytest.mark.parametrize(
    ("line", "where", "message"),
    [
        ("2023-11-16 25:00:00,5,6", "TIMESTAMP: ", '"2023-11-16 25:00:00" is no time; 2023-11-16 18:17:03.9799600'),
        ("2023-02-30 10:00:00,5,6", "TIMESTAMP: ", "is no time"),
        ("1700000000,5,6", "TIMESTAMP: ", "is no time"),
        ("2023-11-16 10:00:00,-5,6", "ContextTokens: ", '"-5" is no number of tokens'),
        ("2023-11-16 10:00:00,5.5,6", "ContextTokens: ", '"5.5" is no number of tokens'),
        ("2023-11-16 10:00:00,5,NaN", "GeneratedTokens: ", '"NaN" is no number of tokens'),
        ("2023-11-16 10:00:00,5," + "9" * 5000, "GeneratedTokens: ", "at most 2147483647"),
        ("2023-11-16 10:00:00,,6", "ContextTokens: ", '"" is no number'),
        ("2023-11-16 10:00:00,5", "", "2 cells, where the header names 3 columns"),
        ("=cmd(),5,6", "TIMESTAMP: ", "is no time"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, line: str, where: str, message: str) -> None:
    path = write(tmp_path, AZURE, "2023-11-16 09:00:00,5,6", line)
    with pytest.raises(InputError) as caught:
        open_workload(path)
    assert str(caught.value).startswith(f"{path}:3: {where}")
    assert message in str(caught.value)
    found = validate_workload(path)
    assert ([error.line for error in found.errors], found.turns) == ([3], 1)


@pytest.mark.parametrize("time", ["NaN", "Infinity", "1e400", "x"])
def test_a_time_that_is_no_number_is_named(tmp_path: Path, time: str) -> None:
    path = write(tmp_path, "arrived_at,num_prefill_tokens,num_decode_tokens", f"{time},5,6")
    with pytest.raises(InputError, match=r"2: arrived_at: .* is no time; seconds, as 0\.052"):
        open_workload(path)


def test_headers_that_lack_a_column_or_have_it_twice(tmp_path: Path) -> None:
    path = write(tmp_path, "TIMESTAMP,ContextTokens", "2023-11-16 10:00:00,5")
    with pytest.raises(InputError, match=r"a\.csv:1: no column GeneratedTokens; the header is TIMESTAMP,ContextTokens"):
        open_workload(path, format="azure")
    path = write(tmp_path, AZURE + ",ContextTokens", "2023-11-16 10:00:00,5,6,7")
    with pytest.raises(InputError, match='column "ContextTokens" is there twice'):
        open_workload(path)
    path = write(tmp_path, AZURE)
    with pytest.raises(InputError, match="not one request in it"):
        open_workload(path)


@needs_data
def test_the_published_azure_rows_are_all_there() -> None:
    assert DATA is not None
    path = Path(DATA, "azure", "AzureLLMInferenceTrace_code.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    made = [session.turns[0] for session in sessions_of(path)]
    assert [turn.input_tokens for turn in made] == [int(row["ContextTokens"]) for row in rows]
    assert [turn.output_tokens for turn in made] == [int(row["GeneratedTokens"]) for row in rows]
    first = datetime.fromisoformat(rows[0]["TIMESTAMP"][:26])
    for turn, row in zip(made, rows, strict=True):
        seconds = (datetime.fromisoformat(row["TIMESTAMP"][:26]) - first).total_seconds()
        assert turn.start_s == pytest.approx(seconds, abs=1.1e-6)
    # The same requests, as a simulator's authors have them.
    again = [session.turns[0] for session in sessions_of(Path(DATA, "vidur", "splitwise_code.csv"))]
    assert [(turn.input_tokens, turn.output_tokens) for turn in again] == [
        (turn.input_tokens, turn.output_tokens) for turn in made
    ]
    assert [turn.start_s for turn in again] == pytest.approx([turn.start_s for turn in made], abs=1e-6)


@needs_data
def test_the_published_burstgpt_excerpt() -> None:
    assert DATA is not None
    path = Path(DATA, "burstgpt", "burstgpt3_excerpt26.csv")
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if int(row["Response tokens"])]
    with open_workload(path) as opened:
        made = [session for tree in opened.trees() for session in tree.sessions]
        assert opened.imported is not None
        assert (opened.imported.units, opened.imported.dropped) == (26, {"failed": 1})
    turns = [turn for session in made for turn in session.turns]
    assert sum(turn.input_tokens or 0 for turn in turns) == sum(int(row["Request tokens"]) for row in rows) == 49_805
    assert len(made) == len({row["Session ID"] or row["Timestamp"] for row in rows})
