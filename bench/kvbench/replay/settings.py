"""The options of a replay, checked together; what they mean in detail stands with the code that obeys them."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from kvbench.errors import UsageError
from kvbench.runs import agentx

DEFAULT_LIVE_TREES = 8


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """time_scale multiplies start_s and delay_s of the trace; 0 = no pauses, and `sessions` live trees.

    rate: root sessions per second of wall time. sessions: live root trees at all times. duration_s: no turn starts
    after it; with `rate` or `sessions` trees are used again until then. warmup: this many turns, the first to start,
    are recorded apart. max_in_flight and the endpoint's rate limit make turns wait; their wait is kept apart from
    the client's own lag. rules: `agentx` opens the live trees at points inside the trace, and duration_s counts from
    there; what else it fixes is in kvbench.runs.agentx.
    """

    time_scale: float = 1.0
    max_pause_s: float | None = None
    sessions: int | None = None
    rate: float | None = None
    rate_shape: Literal["poisson", "constant"] = "poisson"
    duration_s: float | None = None
    warmup: int = 0
    seed: int = 0
    max_in_flight: int | None = None
    retries: int = 0
    history: Literal["recorded", "live"] = "recorded"
    salt: Literal["run", "tree", "none"] = "run"
    output: Literal["recorded", "free"] = "recorded"
    rules: Literal["agentx"] | None = None

    @classmethod
    def of(cls, **given: Any) -> RunSettings:
        """Settings from what was given (None: not), the rest as the rules say, else the defaults; checked."""
        told = {name: value for name, value in given.items() if value is not None}
        return cls(**((agentx.FIXED if given.get("rules") == agentx.NAME else {}) | told)).check()

    @property
    def live_trees(self) -> int | None:
        """How many root trees are kept live, or None where trees arrive openly."""
        if self.sessions is None and self.rate is None and self.time_scale == 0:
            return DEFAULT_LIVE_TREES
        return self.sessions

    @property
    def reuses_trees(self) -> bool:
        return self.duration_s is not None and (self.rate is not None or self.live_trees is not None)

    def check(self) -> RunSettings:
        """Raise UsageError naming the option and what it takes."""
        _number("--time-scale", self.time_scale, 0, "0 (no pauses) or more")
        _number("--max-pause", self.max_pause_s, 0, "0 or more seconds")
        _number("--rate", self.rate, 0, "more than 0 root sessions a second", exclusive=True)
        _number("--sessions", self.sessions, 1, "1 or more live trees")
        _number("--duration", self.duration_s, 0, "more than 0 seconds", exclusive=True)
        _number("--warmup", self.warmup, 0, "0 or more turns")
        _number("--max-in-flight", self.max_in_flight, 1, "1 or more requests")
        _number("--retries", self.retries, 0, "0 or more")
        if self.rate is not None and self.sessions is not None:
            raise UsageError(
                "--rate and --sessions exclude each other: a rate lets sessions arrive openly, --sessions keeps a "
                "fixed number live",
                hint="give one of them",
            )
        if self.rate_shape == "constant" and self.rate is None:
            raise UsageError("--rate-shape says how --rate arrives; there is no --rate", hint="add --rate R")
        if self.rules is not None:
            self._check_rules()
        return self

    def _check_rules(self) -> None:
        """What cannot be together with the rules; what only makes a run not valid is kvbench.runs.agentx's."""
        if self.sessions is None or self.rate is not None:
            raise UsageError("--rules agentx keeps N session trees live", hint="add --sessions N, without --rate")
        if self.warmup:
            raise UsageError(
                "--warmup goes with other runs: by --rules agentx what comes before the start points is warm-up",
                hint="leave --warmup out",
            )
        if self.history == "live":
            raise UsageError(
                "--history live goes with other runs: --rules agentx begins inside sessions, whose earlier answers "
                "were never given",
                hint="leave --history out",
            )


def _number(option: str, value: float | None, low: float, allowed: str, *, exclusive: bool = False) -> None:
    if value is None:
        return
    if not math.isfinite(value) or value < low or (exclusive and value == low):
        raise UsageError(f"{option} {value:g}: must be {allowed}")
