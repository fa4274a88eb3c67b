"""The pool from the server's gauge: blocks counted by the test, and all that makes the gauge say nothing."""

from __future__ import annotations

from array import array
from pathlib import Path

import msgspec
import pytest
from tests.analysis.fit.gauge_runs import BLOCK, BLOCKS, MEMORY, Sent, blocks_held, cells, gauge_run, record

from kvbench.analysis.fit.fit import fit_run
from kvbench.analysis.fit.gauge import fit_gauge
from kvbench.analysis.fit.residents import observed
from kvbench.model import FitReport, Usage
from kvbench.runs.blocks import BLOCKS_FILE, BlockChains


def by_blocks(there: list[int], beside: int = 0) -> float:
    return sum(blocks_held(tokens, beside) for tokens in there) / BLOCKS


def refused(report: FitReport) -> str:
    assert not report.estimates
    return report.refusals[0].reason


def test_capacity_and_both_kinds_of_bytes_are_covered() -> None:
    """16,000 tokens, 512 B each, and 3 blocks of 16,384 B a request, less half a token by which half a block of
    rounding is too much: intervals of 90% hold them in at least 34 of 40 made runs (of 200 made runs, 91%)."""
    inside = {"capacity_tokens_of_gauge": 0, "bytes_per_token_of_gauge": 0, "bytes_per_session_of_gauge": 0}
    truth = {
        "capacity_tokens_of_gauge": BLOCKS * BLOCK,
        "bytes_per_token_of_gauge": 512,
        "bytes_per_session_of_gauge": 3 * 16_384 - 256,
    }
    for seed in range(40):
        report = fit_run(gauge_run(cells(seed), lambda there: by_blocks(there, 3)))
        for name in inside:
            found = report.named(name)
            assert found is not None
            assert found.low is not None
            assert found.high is not None
            inside[name] += found.low <= truth[name] <= found.high
            if name == "capacity_tokens_of_gauge":
                assert found.value == pytest.approx(truth[name], rel=0.03)
    assert min(inside.values()) >= 34, inside


def test_without_rounding_the_line_is_found_exactly() -> None:
    report = fit_run(gauge_run(cells(1), lambda there: 0.02 + sum(0.004 + n / 20_000 for n in there)))
    capacity, session = report.named("capacity_tokens_of_gauge"), report.named("bytes_per_session_of_gauge")
    assert capacity is not None
    assert session is not None
    assert capacity.value == pytest.approx(20_000, rel=1e-3)
    assert session.value == pytest.approx(0.004 * MEMORY, rel=0.02)
    assert any("2.0% of the pool is held where nothing runs" in note for note in report.notes)


@pytest.mark.parametrize("given", [None, 12_345_678])
def test_memory_is_what_was_given_else_what_the_server_states(given: int | None) -> None:
    server = {"cache": {"stated_bytes": MEMORY, "block_size": 999, "num_gpu_blocks": 999, "stated_tokens": 999}}
    report = fit_run(
        gauge_run(cells(1), by_blocks, settings={"probe": "occupancy"}, server=server), kv_memory_bytes=given
    )
    per_token, capacity = report.named("bytes_per_token_of_gauge"), report.named("capacity_tokens_of_gauge")
    assert per_token is not None
    assert capacity is not None
    assert capacity.value is not None
    assert per_token.value == pytest.approx((given or MEMORY) / capacity.value)
    assert any("as the server states it" in text for text in report.assumed) == (given is None)
    # labels that are plainly wrong change nothing and are told apart
    assert any("claimed by the server, and not used: block_size 999" in note for note in report.notes)
    assert capacity.value == pytest.approx(BLOCKS * BLOCK, rel=0.03)


def test_without_a_memory_there_are_no_bytes() -> None:
    report = fit_run(gauge_run(cells(1), by_blocks, settings={"probe": "occupancy"}))
    assert [e.name for e in report.estimates] == ["capacity_tokens_of_gauge"]
    assert [r.name for r in report.refusals] == ["bytes_per_token_of_gauge", "bytes_per_session_of_gauge"]


def test_what_disturbs_is_left_out_or_refused() -> None:
    preempted = gauge_run(cells(1), by_blocks, preemptions=lambda at_s: int(at_s > 10))
    assert observed(preempted, shared=False).left_out["requests waited or were preempted"] == 2
    assert fit_run(preempted).named("capacity_tokens_of_gauge") is not None
    waited = gauge_run(cells(1), by_blocks, waiting=lambda at_s: 1)
    assert "requests waited" in refused(fit_run(waited))
    others = gauge_run(cells(1), by_blocks, running=lambda at_s, n: n + (int(at_s) % 4 == 0))
    assert "others used the endpoint" in refused(fit_run(others))


def test_a_line_that_the_run_cannot_tell_is_refused() -> None:
    one_length = [Sent(3.0 * i, 3 * i + 0.2, 3 * i + 2, 1000, 2) for i in range(14) for _ in range(1 + i % 3)]
    assert "went together" in refused(fit_run(gauge_run(one_length, by_blocks)))
    assert "never changed" in refused(fit_run(gauge_run(cells(1), lambda there: 0.0)))
    assert "too few" in refused(fit_run(gauge_run(cells(1, count=5), by_blocks)))
    noisy = gauge_run(cells(1), lambda there: by_blocks(there) * (1 + 0.9 * ((sum(there) * 7919 % 13) / 13 - 0.5)))
    assert not fit_run(noisy).estimates


def test_always_as_many_requests_leave_out_what_one_takes() -> None:
    alone = [Sent(3.0 * i, 3 * i + 0.2, 3 * i + 2.9, 300 + 170 * i, 40) for i in range(14)]
    run = gauge_run(alone, lambda there: by_blocks(there, 3))
    run = msgspec.structs.replace(run, events=[e for e in run.events if e["running"] > 0])
    report = fit_run(run)
    capacity = report.named("capacity_tokens_of_gauge")
    assert capacity is not None
    assert capacity.value == pytest.approx(BLOCKS * BLOCK, rel=0.03)
    assert [r.name for r in report.refusals] == ["bytes_per_session_of_gauge"]


def test_a_window_within_the_lengths_is_refused() -> None:
    """Below 1,024 tokens all layers grow, above it one in six does: as Gemma 3."""
    run = gauge_run(cells(1, count=20), lambda there: sum(n + 5 * min(n, 1024) for n in there) / 60_000)
    report = fit_run(run)
    assert not report.estimates
    assert report.misfit is not None
    assert report.misfit.causes
    # all prompts above the window: the slope is what grows
    above = gauge_run(cells(1, lengths=(1100, 4000)), lambda there: sum(n + 5 * min(n, 1024) for n in there) / 60_000)
    capacity = fit_run(above).named("capacity_tokens_of_gauge")
    assert capacity is not None
    assert capacity.value == pytest.approx(60_000, rel=1e-3)


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ({"metrics_urls": ["http://a/metrics", "http://b/metrics"]}, "several engines"),
        ({"cache": {"engines": 2}}, "several engines"),
    ],
)
def test_several_engines_are_refused(server: dict[str, object], why: str) -> None:
    assert why in refused(fit_run(gauge_run(cells(1), by_blocks, server=server)))


def test_no_gauge_and_a_failed_request_are_refused() -> None:
    run = gauge_run(cells(1), by_blocks)
    assert "no kv_cache_usage_perc" in refused(fit_run(msgspec.structs.replace(run, events=[])))
    failed = msgspec.structs.replace(run.records[3], error_class="reset", error_message="closed")
    assert "failed" in refused(fit_run(msgspec.structs.replace(run, records=[*run.records[:3], failed])))


def test_a_prefix_that_several_hold_is_held_once(tmp_path: Path) -> None:
    """Two requests share 20 blocks that were in the cache before either, and a third found 10 of its blocks where the
    second computes them: 640 + (1000 - 640) + (1500 - 640) + (960 + 700 - 960) tokens, and what they generated."""
    shared = list(range(20 * BLOCK))
    prompts = [
        shared + [10_000 + i for i in range(360)],
        shared + [20_000 + i for i in range(860)],
        shared + [20_000 + i for i in range(320)] + [30_000 + i for i in range(700)],
    ]
    cached = [640, 640, 960]
    sent = [Sent(0.01 * i, 0.3, 3.0, len(p), 10) for i, p in enumerate(prompts)]
    records = [
        record(i, s, usage=Usage(input_tokens=s.tokens, cached_tokens=hit, output_tokens=10))
        for i, (s, hit) in enumerate(zip(sent, cached, strict=True))
    ]
    chains = BlockChains(BLOCK, "run")
    rows = [
        chains.row(r.request_id, r.session_id, 0, "", array("I", p), None)
        for r, p in zip(records, prompts, strict=True)
    ]
    (tmp_path / BLOCKS_FILE).write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    run = gauge_run(sent, by_blocks, settings={}, records=records, path=tmp_path)
    held = [h for h in observed(run, shared=True).held if h.requests]
    for h in held:
        generated = h.tokens - (640 + 360 + 860 + 700)
        assert 0 < generated <= 30
    assert len(held) > 5


def test_an_ordinary_run_without_its_blocks_is_refused(tmp_path: Path) -> None:
    run = gauge_run(cells(1), by_blocks, settings={}, path=tmp_path)
    assert "which tokens the requests shared is not known" in refused(fit_gauge(run))
