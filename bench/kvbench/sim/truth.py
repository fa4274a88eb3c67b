"""The truth of each request, whatever the endpoint said of it, and how late its tokens were written."""

from __future__ import annotations

import os
from array import array
from collections import deque
from collections.abc import Callable
from decimal import Decimal

import msgspec

from kvbench.sim.account import Bill
from kvbench.sim.job import Job

NS = 1_000_000_000
_KEPT = 100_000
_MEASURED = 4_000_000


class Truth(msgspec.Struct, kw_only=True):
    """What happened to one request; `_ns` are time.monotonic_ns() of this machine, None = did not happen.

    planned_ are the engine's own times: no scheduling noise of this machine is in them. queue_wait_ns: from reaching
    the scheduler (arrival + frontend_s) to admission; restore_ns from there until what lower tiers held was in HBM;
    prefill_ns from there to the first token. hits: cached tokens by where they were (hbm, host, ssd or units), of
    which replayed_tokens at their end were computed again; lapsed: a hit was lost. reported_tokens: what usage called
    cached. evicted_blocks: cached blocks of others that were evicted to make room. price: what the request should
    cost, and charged what was taken for it, with billing_faults in between; None where nothing has a price.
    """

    request_id: str
    response_id: str
    stream: bool
    replica: int
    arrival_ns: int
    scheduled_ns: int | None
    planned_first_token_ns: int | None
    planned_last_token_ns: int | None
    first_token_write_ns: int | None
    last_write_ns: int | None
    prompt_tokens: int
    cached_tokens: int
    reported_tokens: int
    hits: dict[str, int]
    replayed_tokens: int
    lapsed: bool
    output_tokens: int
    queue_wait_ns: int | None
    restore_ns: int | None
    prefill_ns: int | None
    evicted_blocks: int
    preemptions: int
    finish_reason: str
    peak: bool | None
    price: Decimal | None
    charged: Decimal | None
    billing_faults: list[str]


def truth_of(
    job: Job,
    *,
    request_id: str,
    response_id: str,
    stream: bool,
    first_write_ns: int | None,
    last_write_ns: int | None,
    reported_tokens: int,
    finish_reason: str,
    bill: Bill | None,
) -> Truth:
    """The truth of a request that has ended, complete or not."""
    began_ns = job.restored_ns or job.scheduled_ns
    return Truth(
        request_id=request_id,
        response_id=response_id,
        stream=stream,
        replica=job.replica,
        arrival_ns=job.arrival_ns,
        scheduled_ns=job.scheduled_ns,
        planned_first_token_ns=job.first_token_ns,
        planned_last_token_ns=job.last_token_ns,
        first_token_write_ns=first_write_ns,
        last_write_ns=last_write_ns,
        prompt_tokens=job.prompt_tokens,
        cached_tokens=job.cached_tokens,
        reported_tokens=reported_tokens,
        hits={where: tokens for where, tokens in job.hits.items() if tokens},
        replayed_tokens=job.replayed_tokens,
        lapsed=job.lapsed,
        output_tokens=job.sampled,
        queue_wait_ns=_between(job.ready_ns, job.scheduled_ns),
        restore_ns=0 if job.restored_ns is None else _between(job.scheduled_ns, job.restored_ns),
        prefill_ns=_between(began_ns, job.first_token_ns),
        evicted_blocks=job.evicted_blocks,
        preemptions=job.preemptions,
        finish_reason=finish_reason,
        peak=bill.peak if bill is not None else None,
        price=bill.price if bill is not None else None,
        charged=bill.charged if bill is not None else None,
        billing_faults=list(bill.faults) if bill is not None else [],
    )


def _between(start_ns: int | None, end_ns: int | None) -> int | None:
    return None if start_ns is None or end_ns is None else end_ns - start_ns


class TruthLog:
    """The last requests' truths as JSON lines, and all of them in a file, where there is one.

    on_failure: called once where the file can no longer be written; it then lacks what follows.
    """

    def __init__(self, fd: int | None, on_failure: Callable[[OSError], None]) -> None:
        self._fd = fd
        self._on_failure = on_failure
        self._lines: deque[bytes] = deque(maxlen=_KEPT)

    def add(self, truth: Truth) -> None:
        line = msgspec.json.encode(truth) + b"\n"
        self._lines.append(line)
        if self._fd is not None:
            try:
                while line:
                    line = line[os.write(self._fd, line) :]
            except OSError as error:
                self._fd = None
                self._on_failure(error)

    def render(self) -> bytes:
        return b"".join(self._lines)


class Lateness:
    """How long after they were due tokens were handed to the kernel: the endpoint's own distortion."""

    def __init__(self) -> None:
        self._first, self._others = array("q"), array("q")

    def note(self, late_ns: int, *, first: bool) -> None:
        kept = self._first if first else self._others
        if len(kept) < _MEASURED:
            kept.append(late_ns)

    def reset(self) -> None:
        del self._first[:], self._others[:]

    def summary(self) -> dict[str, dict[str, float | int | None]]:
        """Seconds: of first tokens, and of the writes after them."""
        return {"first_token": _quantiles(self._first), "others": _quantiles(self._others)}


def _quantiles(kept: array[int]) -> dict[str, float | int | None]:
    ordered = sorted(kept)
    found: dict[str, float | int | None] = {"count": len(ordered)}
    for name, share in (("p50_s", 0.5), ("p99_s", 0.99), ("max_s", 1.0)):
        found[name] = ordered[round(share * (len(ordered) - 1))] / NS if ordered else None
    return found
