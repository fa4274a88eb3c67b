"""What the simulated DeepSeek API says and charges where it is wrong, and the truth of it."""

from __future__ import annotations

from tests.sim.test_deepseek import OFF, ask, simulated, stream, text, truth, user


def test_the_truth_has_price_charge_and_faults() -> None:
    prices = {"price_hit_per_mtok": 1000, "price_miss_per_mtok": 10_000, "price_output_per_mtok": 100_000}
    faults = {"fault_hits_as_misses": 1, "fault_output_overcount": 1, "overcount_share": 0.25}
    with simulated(**prices, **faults, granted_balance=0, topped_up_balance=100) as client:
        for streaming in (False, True):
            body = {"model": "deepseek-flash", "messages": [user(text("bill", 193))], "max_tokens": 10, "thinking": OFF}
            assert client.post("/chat/completions", json={**body, "stream": streaming}).status_code == 200
        first, second = truth(client)
        # 200 tokens of input, 128 of them hit the second time; 10 of output, of which usage and charge make 13.
        assert (first["price"], first["charged"]) == ("3", "3.3")
        assert (second["price"], second["charged"]) == ("1.848", "3.3")
        assert first["billing_faults"] == ["output_overcount"]  # it had no hit to be charged as a miss
        assert second["billing_faults"] == ["hits_as_misses", "output_overcount"]
        assert (second["peak"], second["output_tokens"], second["reported_tokens"]) == (False, 10, 128)
        assert client.get("/user/balance").json()["balance_infos"][0]["total_balance"] == "93.40"
        usage = ask(client, user(text("bill", 193)), max_tokens=10)["usage"]
        assert (usage["completion_tokens"], usage["prompt_cache_hit_tokens"]) == (13, 128)


def test_where_nothing_has_a_price_nothing_is_charged() -> None:
    free = {"price_hit_per_mtok": 0, "price_miss_per_mtok": 0, "price_output_per_mtok": 0}
    with simulated(**free) as client:
        ask(client, user("free"))
        [row] = truth(client)
    assert (row["price"], row["charged"], row["peak"]) == (None, None, None)


def test_hits_may_be_reported_coarser_than_they_are() -> None:
    with simulated(unit_granularity_tokens=64, reported_granularity_tokens=256) as client:
        for _ in range(2):
            usage = ask(client, user(text("gran", 321)))["usage"]
        row = truth(client)[1]
    # 328 tokens: a unit of 320; 256 of it is what is said.
    assert (usage["prompt_cache_hit_tokens"], usage["prompt_tokens_details"]["cached_tokens"]) == (256, 256)
    assert usage["prompt_cache_miss_tokens"] == 328 - 256
    assert (row["cached_tokens"], row["reported_tokens"], row["hits"]) == (320, 256, {"units": 320})


def test_drafts_across_the_end_of_thinking_are_two_deltas_of_one_step() -> None:
    with simulated(speculative_tokens=7, speculative_acceptance=1, thinking_tokens=10) as client:
        events = stream(client, user("think"), max_tokens=30, thinking={"type": "enabled"})
    texts = [
        (delta.get("reasoning_content"), delta.get("content"))
        for event in events
        for delta in [event["choices"][0]["delta"]]
        if delta.get("reasoning_content") or delta.get("content")
    ]
    # One token, then eight at a time: the step of tokens 9 to 16 has one of reasoning and seven of content.
    lengths = [(len(reasoning or "") // 4, len(content or "") // 4) for reasoning, content in texts]
    assert lengths[:4] == [(1, 0), (8, 0), (1, 0), (0, 7)]
    assert sum(reasoning for reasoning, _ in lengths) == 10
