"""The AgentX rules: what they fix, and whether a run kept to them, told from its run directory alone.

Source: SemiAnalysis' InferenceX AgentX, as AIPerf documents its scenario of that name: streaming, ignore_eos, delays
from the end of a turn to the start of the next, a cache of its own for each play, start points uniform in the trace
with what comes before as warm-up, no truncation, a window of 900 s or more; not valid when more than 1% of the
requests overflow the context, when cancelled, or when a rule was overridden.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvbench.model import Record, RulesCheck, RunInfo

NAME = "agentx"
MIN_WINDOW_S = 900.0
MAX_PAUSE_S = 10.0
OVERFLOW_LIMIT = 0.01

FIXED: dict[str, Any] = {"max_pause_s": MAX_PAUSE_S, "salt": "tree", "duration_s": MIN_WINDOW_S}
"""Settings that the rules give where none were given."""

_LENGTH_FIELDS = ("max_tokens", "max_completion_tokens", "min_tokens", "truncate_prompt_tokens", "stop")
"""Fields of a body that change how long a prompt or an answer is."""


def overridden(settings: Mapping[str, Any], endpoint: Mapping[str, Any], server: Mapping[str, Any]) -> list[str]:
    """Rules that a run does not keep, as far as is known before its first turn. Arguments as in run.json."""
    return [*by_settings(settings), *_by_endpoint(endpoint, server)]


def by_settings(settings: Mapping[str, Any]) -> Iterator[str]:
    """What a run's own options, all of them, override."""
    window_s = settings.get("duration_s")
    if window_s is None or window_s < MIN_WINDOW_S:
        yield f"window {'not set' if window_s is None else f'{window_s:g} s'} < {MIN_WINDOW_S:g} s (--duration)"
    if settings.get("time_scale") != 1.0:
        yield f"pauses were scaled by {settings.get('time_scale'):g} (--time-scale)"
    cap_s = settings.get("max_pause_s")
    if cap_s != MAX_PAUSE_S:
        capped = "not capped" if cap_s is None else f"capped at {cap_s:g} s"
        yield f"pauses were {capped}, not at {MAX_PAUSE_S:g} s (--max-pause)"
    if settings.get("salt") != "tree":
        yield f"plays shared a cache (--salt {settings.get('salt')})"
    if settings.get("output") != "recorded":
        yield f"answers were not held to the trace's lengths (--output {settings.get('output')})"
    if settings.get("retries"):
        yield f"failed requests were sent again (--retries {settings.get('retries')})"
    if settings.get("max_in_flight") is not None:
        yield f"requests were held back (--max-in-flight {settings.get('max_in_flight')})"


def _by_endpoint(endpoint: Mapping[str, Any], server: Mapping[str, Any]) -> Iterator[str]:
    extra = endpoint.get("extra_body") or {}
    limits = endpoint.get("limits") or {}
    if endpoint.get("stream") is False:
        yield "answers were not streamed (stream = false in the endpoint's profile)"
    if extra.get("ignore_eos", True) is not True:
        yield "ignore_eos was overridden (extra_body of the endpoint's profile)"
    elif "ignore_eos" not in extra and server.get("dialect") != "vllm":
        yield (
            f"ignore_eos was not sent, as the dialect {server.get('dialect')} has no such field; where the server "
            "takes it, extra_body = { ignore_eos = true } in the endpoint's profile"
        )
    if named := [name for name in _LENGTH_FIELDS if name in extra]:
        yield f"lengths were overridden (extra_body of the endpoint's profile: {', '.join(named)})"
    for name in ("requests_per_minute", "in_flight"):
        if limits.get(name) is not None:
            yield f"requests were held back (limits.{name} = {limits[name]:g} in the endpoint's profile)"


def check(info: RunInfo, records: Sequence[Record]) -> RulesCheck | None:
    """Whether a run that is over kept to the rules; None where it was not made by them. `records`: all of the run's."""
    if info.settings.get("rules") != NAME:
        return None
    reasons = [*overridden(info.settings, info.endpoint, info.server), *_by_course(info, records)]
    return RulesCheck(name=NAME, valid=not reasons, reasons=tuple(reasons))


def _by_course(info: RunInfo, records: Sequence[Record]) -> Iterator[str]:
    if info.status != "done":
        yield f"cancelled: the run's status is {info.status}, not done"
    elif any(warning.code == "max_cost" for warning in info.warnings):
        yield "cancelled: --max-cost stopped the run"
    finals = [record for record in records if record.final and record.error_class != "skipped"]
    warm = [record for record in finals if record.phase == "warmup"]
    if failed := sum(not record.ok for record in warm):
        yield f"{failed} of {len(warm)} warm-up turns failed, so the cache was not what the start points want"
    measured = [record for record in finals if record.phase == "measure"]
    if not measured:
        yield "no turn was measured"
    over = sum(record.error_class == "context_overflow" for record in measured)
    if over > OVERFLOW_LIMIT * len(measured):
        share = over / len(measured)
        yield f"context overflow on {over:,} of {len(measured):,} turns ({share:.1%} > {OVERFLOW_LIMIT:.0%})"
    if free := sum(record.wanted_output_tokens is None for record in measured):
        yield f"{free:,} of {len(measured):,} turns of the trace name no output length to hold the answer to"
