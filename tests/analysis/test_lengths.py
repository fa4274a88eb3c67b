"""How exact prompts made from hash ids were, by hand; and the line that says it."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest

from kvbench.analysis.lengths import prompt_lengths
from kvbench.analysis.summary import summarise
from kvbench.model import Clock, PromptLengths, Record, Usage
from kvbench.render.terminal import print_summary
from kvbench.runs.frame import records_frame
from kvbench.runs.reader import load_run

FIXTURE = Path(__file__).parent.parent / "fixtures" / "run-schema-1"


def record(wanted: int | None, got: int | None) -> Record:
    return Record(
        request_id="r",
        session_id="s",
        turn=0,
        clock=Clock(scheduled=0, due=0),
        usage=Usage(input_tokens=got),
        wanted_input_tokens=wanted,
    )


def test_only_turns_that_were_made_to_a_length_and_report_one_are_counted() -> None:
    frame = records_frame([record(100, 100), record(200, 203), record(300, 298), record(None, 7), record(50, None)])
    prompts = {"as": "text", "tokenizer": "deepseek", "template_tokens": 4}
    assert prompt_lengths(frame, prompts) == PromptLengths(
        turns=3,
        exact_turns=1,
        wanted=600,
        got=601,
        max_difference=3,
        sent_as="text",
        tokenizer="deepseek",
        template_tokens=4,
    )


def test_without_such_turns_there_is_nothing_to_say() -> None:
    assert prompt_lengths(records_frame([record(None, 7)]), {}) is None
    assert summarise(load_run(FIXTURE)).prompt_lengths is None


@pytest.mark.parametrize(
    ("exact", "words"),
    [
        (
            3,
            "all 3 prompts exactly as long as in the trace; made from hash ids as text by t, 4 tokens the",
        ),
        (
            1,
            "1 of 3 prompts exactly as long as in the trace, the others off by at most 3 tokens (601 for 600)",
        ),
    ],
)
def test_the_line(exact: int, words: str) -> None:
    lengths = PromptLengths(
        turns=3,
        exact_turns=exact,
        wanted=600,
        got=601,
        max_difference=3,
        sent_as="text",
        tokenizer="t",
        template_tokens=4,
    )
    out = io.StringIO()
    summary = summarise(load_run(FIXTURE))
    print_summary(msgspec.structs.replace(summary, prompt_lengths=lengths), Path("runs/one"), file=out)
    assert words in out.getvalue()
