"""Claimed, architectural, allocated and measured figures beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.analysis.fit.capacity_runs import Blocks, probe

from kvbench.analysis.fit.fit import fit_runs
from kvbench.analysis.fit.sides import side_by_side
from kvbench.errors import InputError, UsageError
from kvbench.model import FitReport
from kvbench.render.fittext import fit_lines
from kvbench.runs.reader import Run

BLOCKS = 4_000


def measured(per_token: float, size: int, *, memory: bool = True, server: dict[str, Any] | None = None) -> Run:
    """A probe of a pool whose blocks of `size` tokens take `per_token` bytes each."""
    run = probe(Blocks(BLOCKS, size).serve, memory=round(BLOCKS * size * per_token) if memory else None)
    return msgspec.structs.replace(run, info=msgspec.structs.replace(run.info, server=server or {"model": "m"}))


def sides(run: Run, model: str) -> tuple[dict[str, Any], FitReport]:
    report = fit_runs([run])
    return side_by_side(report, [run], model), report


def test_what_vllm_allocates_explains_what_the_architecture_does_not() -> None:
    """V4-Flash: 3,514.25 by its layers, 3,915 by vLLM's pages of 256 tokens (1,002,240 / 256)."""
    found, report = sides(measured(3_915, 256), "deepseek-v4-flash")
    assert found["claimed"]["bytes_per_token"] == 3_514
    assert found["architecture"]["bytes_per_token"] == 3_514.25
    (one,) = [m for m in found["measured"] if m["name"] == "bytes_per_token"]
    assert one["within"] == ["vLLM, fp8_ds_mla, block 256"]
    assert one["off"]["architecture"] == pytest.approx(3_915 / 3_514.25 - 1, abs=1e-3)
    assert set(one["off"]) == {"architecture", "claimed"}
    text = "\n".join(fit_lines(msgspec.structs.replace(report, side_by_side=found)))
    assert "agrees with vLLM, fp8_ds_mla, block 256; differs from architecture (+11.4%), claimed (+11.4%)" in text
    # each figure on a line of its own
    for figure in ("3,514  ", "3,514.25  ", "3,915  "):
        assert sum(line.startswith("  ") and figure in line for line in text.splitlines()) == 1


@pytest.mark.parametrize(
    ("per_token", "within"),
    [
        (900, ["vLLM, SM100: nvfp4, block 128"]),
        (890, ["architecture", "claimed", "vLLM, SM100: nvfp4, block 128, pages not padded"]),
        (1_800, ["vLLM, Hopper: fp8_ds_mla, block 128"]),
        (1_162, []),
    ],
)
def test_the_layout_of_v41_is_named_or_none(per_token: int, within: list[str]) -> None:
    found, _ = sides(measured(per_token, 128), "deepseek-v4.1-flash")
    assert found["measured"][0]["within"] == within


def test_without_a_memory_nothing_is_measured_in_bytes() -> None:
    found, report = sides(measured(890, 128, memory=False), "deepseek-v4.1-flash")
    assert found["measured"] == []
    assert report.estimates
    assert "no bytes were measured" in "\n".join(fit_lines(msgspec.structs.replace(report, side_by_side=found)))


def test_the_cache_dtype_that_the_server_states_is_compared() -> None:
    """Llama 3 8B: 131,072 in bf16, half of it in fp8."""
    server = {"model": "m", "cache": {"cache_dtype": "fp8_e4m3"}}
    found, _ = sides(measured(65_536, 16, server=server), "llama-3-8b")
    assert found["cache_dtype"] == "fp8"
    assert "architecture" in found["measured"][0]["within"]


@pytest.mark.parametrize(
    ("stated", "model", "said"),
    [
        ("int8_per_token_head", "llama-3-8b", ["the server states a cache of int8_per_token_head: "]),
        ("float32", "deepseek-v4.1-flash", ["the server states a cache of float32: "]),
        ("fp8_e4m3", "llama-3-8b", []),
        ("auto", "llama-3-8b", []),
        (None, "llama-3-8b", []),
    ],
)
def test_figures_of_another_dtype_than_the_server_states_say_so(
    stated: str | None, model: str, said: list[str]
) -> None:
    run = measured(131_072, 16, server={"model": "m", "cache": {"cache_dtype": stated}})
    found, report = sides(run, model)
    remarks = [text for text in found["assumed"] if text.startswith("the server states a cache of")]
    assert [text.startswith(begin) for text, begin in zip(remarks, said, strict=True)] == [True] * len(said)
    text = "\n".join(fit_lines(msgspec.structs.replace(report, side_by_side=found)))
    assert ("the server states a cache of" in text) is bool(said)


def test_several_models_and_unknown_ones_are_errors() -> None:
    run = measured(890, 128)
    other = msgspec.structs.replace(run, info=msgspec.structs.replace(run.info, server={"model": "n"}), path=Path("n"))
    with pytest.raises(UsageError, match="one model, and the runs are of m, n"):
        side_by_side(fit_runs([run, other]), [run, other], "llama-3-8b")
    with pytest.raises(InputError, match="no model of that name"):
        side_by_side(fit_runs([run]), [run], "no-such-model")
