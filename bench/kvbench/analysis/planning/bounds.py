"""How many requests a second go through, and which bound binds: prefill, decode, sessions, or a tier's bandwidth."""

from __future__ import annotations

from typing import Any

from kvbench.analysis.plan import Load, requests_per_s_colocated, requests_per_s_disaggregated
from kvbench.analysis.planning.fields import Speed
from kvbench.analysis.planning.work import Work


def residence_s(work: Work, speed: Speed, given_s: float | None, *, with_pause: bool) -> float | None:
    """R: restore + prefill + answer, and the pause too where a session has to stay for it; None where a term is not
    known."""
    if given_s is not None:
        return given_s
    pause_s = work.pause_s if with_pause else 0.0
    if pause_s is None or work.prefill_s is None or speed.tpot_s is None:
        return None
    return pause_s + work.restore_s + work.prefill_s + work.output_tokens * speed.tpot_s


def throughput(
    work: Work, speed: Speed, running: int | None, held: int | None, residence: float | None
) -> dict[str, Any]:
    """Bounds in requests a second, and the least of them for prefill and decode apart, and on one machine in turns.

    held: sessions whose prefix is kept at a time, in HBM and the tiers below; none starts more than one request in
    `residence` seconds. running: those that HBM has room for, which is all the time but the pause.
    A prefill with attention's part counts as tokens at the rate it comes to, so that the two formulas stay what they
    are. None, with its reason under `needs`, where a speed is not given.
    """
    if speed.prefill_tokens_per_s is None:
        return {"needs": "speed.prefill_tokens_per_s"}
    if work.prefill_s is None:
        return {"needs": "traffic.context: attention's part of a prefill depends on what stands before it"}
    if speed.decode_tokens_per_s is None and work.output_tokens:
        return {"needs": "speed.decode_tokens_per_s"}
    if not work.computed_tokens and not work.output_tokens:
        return {"needs": "a request that computes or generates a token"}
    rate = work.computed_tokens / work.prefill_s if work.prefill_s else speed.prefill_tokens_per_s
    decode = speed.decode_tokens_per_s or 1.0
    known = residence is not None and held is not None
    load = Load(
        computed_tokens=work.computed_tokens,
        output_tokens=work.output_tokens,
        sessions=held if known else None,
        residence_s=residence if known else None,
    )
    decode_s = work.output_tokens / decode
    bounds: dict[str, float] = {}
    if work.prefill_s:
        bounds["prefill"] = 1 / work.prefill_s
    if decode_s:
        bounds["decode"] = 1 / decode_s
    if held is not None and residence is not None:
        bounds["sessions"] = held / residence
    others = {f"restoring from {s.name}": 1 / s.transfer_s for s in work.shares if s.transfer_s}
    active_s = None if residence is None or work.pause_s is None else residence - work.pause_s
    if running is not None and running != held and active_s is not None and active_s > 0:
        others["running sessions"] = running / active_s
    bounds |= others
    apart = requests_per_s_disaggregated(load, rate, decode)
    together = requests_per_s_colocated(load, rate, decode)
    slower = "prefill" if work.prefill_s >= decode_s else "decode"
    busy = {f"prefill and decode, {slower} the more": 1 / (work.prefill_s + decode_s)}
    return {
        "computed_tokens": work.computed_tokens,
        "output_tokens": work.output_tokens,
        "prefill_s": work.prefill_s,
        "decode_s": decode_s,
        "sessions": held,
        "sessions_in_hbm": running,
        "residence_s": residence,
        "bounds": [{"name": name, "requests_per_s": value} for name, value in bounds.items()],
        "disaggregated": _least(min([apart, *others.values()]), bounds),
        "colocated": _least(
            min([together, *others.values()]),
            busy | {name: value for name, value in bounds.items() if name not in ("prefill", "decode")},
        ),
        "needs": None if known else "a number that fits, and traffic.residence_s (or speed.tpot_s and traffic.pause_s)",
    }


def _least(per_s: float, bounds: dict[str, float]) -> dict[str, Any]:
    return {"requests_per_s": per_s, "binds": min(bounds, key=bounds.__getitem__)}
