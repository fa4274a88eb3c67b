"""The engine in virtual time, with times that are round: what a test needs to ask it."""

from __future__ import annotations

from collections.abc import Iterable

from kvbench.sim.cluster import Cluster
from kvbench.sim.engine import Engine
from kvbench.sim.job import Job, Token
from kvbench.sim.parameters import Preset
from kvbench.sim.settings import resolve_preset
from kvbench.sim.text import OutputText
from kvbench.sim.tokenizer import encode_ids

MS = 1_000_000
EVER = 10**18
ROUND = {
    "frontend_s": 0.001,
    "send_s_per_chunk": 0,
    "prefill_base_s": 0.010,
    "prefill_s_per_token": 0.0001,
    "attention_s_per_token2": 0,
    "decode_base_s": 0.005,
    "decode_s_per_request": 0.001,
    "max_batched_tokens": 1000,
}


def preset(**settings: object) -> Preset:
    return resolve_preset("tiny", {**ROUND, **settings})


def submit(
    engine: Engine | Cluster, ids: Iterable[int] | bytes, output: int, at_ms: float = 0, salt: str | None = None
) -> Job:
    prompt = ids if isinstance(ids, bytes) else encode_ids(list(ids))
    text = OutputText(prompt, max_tokens=output, ignore_eos=True)
    return engine.submit(prompt, text, salt=salt, now_ns=round(at_ms * MS))


def ask(engine: Engine | Cluster, ids: Iterable[int] | bytes, at_ms: float, output: int = 1) -> Job:
    """One request, and everything that follows from it."""
    job = submit(engine, ids, output, at_ms)
    engine.run_until(EVER)
    return job


def run(engine: Engine | Cluster, until_ms: float = 1e9) -> list[Token]:
    return engine.run_until(round(until_ms * MS))


def times_ms(tokens: list[Token], job: Job) -> list[float]:
    return [token.at_ns / MS for token in tokens if token.job is job]


def ttft_ms(job: Job) -> float:
    assert job.first_token_ns is not None
    return (job.first_token_ns - job.arrival_ns) / MS
