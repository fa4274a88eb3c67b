"""The Prometheus parser and vLLM's counters, on texts with numbers small enough to work out by hand."""

from __future__ import annotations

import math

import pytest

from kvbench.endpoints.metrics import Histogram, ServerMetrics, parse_prometheus

BEFORE = """
# HELP vllm:prefix_cache_queries_total Prefix cache queries, in terms of number of queried tokens.
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 1000.0
vllm:prefix_cache_queries_created{engine="0",model_name="tiny"} 1.7e+09
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 100.0
vllm:num_preemptions_total{engine="0",model_name="tiny"} 1.0
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="local_compute"} 900.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="local_cache_hit"} 100.0
vllm:cache_config_info{block_size="32",cache_dtype="auto",enable_prefix_caching="True",num_gpu_blocks="512"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="tiny"} 0.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.01",model_name="tiny"} 2.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="tiny"} 4.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="tiny"} 4.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny"} 4.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="tiny"} 0.1
"""

AFTER = (
    BEFORE.replace('queries_total{engine="0",model_name="tiny"} 1000.0', 'queries_total{engine="0"} 3000.0')
    .replace('hits_total{engine="0",model_name="tiny"} 100.0', 'hits_total{engine="0"} 1600.0')
    .replace('preemptions_total{engine="0",model_name="tiny"} 1.0', 'preemptions_total{engine="0"} 4.0')
    .replace('source="local_compute"} 900.0', 'source="local_compute"} 1400.0')
    .replace('le="0.01",model_name="tiny"} 2.0', 'le="0.01",model_name="tiny"} 3.0')
    .replace('le="0.1",model_name="tiny"} 4.0', 'le="0.1",model_name="tiny"} 8.0')
    .replace('le="+Inf",model_name="tiny"} 4.0', 'le="+Inf",model_name="tiny"} 8.0')
    .replace('seconds_count{engine="0",model_name="tiny"} 4.0', 'seconds_count{engine="0"} 8.0')
    .replace('seconds_sum{engine="0",model_name="tiny"} 0.1', 'seconds_sum{engine="0"} 0.34')
)


def test_parser_reads_escapes_numbers_and_timestamps() -> None:
    samples = parse_prometheus(
        'a{x="q\\"uote",y="back\\\\slash",z="new\\nline",w="{a=b},"} 1.5 1700000000000\n'
        'b NaN\nc +Inf\nd{} -2e3\r\n# a comment {\n\ne{a="1",} 7\nf{ } 8\ng{ a = "2" , b="" } 9\n'
    )
    assert samples["a"][0].labels == {"x": 'q"uote', "y": "back\\slash", "z": "new\nline", "w": "{a=b},"}
    assert samples["a"][0].value == 1.5
    assert math.isnan(samples["b"][0].value)
    assert samples["c"][0].value == math.inf
    assert samples["d"][0] == ({}, -2000.0)
    assert samples["e"][0] == ({"a": "1"}, 7.0)
    assert samples["f"][0] == ({}, 8.0)
    assert samples["g"][0] == ({"a": "2", "b": ""}, 9.0)


@pytest.mark.parametrize("text", ["<!doctype html>", "a 1x", "a{x=1} 2", "a", "a b c d", 'a{x="1" 2', 'a{x="1"}'])
def test_parser_refuses_what_is_no_such_text(text: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        parse_prometheus("ok 1\n" + text)


def test_snapshot() -> None:
    metrics = ServerMetrics.from_text(BEFORE)
    assert metrics.prefix_query_tokens == 1000
    assert metrics.prefix_hit_tokens == 100
    assert metrics.preemptions == 1
    assert (metrics.running, metrics.waiting, metrics.kv_usage) == (3, 2, 0.25)
    assert metrics.prompt_tokens_by_source == {"local_compute": 900, "local_cache_hit": 100}
    assert metrics.prompt_tokens is None  # the series is not there
    assert metrics.cache is not None
    assert metrics.cache.block_size == 32
    assert metrics.cache.capacity_tokens == 511 * 32  # one block is the null block
    assert metrics.cache.prefix_caching is True


def test_a_server_without_these_series_reports_nothing() -> None:
    metrics = ServerMetrics.from_text("llamacpp:prompt_tokens_total 5\n")
    assert metrics == ServerMetrics()
    assert metrics.prefix_hit_tokens is None


def test_delta() -> None:
    change = ServerMetrics.from_text(AFTER).delta(ServerMetrics.from_text(BEFORE))
    assert change.prefix_query_tokens == 2000
    assert change.prefix_hit_tokens == 1500
    assert change.preemptions == 3
    assert change.running == 3
    assert change.prompt_tokens is None
    assert change.prompt_tokens_by_source == {"local_compute": 500, "local_cache_hit": 0}
    ttft = change.histograms["ttft_s"]
    # 4 new observations: 1 in (0.001, 0.01], 3 in (0.01, 0.1]; their sum 0.24
    assert ttft.count == 4
    assert ttft.counts == [0, 1, 4]
    assert ttft.mean == pytest.approx(0.06)
    # rank 2 is 1 of 3 into (0.01, 0.1]: 0.01 + 0.09 / 3
    assert ttft.quantile(0.5) == pytest.approx(0.04)
    # rank 0.5 of 1 into (0.001, 0.01]
    assert ttft.quantile(0.125) == pytest.approx(0.0055)
    assert not change.restarted


def test_delta_over_a_restart_is_unknown() -> None:
    change = ServerMetrics.from_text(BEFORE).delta(ServerMetrics.from_text(AFTER))
    assert change.restarted
    assert change.prefix_hit_tokens is None
    assert change.histograms == {}
    counter = 'vllm:prefix_cache_hits_total{engine="0"} '
    alone = ServerMetrics.from_text(counter + "5\n").delta(ServerMetrics.from_text(counter + "6\n"))
    assert alone.restarted
    assert alone.prefix_hit_tokens is None


def test_quantile_above_the_last_bound_and_without_observations() -> None:
    assert Histogram([1.0, 2.0], [0, 1], 10, 50.0).quantile(0.9) == 2.0
    assert Histogram([1.0, 2.0, 4.0], [1, 4, 4], 4, 5.0).quantile(1.0) == 2.0
    empty = Histogram([1.0], [0], 0, 0.0)
    assert empty.quantile(0.5) is None
    assert empty.mean is None


def test_several_servers_and_engines_are_summed() -> None:
    one = ServerMetrics.from_text(BEFORE)
    both = ServerMetrics.total([one, ServerMetrics.from_text(AFTER)])
    assert both.prefix_query_tokens == 4000
    assert both.running == 6
    assert both.prompt_tokens_by_source == {"local_compute": 2300, "local_cache_hit": 200}
    assert both.histograms["ttft_s"].counts == [0, 5, 12]
    assert both.cache is not None
    assert both.cache.capacity_tokens == 2 * 511 * 32
    assert both.cache.block_size == 32
    # a part is no total
    assert ServerMetrics.total([one, ServerMetrics()]).prefix_query_tokens is None
    assert ServerMetrics.total([one, ServerMetrics()]).histograms == {}
    two_engines = BEFORE + BEFORE.replace('engine="0"', 'engine="1"')
    assert ServerMetrics.from_text(two_engines).prefix_query_tokens == 2000
    assert ServerMetrics.from_text(two_engines).histograms["ttft_s"].counts == [0, 4, 8]


def test_unset_pool_size() -> None:
    text = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0\n'
    cache = ServerMetrics.from_text(text).cache
    assert cache is not None
    assert cache.block_size == 16
    assert cache.capacity_tokens is None


def test_round_trip_through_events() -> None:
    metrics = ServerMetrics.from_text(AFTER)
    assert ServerMetrics.from_dict(metrics.to_dict()) == metrics
