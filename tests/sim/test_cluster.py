from __future__ import annotations

import math

import pytest
from tests.sim.helpers import MS, ask, preset, run, submit, times_ms

from kvbench.sim.cluster import Cluster
from kvbench.sim.tokenizer import encode_ids


def test_each_replica_has_a_cache_of_its_own() -> None:
    cluster = Cluster(preset(replicas=3))
    jobs = [ask(cluster, range(100), 1000 * n) for n in range(60)]
    seen: set[int] = set()
    for job in jobs:
        assert job.cached_tokens == (96 if job.replica in seen else 0)
        seen.add(job.replica)
    assert seen == {0, 1, 2}
    again = Cluster(preset(replicas=3))
    assert [ask(again, range(100), 1000 * n).replica for n in range(60)] == [job.replica for job in jobs]


def test_random_routing_is_even() -> None:
    cluster = Cluster(preset(replicas=4))
    replicas = [ask(cluster, [n, *range(33)], 1000 * n).replica for n in range(1000)]
    for replica in range(4):
        assert replicas.count(replica) == pytest.approx(250, abs=4 * math.sqrt(1000 * 0.25 * 0.75))


def test_a_sticky_session_stays_where_it_was() -> None:
    cluster = Cluster(preset(replicas=4, routing="sticky"))
    places = set()
    for session in range(20):
        prompt = encode_ids(range(session * 10_000, session * 10_000 + 200))
        replicas = set()
        for turn in range(5):
            job = ask(cluster, prompt, 100_000 * session + 1000 * turn)
            # 200 tokens, then 100 more a turn: all full blocks of the turn before are hit.
            assert job.cached_tokens == (200 + 100 * (turn - 1)) // 32 * 32 * bool(turn)
            replicas.add(job.replica)
            prompt += encode_ids(range(session * 10_000 + 1000 * turn, session * 10_000 + 1000 * turn + 100))
        assert len(replicas) == 1
        places |= replicas
    assert places == {0, 1, 2, 3}


def test_a_prompt_mostly_new_is_routed_anew() -> None:
    cluster = Cluster(preset(replicas=4, routing="sticky"))
    first = ask(cluster, range(320), 0)
    # Ten blocks: four in common are less than half.
    others = {ask(cluster, [*range(128), *range(n * 1000, n * 1000 + 192)], 1000 * n).replica for n in range(1, 40)}
    assert others == {0, 1, 2, 3}
    assert ask(cluster, [*range(160), *range(90_000, 90_160)], 90_000).replica == first.replica


def test_replicas_work_beside_each_other() -> None:
    cluster = Cluster(preset(replicas=2))
    jobs = [submit(cluster, range(n * 1000, n * 1000 + 100), output=3) for n in range(8)]
    tokens = run(cluster)
    assert [token.at_ns for token in tokens] == sorted(token.at_ns for token in tokens)
    for replica in (0, 1):
        mine = [job for job in jobs if job.replica == replica]
        assert 0 < len(mine) < 8
        # All fit one step: 1 + n * 20 ms; then steps of 5 + n ms.
        start, step = 1 + 20 * len(mine), 5 + len(mine)
        for job in mine:
            assert times_ms(tokens, job) == [start, start + step, start + 2 * step]


def test_one_running_request_refuses_the_reset_of_all() -> None:
    cluster = Cluster(preset(replicas=2))
    job = submit(cluster, range(100), output=50)
    run(cluster, 30)
    assert not cluster.reset_cache()
    cluster.abort(job, 31 * MS)
    assert cluster.reset_cache()
    assert all(engine.pool.free == engine.pool.capacity for engine in cluster.engines)
