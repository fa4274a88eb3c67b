"""What is known of a run as a whole: run.json."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal

import msgspec

RUN_SCHEMA_VERSION = 1
"""History: 1 (0.1.0) first."""


class Warning(msgspec.Struct, frozen=True, kw_only=True):
    """A doubt, as data: one list feeds terminal, report and gate. `advice` says what to do about it."""

    code: str
    message: str
    advice: str | None = None


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the run's own error allows its figures to be used, and if not, why."""

    verdict: Literal["ok", "degraded"] = "ok"
    reasons: tuple[str, ...] = ()


class RulesCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a run kept to the published rules that it was made by (`name`: agentx), and if not, which it broke."""

    name: str
    valid: bool
    reasons: tuple[str, ...] = ()


class OwnError(msgspec.Struct, frozen=True, kw_only=True):
    """How far the client itself can have distorted the figures; None = not measured."""

    stamp: Literal["kernel", "loop", "mixed", "none"] = "none"
    stamp_bound_p99_s: float | None = None
    read_lag_p99_s: float | None = None
    send_lag_p50_s: float | None = None
    send_lag_p99_s: float | None = None
    loop_lag_p99_s: float | None = None
    loop_lag_max_s: float | None = None
    streams: int = 0
    streams_without_stamps: int = 0
    clock_step_s: float | None = None
    """Largest change of realtime against monotonic seen in the run: it shifts kernel stamps."""
    suspended_s: float | None = None
    """How long the machine slept during the run."""
    gc_collections: int | None = None
    gc_pause_max_s: float | None = None
    gc_mode: str | None = None


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What an account's balance says a run cost, in one currency. All amounts are in `currency`.

    A balance has two decimals and how it is rounded is not known, so each end is off by up to 0.01: what was spent
    lies between at_least and at_most. Both are None where the balance was not read at both ends, or went up.
    """

    currency: str
    before: Decimal | None = None
    after: Decimal | None = None
    at_least: Decimal | None = None
    at_most: Decimal | None = None


class RunInfo(msgspec.Struct, kw_only=True, frozen=True):
    """run.json. `endpoint` holds no secret; times are UTC ISO 8601; `settings` are the resolved options."""

    schema_version: int = RUN_SCHEMA_VERSION
    kvbench_version: str
    run_id: str
    name: str
    status: Literal["started", "done", "interrupted", "failed"]
    started_at: str
    zero_unix_ns: int | None = None
    """Unix time of the moment that all `_ns` count from (started_at is later: after discovery); None: not noted."""
    ended_at: str | None = None
    wall_s: float | None = None
    command: tuple[str, ...] = ()
    endpoint: dict[str, Any] = {}
    server: dict[str, Any] = {}
    trace: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    seed: int = 0
    environment: dict[str, Any] = {}
    own_error: OwnError | None = None
    trust: Trust | None = None
    rules: RulesCheck | None = None
    """None = made by no published rules, or its end was never written (settings.rules then says which were meant)."""
    warnings: tuple[Warning, ...] = ()
    failure: str | None = None
    balance: tuple[Spent, ...] | None = None
    """One a currency; None = not asked for, or it could not be read."""
