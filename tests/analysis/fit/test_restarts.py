"""Bytes from one server started with several context lengths, against pools counted by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvbench.analysis.fit.fit import fit_runs
from kvbench.analysis.fit.restarts import Start, share_bounds
from kvbench.model import FitReport, RunInfo
from kvbench.runs.reader import Run

MEMORY = 8 << 20
PAGE = 8_192
"""Of a pool of 1,024 blocks of 32 tokens at 256 bytes."""


def stated(length: int, beside: int, blocks: int = 1_024, block: int = 32) -> int:
    """As vLLM counts: how many of the longest requests fit, times their length, rounded down."""
    return int(blocks / (-(-length // block) + beside) * length)


def start(length: int, tokens: int | None, *, model: str = "m", memory: int | None = MEMORY) -> Run:
    cache: dict[str, Any] = {"block_size": 32, "stated_tokens": tokens, "stated_bytes": memory}
    info = RunInfo(
        kvbench_version="0",
        run_id="r",
        name="t",
        status="done",
        started_at="",
        server={"model": model, "max_model_len": length, "cache": cache},
    )
    return Run(info=info, records=[], events=[], warnings=[], path=Path("nowhere"))


def fit(starts: list[Run], memory: int | None = None) -> FitReport:
    return fit_runs(starts, kv_memory_bytes=memory)


def reasons(report: FitReport) -> str:
    return " ".join(r.reason for r in report.refusals if r.name == "bytes_per_token_of_restarts")


@pytest.mark.parametrize("beside", [0, 17, 81, 400])
@pytest.mark.parametrize("lengths", [(4_096, 8_192, 16_384), (5_000, 9_111, 13_333, 20_001)])
def test_both_kinds_of_bytes_are_bounded(beside: int, lengths: tuple[int, ...]) -> None:
    """256 bytes a token and `beside` pages of 8,192 bytes a request, by construction."""
    report = fit([start(length, stated(length, beside)) for length in lengths])
    token, session = report.named("bytes_per_token_of_restarts"), report.named("bytes_per_session_of_restarts")
    assert token is not None
    assert session is not None
    for found, truth in ((token, 256), (session, beside * PAGE)):
        assert found.low is not None
        assert found.value is not None
        assert found.high is not None
        assert found.low <= truth <= found.high
        assert found.low <= found.value <= found.high
    assert token.value == pytest.approx(256, rel=0.01)
    assert token.unit == "bytes/token"


def test_what_vllm_said_of_a_window_model() -> None:
    """vLLM 0.32, Gemma 2 of two layers, window 512, 2,048 tokens a prefill step, 8 MiB: 24,892 tokens at 8,192 and
    28,292 at 16,384. 81 pages are beside the tokens: (511 + 2,048) / 32, rounded up, and one."""
    assert stated(8_192, 81) == 24_892
    assert stated(16_384, 81) == 28_292
    bounds = share_bounds([Start(n, stated(n, 81), 32) for n in (4_096, 8_192, 16_384)])
    assert bounds is not None
    assert bounds[0][0] * MEMORY == pytest.approx(256, rel=2e-3)
    assert bounds[1][0] * MEMORY == pytest.approx(81 * PAGE, rel=2e-2)


def test_without_a_memory_they_are_shares_of_it() -> None:
    report = fit([start(n, stated(n, 17), memory=None) for n in (4_096, 8_192, 16_384)])
    token = report.named("bytes_per_token_of_restarts")
    assert token is not None
    assert token.unit == "memory/token"
    assert token.value == pytest.approx(256 / MEMORY, rel=0.01)
    given = fit([start(n, stated(n, 17), memory=None) for n in (4_096, 8_192, 16_384)], MEMORY)
    found = given.named("bytes_per_token_of_restarts")
    assert found is not None
    assert found.value == pytest.approx(256, rel=0.01)


def test_too_few_lengths_other_memories_and_no_fit_are_refused() -> None:
    two = [start(n, stated(n, 17)) for n in (4_096, 8_192)]
    assert "2 context lengths" in reasons(fit(two))
    assert "2 context lengths" in reasons(fit([*two, start(16_384, None)]))
    assert "2 context lengths" in reasons(fit([*two, two[0]]))
    other = [*two, start(16_384, stated(16_384, 17, blocks=2_048), memory=2 * MEMORY)]
    assert "not the same at each start" in reasons(fit(other))
    unlike = fit([*two, start(16_384, stated(16_384, 17, blocks=2_048))])
    assert "no bytes a token and bytes a session explain" in reasons(unlike)
    assert unlike.misfit is not None
    assert not unlike.estimates


@pytest.mark.parametrize("first", [False, True])
def test_one_length_with_two_figures_is_refused_in_any_order(first: bool) -> None:
    three = [start(n, stated(n, 17)) for n in (4_096, 8_192, 16_384)]
    other = start(8_192, stated(8_192, 17) // 2)
    report = fit([other, *three] if first else [*three, other])
    assert "not the same server each time" in reasons(report)
    assert not report.estimates
    assert fit([*three, three[1]]).estimates


def test_one_length_or_several_models_say_nothing_of_restarts() -> None:
    assert not reasons(fit([start(4_096, 1_000), start(4_096, 1_000)]))
    assert not reasons(fit([start(n, 1_000, model=f"m{n}") for n in (4_096, 8_192, 16_384)]))
