"""One case: a simulated endpoint whose truth is known, probed or replayed over HTTP by what the commands call."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvbench.cli.endpoint import in_event_loop
from kvbench.endpoints.profile import EndpointProfile, ExpectedHitsRule
from kvbench.prices.pricing import PriceList
from kvbench.replay.probes.capacity import CapacityDesign, CapacityProbe
from kvbench.replay.probes.granularity import GranularityProbe
from kvbench.replay.probes.probe import Experiment, run_probe
from kvbench.replay.probes.prober import Budget, ProbePlan
from kvbench.replay.probes.ttl import TtlDesign, TtlProbe
from kvbench.replay.run import Plan, replay
from kvbench.replay.settings import RunSettings
from kvbench.sim.process import SimProcess
from kvbench.traces.native import open_trace

BLOCK = 32
BYTES_PER_TOKEN = 512
QUICK: dict[str, Any] = {
    "frontend_s": 0,
    "prefill_base_s": 0.0005,
    "prefill_s_per_token": 1e-7,
    "attention_s_per_token2": 0,
    "decode_base_s": 0.0005,
    "tells_metrics": False,
}
"""Short times, and a server that tells nothing of itself but in usage: the gates have the hits alone to go by."""


class Silent:
    """A replay that nobody watches."""

    def start(self) -> None: ...
    def record(self, record: object) -> None: ...
    def tick(self, in_flight: int, lag_s: float, sessions_done: int) -> None: ...
    def say(self, text: str) -> None: ...
    def stop(self) -> None: ...


def memory_of(blocks: int) -> int:
    """Bytes of a pool, one of whose blocks is the null block."""
    return (blocks - 1) * BLOCK * BYTES_PER_TOKEN


def tokens_of(blocks: int) -> int:
    return (blocks - 1) * BLOCK


def probed(
    out: Path,
    name: str,
    experiment: Experiment,
    settings: Mapping[str, Any],
    said: Mapping[str, Any] | None = None,
    *,
    requests: int = 250,
) -> Path:
    """The run of one probe. said: the probe's own options, as the command writes them down."""
    with SimProcess.start("tiny", settings={**QUICK, **settings}) as sim:
        plan = ProbePlan(
            name=name,
            profile=_profile(sim.url),
            budget=Budget(requests=requests, hours=1.0),
            settings=said or {},
            out_dir=out,
            confirm=lambda text: True,
            say=lambda text: None,
            prices=PriceList([]),
        )
        return in_event_loop(run_probe(plan, experiment))


def capacity(out: Path, settings: Mapping[str, Any]) -> Path:
    design = CapacityDesign(kv_memory_bytes=memory_of(settings["num_blocks"]))
    said = {"kv_memory_bytes": design.kv_memory_bytes, "input_tokens": []}
    return probed(out, "capacity", CapacityProbe(design).probe, settings, said)


def granularity(out: Path, settings: Mapping[str, Any]) -> Path:
    return probed(out, "granularity", GranularityProbe().probe, settings, requests=100)


def ttl(out: Path, settings: Mapping[str, Any], design: TtlDesign) -> Path:
    return probed(out, "ttl", TtlProbe(design).probe, settings, requests=100)


def replayed(out: Path, settings: Mapping[str, Any], rng: random.Random, *, in_flight: int = 1) -> Path:
    """The run of a trace of agents' sessions, `in_flight` requests at a time at most."""
    out.mkdir(parents=True, exist_ok=True)
    trace = out / "pressure.jsonl"
    write_trace(trace, rng)
    with SimProcess.start("tiny", time_scale=0.1, settings={**QUICK, **settings}) as sim, open_trace(trace) as opened:
        run = RunSettings(time_scale=0.1, sessions=24, max_in_flight=in_flight).check()
        plan = Plan(trace=opened, profile=_profile(sim.url), settings=run, out_dir=out)
        return in_event_loop(replay(plan, Silent()))


def write_trace(path: Path, rng: random.Random) -> None:
    """80 sessions of 3 to 9 turns that begin alike and grow by 32 to 400 tokens a turn; pauses of 0.3 s in the median,
    one in ten above 1.2 s."""
    lines: list[dict[str, Any]] = [{"kvbench_trace": 1, "name": "pressure", "block_size": 16}]
    shared, fresh = list(range(1, 20)), 100
    for number in range(80):
        length = len(shared)
        for turn in range(rng.randint(3, 9)):
            keep, added = (length - 1, rng.randint(2, 25)) if turn else (0, rng.randint(5, 60))
            ids = ([] if turn else shared) + list(range(fresh, fresh + added))
            fresh += added
            length = keep + len(ids)
            line = {"session_id": f"s{number}", "turn": turn, "input_tokens": length * 16 - rng.randint(0, 15)}
            line |= {"output_tokens": 2, "hash_ids": ids}
            lines.append(
                line
                | (
                    {"keep_blocks": keep, "delay_s": min(4.0, rng.lognormvariate(-1.2, 1.1))}
                    if turn
                    else {"start_s": 0.0}
                )
            )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _profile(url: str) -> EndpointProfile:
    """Of an endpoint that does not say its block size."""
    return EndpointProfile(url=url, expected_hits=ExpectedHitsRule(rule="block", block_size=BLOCK))
