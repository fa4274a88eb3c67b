"""Bytes of one model over another's, from probes of caches whose blocks are the test's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.analysis.fit.capacity_runs import Blocks, Sessions, probe

from kvbench.analysis.fit.fit import fit_runs
from kvbench.model import FitReport
from kvbench.runs.reader import Run


def of(model: str, run: Run, **settings: Any) -> Run:
    info = msgspec.structs.replace(run.info, server={"model": model}, settings={**run.info.settings, **settings})
    return msgspec.structs.replace(run, info=info, path=Path(model))


def pool(model: str, blocks: int, size: int = 32, **settings: Any) -> Run:
    return of(model, probe(Blocks(blocks, size).serve), **settings)


def refusal(report: FitReport) -> str | None:
    return next((r.reason for r in report.refusals if r.name == "bytes_per_token_ratio"), None)


def test_the_memory_cancels() -> None:
    """A quarter of the blocks of the same size hold a quarter of the tokens, so a token takes four times as much."""
    report = fit_runs([pool("small", 2_000), pool("large", 500)])
    ratio = report.named("bytes_per_token_ratio")
    assert ratio is not None
    assert ratio.value == pytest.approx(0.25, rel=0.01)
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low <= 0.25 <= ratio.high
    assert ratio.high - ratio.low < 0.005
    assert "small over large" in ratio.method
    assert any("had the same memory for the KV cache, which then cancels" in text for text in report.assumed)
    assert not any(e.name == "bytes_per_token" for e in report.estimates)


def test_models_whose_hits_are_whole_are_compared_by_their_share() -> None:
    """512 bytes a token and a window of 65,536 bytes, against 1,024 and 131,072, in 16 MiB each."""
    sides = []
    for model, per_token, per_session in (("a", 512, 65_536), ("b", 1_024, 131_072)):
        serve = Sessions(16 << 20, per_token, per_session, 32).serve
        sides.append(of(model, probe(serve, lengths=(401, 801, 1601, 3201), budget=600)))
    ratio = fit_runs(sides).named("bytes_per_token_ratio")
    assert ratio is not None
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low <= 0.5 <= ratio.high


def test_the_interval_is_of_both() -> None:
    first, second = pool("small", 2_000), pool("large", 500)
    report = fit_runs([first, second])
    ends = [e for e in report.estimates if e.name == "capacity_tokens"]
    ratio = report.named("bytes_per_token_ratio")
    assert ratio is not None
    a, b = ends
    assert a.low is not None
    assert a.high is not None
    assert b.low is not None
    assert b.high is not None
    assert ratio.low == pytest.approx(b.low / a.high)
    assert ratio.high == pytest.approx(b.high / a.low)


def test_without_two_capacities_or_with_two_memories_it_is_refused() -> None:
    nothing = of("large", probe(lambda name, tokens: 0))
    assert refusal(fit_runs([pool("small", 600), nothing])) == "no run of large gives a capacity"
    memories = [pool("small", 600, kv_memory_bytes=1 << 20), pool("large", 300, kv_memory_bytes=1 << 21)]
    assert "the memories differ" in (refusal(fit_runs(memories)) or "")


def test_one_model_or_three_have_no_ratio() -> None:
    same = fit_runs([pool("m", 600), pool("m", 300)])
    three = fit_runs([pool(name, 600) for name in ("a", "b", "c")])
    for report in (same, three):
        assert report.named("bytes_per_token_ratio") is None
        assert refusal(report) is None


def test_pools_of_two_models_are_no_two_pools_of_one() -> None:
    report = fit_runs([pool("a", 600, kv_memory_bytes=1 << 20), pool("b", 300, kv_memory_bytes=1 << 21)])
    assert report.named("bytes_per_token_of_two_pools") is None


@pytest.mark.parametrize("turned", [False, True])
def test_of_several_pools_only_those_of_the_same_memory_are_compared(turned: bool) -> None:
    """500 blocks of a and 125 of b in 256 KiB: a quarter, whichever pool of a is named first."""
    pools = [pool("a", 2_000, kv_memory_bytes=1 << 20), pool("a", 500, kv_memory_bytes=1 << 18)]
    runs = [*(reversed(pools) if turned else pools), pool("b", 125, kv_memory_bytes=1 << 18)]
    ratio = fit_runs(runs).named("bytes_per_token_ratio")
    assert ratio is not None
    assert ratio.value == pytest.approx(0.25, rel=0.05)
    assert any("262,144 bytes" in text for text in fit_runs(runs).assumed)


@pytest.mark.parametrize("turned", [False, True])
def test_pools_that_contradict_each_other_are_refused(turned: bool) -> None:
    """With no memory known, 2,000 and 500 blocks of a make it a quarter of b, or as much."""
    pools = [pool("a", 2_000), pool("a", 500)]
    report = fit_runs([*(reversed(pools) if turned else pools), pool("b", 500)])
    assert report.named("bytes_per_token_ratio") is None
    assert "cannot all be true" in (refusal(report) or "")


def test_a_server_that_names_no_model_is_one_of_the_two() -> None:
    unnamed = pool("x", 500)
    unnamed = msgspec.structs.replace(unnamed, info=msgspec.structs.replace(unnamed.info, server={}))
    ratio = fit_runs([pool("small", 2_000), unnamed]).named("bytes_per_token_ratio")
    assert ratio is not None
    assert ratio.value == pytest.approx(0.25, rel=0.01)
