"""The planner's arithmetic; most worked cases are the functions' own examples, which are run here."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from decimal import Decimal

import pytest

from kvbench.analysis import plan
from kvbench.analysis.models import bytes_model
from kvbench.analysis.plan import KvMemory, Load, Rates
from kvbench.errors import UsageError

K3 = Rates(miss=Decimal("3.00"), hit=Decimal("0.30"), output=Decimal("15.00"))
V41_PEAK = Rates(miss=Decimal("0.30"), hit=Decimal("0.006"), output=Decimal("1.20"))
WORK = Load(computed_tokens=2_000, output_tokens=500)


def test_the_examples_of_the_functions() -> None:
    found = doctest.testmod(plan)
    assert found.attempted >= 14
    assert found.failed == 0


def test_k3_without_its_state_would_fit_more_often() -> None:
    """40e9 / (13,824 x 131,072) is 22.07; with 449,372,160 B of state a session it is 17.7."""
    model = bytes_model("kimi-k3")
    assert int(40e9 // float(model.bytes_per_token * 131_072)) == 22
    assert plan.sessions_per_rank(40 * 10**9, model, 131_072) == 17


@pytest.mark.parametrize(
    ("shared", "sessions"),
    [
        (0, 10),
        # 1,000 tokens held once leave 9,000 of 10,000 tokens of memory: 9 x 1,000 and a rest
        (500, 19),
        (900, 91),
    ],
)
def test_a_shared_prefix_is_held_once(shared: int, sessions: int) -> None:
    model = bytes_model("llama-3-8b")
    assert (10_000 - shared) // (1_000 - shared) == sessions
    assert plan.sessions_per_rank(131_072 * 10_000, model, 1_000, shared) == sessions


def test_a_prefix_larger_than_the_memory_fits_no_session() -> None:
    assert plan.sessions_per_rank(131_072 * 100, bytes_model("llama-3-8b"), 1_000, 500) == 0


def test_ranks_share_the_heads() -> None:
    model = bytes_model("llama-3-8b")
    assert plan.sessions_per_rank(40 * 10**9, model.per_rank(8), 8_192) == int(40e9 // (131_072 // 8 * 8_192))


def test_a_measured_run() -> None:
    """16K in, 256 out, nothing cached, prefill alone at 18,700 tokens/s: 1.142 requests/s were measured."""
    load = Load(computed_tokens=16_384, output_tokens=256)
    assert round(plan.requests_per_s_disaggregated(load, 18_700, 1e9), 3) == 1.141


@pytest.mark.parametrize("rate", [plan.requests_per_s_colocated, plan.requests_per_s_disaggregated])
def test_no_more_requests_than_the_sessions_start(rate: Callable[[Load, float, float], float]) -> None:
    few = Load(computed_tokens=2_000, output_tokens=500, sessions=30, residence_s=10.0)
    assert rate(few, 18_700, 5_000) == 3.0
    many = Load(computed_tokens=2_000, output_tokens=500, sessions=3_000, residence_s=10.0)
    assert rate(many, 18_700, 5_000) == rate(WORK, 18_700, 5_000) > 3.0


def test_money() -> None:
    assert round(plan.task_cost(V41_PEAK, 1_200_000, 15_000, Decimal("0.96")), 3) == Decimal("0.039")
    assert plan.task_cost(K3, 0, 0, Decimal(0)) == 0
    assert plan.hit_rate_for(Decimal("3.00"), K3) == 0
    assert plan.hit_rate_for(Decimal("0.30"), K3) == 1


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: plan.sessions_per_rank(-1, bytes_model("llama-3-8b"), 10), "kv_bytes -1 is not allowed"),
        (lambda: plan.sessions_per_rank(1, bytes_model("llama-3-8b"), 0), "tokens 0 is not allowed"),
        (lambda: plan.sessions_per_rank(1, bytes_model("llama-3-8b"), 10, 11), "shared_tokens 11 is not allowed"),
        (lambda: plan.sessions_per_rank(10**9, bytes_model("llama-3-8b"), 10, 10), "no memory of their own"),
        (lambda: KvMemory(hbm=10, weights=9, activations=1, reserve=0).kv, "no memory is left for KV"),
        (lambda: plan.computed_tokens(1, 1.5), "window_lost 1.5 is not allowed"),
        (lambda: plan.requests_per_s_colocated(WORK, 0, 5_000), "prefill_tokens_per_s 0 is not allowed"),
        (lambda: plan.requests_per_s_colocated(WORK, float("nan"), 5_000), "prefill_tokens_per_s nan is not allowed"),
        (
            lambda: plan.requests_per_s_disaggregated(Load(computed_tokens=0, output_tokens=0), 1, 1),
            "a request without work has no rate",
        ),
        (lambda: plan.restore_s(bytes_model("llama-3-8b"), 10, 0), "bytes_per_s 0 is not allowed"),
        (lambda: plan.task_cost(K3, 1, 1, Decimal("1.1")), "hit_rate 1.1 is not allowed"),
        (lambda: plan.hit_rate_for(Decimal("3.01"), K3), "price 3.01 is not reached"),
        (
            lambda: plan.hit_rate_for(Decimal(1), Rates(miss=Decimal(1), hit=Decimal(1), output=Decimal(1))),
            "is not cheaper than a miss",
        ),
    ],
)
def test_values_that_cannot_be(call: Callable[[], object], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        call()
    assert says in caught.value.message
