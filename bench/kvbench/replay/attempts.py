"""One turn, from when it is due to its last answer: limits, budget, retries, and a record of each attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

from msgspec.structs import replace

from kvbench.endpoints.failures import is_retryable
from kvbench.model import Clock, Phase, Record, Request, Turn
from kvbench.replay.hashed import HashPrompts
from kvbench.replay.limits import Limits
from kvbench.replay.prompts import Prompt, instance_id
from kvbench.replay.schedule import backoff_ns
from kvbench.replay.stopping import Stop


class Sender(Protocol):
    """The seam to an endpoint."""

    @property
    def salt_field(self) -> bool:
        """It takes a cache salt beside the prompt."""

    def body(self, prompt: Prompt, output_tokens: int | None) -> dict[str, Any]: ...
    async def send(self, request: Request) -> Record: ...


class Spending(Protocol):
    """A limit on what may be spent: waits until what a body can cost is set aside, None where that might pass it; is
    told what became of it (settle), or that it was not sent (release)."""

    async def reserve(self, body: dict[str, Any]) -> Decimal | None: ...
    def settle(self, reserved: Decimal, record: Record) -> None: ...
    def release(self, reserved: Decimal | None) -> None: ...


@dataclass(frozen=True)
class Due:
    """A turn of a tree's use `cycle`. phase: None = the first `warmup` turns to start are warm-up, the others are
    measured."""

    turn: Turn
    root_id: str
    cycle: int
    scheduled_ns: int
    phase: Phase | None = None


class Attempts:
    """Sends turns; every attempt becomes a Record given to `record`."""

    def __init__(
        self,
        sender: Sender,
        limits: Limits,
        stop: Stop,
        record: Callable[[Record], None],
        now_ns: Callable[[], int],
        run_id: str,
        *,
        retries: int,
        warmup: int,
        hashed: HashPrompts | None,
        spending: Spending | None,
    ) -> None:
        self._sender = sender
        self._limits = limits
        self._stop = stop
        self._record = record
        self._now_ns = now_ns
        self._run_id = run_id
        self._retries = retries
        self._warmup = warmup
        self._hashed = hashed
        self._spending = spending
        self._turns_started = 0
        self._requests = 0
        self.in_flight = 0

    async def send(self, due: Due, prompt: Prompt) -> Record | None:
        """Send a turn until it is answered, cannot be, or the retries are used up; returns the final record.

        None: the run was told to stop while the turn still waited for a limit, so it was never sent. A record of class
        `cancelled`: the run was told to stop before a retry.
        """
        body = self._sender.body(prompt, due.turn.output_tokens)
        due_ns = due.scheduled_ns
        phase: Phase | None = None
        attempt = 0
        while True:
            async with self._limits.slot() as wait_ns:
                if phase is None and self._stop.stopped:
                    return None
                reserved: Decimal | None = None
                if self._spending is not None:
                    began_ns = self._now_ns()
                    reserved = await self._spending.reserve(body)
                    wait_ns += self._now_ns() - began_ns
                    if reserved is None:
                        self._stop.stop()
                    if phase is None and self._stop.stopped:
                        self._spending.release(reserved)
                        return None
                    if phase is not None and reserved is None:
                        return self._stopped_retry(due, due_ns, attempt, phase)
                if phase is None:
                    phase = due.phase or ("warmup" if self._turns_started < self._warmup else "measure")
                    self._turns_started += 1
                request = self._request(due, body, due_ns=due_ns, attempt=attempt)
                request = replace(request, phase=phase, limit_wait_ns=wait_ns)
                record = await self._send(request)
                if self._spending is not None and reserved is not None:
                    self._spending.settle(reserved, record)
            retry = not record.ok and attempt < self._retries and is_retryable(record.error_class or "")
            record = replace(record, final=not retry)
            self._record(record)
            if self._hashed is not None:
                self._hashed.learn(prompt.text_tokens, record)
            if not retry:
                return record
            ended_ns = record.clock.end if record.clock.end is not None else self._now_ns()
            due_ns = ended_ns + backoff_ns(attempt, record.retry_after_s)
            attempt += 1
            if not await self._stop.until(due_ns):
                return self._stopped_retry(due, due_ns, attempt, phase)

    def skip(self, due: Due, why: str) -> None:
        """Record a turn that is never sent, because an earlier one that it depends on failed."""
        self._record(_not_sent(self._request(due, {}, due_ns=due.scheduled_ns, attempt=0), "skipped", why))

    def _stopped_retry(self, due: Due, due_ns: int, attempt: int, phase: Phase) -> Record:
        request = self._request(due, {}, due_ns=due_ns, attempt=attempt)
        record = _not_sent(replace(request, phase=phase), "cancelled", "the run was stopped before this retry")
        self._record(record)
        return record

    async def _send(self, request: Request) -> Record:
        self.in_flight += 1
        try:
            return await self._sender.send(request)
        except asyncio.CancelledError:
            self._record(
                replace(
                    _not_sent(request, "cancelled", "the run was aborted while this request was in flight"),
                    clock=Clock(
                        scheduled=request.scheduled_ns,
                        due=request.due_ns,
                        limit_wait_ns=request.limit_wait_ns,
                        end=self._now_ns(),
                    ),
                )
            )
            raise
        finally:
            self.in_flight -= 1

    def _request(self, due: Due, body: dict[str, Any], *, due_ns: int, attempt: int) -> Request:
        turn = due.turn
        self._requests += 1
        return Request(
            request_id=f"{self._run_id[-6:]}-{self._requests:06d}",
            session_id=instance_id(turn.session_id, due.cycle),
            turn=turn.turn,
            body=body,
            api="completions" if "prompt" in body else "chat",
            attempt=attempt,
            root_id=due.root_id,
            scheduled_ns=due.scheduled_ns,
            due_ns=due_ns,
            wanted_output_tokens=turn.output_tokens,
            wanted_input_tokens=turn.input_tokens if turn.hash_ids is not None else None,
        )


def _not_sent(request: Request, error_class: str, message: str) -> Record:
    """The record of an attempt of which nothing left."""
    return Record(
        request_id=request.request_id,
        session_id=request.session_id,
        turn=request.turn,
        attempt=request.attempt,
        phase=request.phase,
        root_id=request.root_id,
        clock=Clock(scheduled=request.scheduled_ns, due=request.due_ns),
        error_class=error_class,
        error_message=message,
        wanted_output_tokens=request.wanted_output_tokens,
        wanted_input_tokens=request.wanted_input_tokens,
    )
