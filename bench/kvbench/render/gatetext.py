"""A gate's verdict as text."""

from __future__ import annotations

from typing import Any

from kvbench.render.text import NOT_REPORTED, percent, safe, seconds, token_time

INDENT = " " * 14


def gate_lines(judged: dict[str, Any]) -> list[str]:
    """The JSON object of `kvbench gate` as lines, the verdict last."""
    lines = [line for gate in judged["gates"] for line in _gate(gate)]
    lines += [f"refused: {safe(reason)}" for reason in judged["reasons"]]
    lines += [f"note: {safe(note)}" for note in judged["notes"]]
    verdicts = ("fail", "refused", "inconclusive", "pass")
    counts = [f"{n} {verdict}" for verdict in verdicts if (n := _count(judged, verdict))]
    return [*lines, f"verdict: {judged['verdict'].upper()}" + (f" ({', '.join(counts)})" if len(counts) > 1 else "")]


def _count(judged: dict[str, Any], verdict: str) -> int:
    return sum(gate["verdict"] == verdict for gate in judged["gates"])


def _gate(gate: dict[str, Any]) -> list[str]:
    lines = [f"{gate['verdict'].upper():<14}{safe(gate['expr'])}"]
    if gate["reason"]:
        lines.append(f"{INDENT}{safe(gate['reason'])}")
    if gate["new"] is None:
        return lines
    runs = f"{gate['n_base']} + {gate['n_new']} runs" if gate["scale"] != "value" else f"{gate['n_new']} runs"
    new = amount(gate["new"], gate["unit"])
    sides = new if gate["scale"] == "value" else f"{amount(gate['base'], gate['unit'])} -> {new}"
    if gate["p"] is None:
        return [*lines, f"{INDENT}{sides} ({runs})"]
    low, high = scaled(gate, gate["low"]), scaled(gate, gate["high"])
    told = "" if gate["scale"] == "value" else f", {scaled(gate, gate['change'])}"
    passes = "" if gate["scale"] == "value" else f", passes within {scaled(gate, gate['passes_within'])}"
    lines.append(f"{INDENT}{sides}{told} (90% interval {low} to {high}{passes})")
    family = "" if gate["p_holm"] == gate["p"] else f", {gate['p_holm']:.2g} after Holm"
    lines.append(f"{INDENT}{gate['test']}, {runs}, p = {gate['p']:.2g}{family}; {_spread(gate)}")
    lines.append(f"{INDENT}{_power(gate)}")
    return lines


def _spread(gate: dict[str, Any]) -> str:
    spread = gate["spread"]
    return f"spread from run to run {percent(spread) if gate['log'] else amount(spread, gate['unit'])}"


def _power(gate: dict[str, Any]) -> str:
    needed = ["more than 1,000" if n is None else f"{n:,}" for n in (gate["runs_needed"], gate["runs_needed_family"])]
    runs = needed[0] if needed[0] == needed[1] else f"{needed[0]} ({needed[1]} after Holm)"
    if gate["scale"] == "value":
        return f"runs needed for 80% at this distance from the limit: {runs}"
    power = [percent(gate[name]) for name in ("power_fail", "power_fail_family")]
    alone = power[0] if power[0] == power[1] else f"{power[0]} ({power[1]} after Holm)"
    return (
        f"with these runs: FAIL at a true {scaled(gate, gate['passes_within'])} {alone}, at a true "
        f"{scaled(gate, gate['fails_beyond'])} {percent(gate['fail_at_threshold'])}, PASS at no change "
        f"{percent(gate['power_pass'])}; a side needs {runs} for 80%"
    )


def scaled(gate: dict[str, Any], value: float) -> str:
    """A change, or an end of its interval, on the gate's scale."""
    if gate["scale"] == "ratio":
        return f"{(value - 1) * 100:+.1f}%"
    if gate["scale"] == "difference":
        return ("+" if value >= 0 else "-") + (
            f"{abs(value):.4f}" if gate["unit"] == "1" else amount(abs(value), gate["unit"])
        )
    return amount(value, gate["unit"])


def amount(value: float | None, unit: str) -> str:
    """A figure in its metric's unit."""
    if value is None:
        return NOT_REPORTED
    if unit == "s":
        return seconds(value)
    if unit == "s/token":
        return token_time(value)
    if unit == "1":
        return f"{value * 100:.2f}%"
    return f"{value:,.4g} {unit}" if abs(value) < 1000 else f"{value:,.0f} {unit}"
