"""A run as an llm-d benchmark report, version 0.2 (package llmd-benchmark-report 0.2.1).

The format forbids fields it does not know, and means by each of its own what its schema says: what a run has beyond
that goes under `results.observability.kvbench`, and what a run does not know is left out, never 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from kvbench.analysis.jobs import job_latencies_s
from kvbench.analysis.measured import Measured, chunk_gaps_s, measured
from kvbench.analysis.slo import Slo
from kvbench.errors import RefusedError
from kvbench.model import Summary
from kvbench.runs.reader import Run, status_text

VERSION = "0.2"
"""Nothing that 0.2.1 added is used, so that readers of either revision take it."""
ENDPOINT = "endpoint"
_PERCENTILES = {
    "p0p1": 0.001,
    "p1": 0.01,
    "p5": 0.05,
    "p10": 0.10,
    "p25": 0.25,
    "p50": 0.50,
    "p75": 0.75,
    "p90": 0.90,
    "p95": 0.95,
    "p99": 0.99,
    "p99p9": 0.999,
}
Json = dict[str, Any]


def llmd_report(run: Run, summary: Summary, told: Mapping[str, Any], slos: tuple[Slo, ...] = ()) -> Json:
    """The report as an object that msgspec encodes. told: the run's own summary, as `kvbench show --json` has it.

    requests, latencies and lengths are of the turns that count (final attempts of the measure phase), TPOT, TTFT and
    E2E as kvbench defines them; inter-token latency only where each chunk is one token, as it is no gap between tokens
    else. A session is a session tree, its duration a job's latency. RefusedError where no turn succeeded.
    """
    ran = measured(run, slos)
    if ran.ok.empty:
        raise RefusedError(
            f"{run.info.run_id} has no turn that succeeded: there is nothing to report",
            hint=f"kvbench show {run.info.run_id} says why",
        )
    report: Json = _plain(
        {
            "version": VERSION,
            "run": _run(run, summary),
            "scenario": {"stack": [_endpoint(run)], "load": _load(run, ran, summary)},
            "results": {
                "request_performance": {"aggregate": _requests(ran, summary)},
                "session_performance": {"sessions": _sessions(ran)},
                "observability": _observability(summary, told),
            },
        }
    )
    return report


def _run(run: Run, summary: Summary) -> Json:
    info = run.info
    status = status_text(info, run.path)
    # The format has no field for a run that must not be taken at its word.
    doubts = [] if status == "done" else [status]
    keywords = [] if status == "done" else ["incomplete"]
    if summary.trust.verdict != "ok":
        keywords.append(summary.trust.verdict)
        doubts.append(f"{summary.trust.verdict}: {'; '.join(summary.trust.reasons)}")
    if summary.rules is not None:
        keywords.append(summary.rules.name)
        if not summary.rules.valid:
            keywords.append("not-valid")
            doubts.append(f"not valid by the {summary.rules.name} rules: {'; '.join(summary.rules.reasons)}")
    return {
        "uid": info.run_id,
        "time": {
            "start": info.started_at,
            "end": info.ended_at,
            "duration": None if info.wall_s is None else f"PT{info.wall_s:.3f}S",
        },
        "description": "; ".join([*doubts, f"{info.name} -> {summary.model or 'model not told'}"]),
        "keywords": keywords or None,
    }


def _endpoint(run: Run) -> Json:
    """A generic component: an engine's needs its accelerators, which are not seen from outside."""
    config = {"endpoint": run.info.endpoint, "server": run.info.server}
    name, _, version = str(run.info.server.get("server") or "").rpartition(" ")
    return {
        "metadata": {"label": ENDPOINT, "cfg_id": _digest(config)},
        "standardized": {
            "kind": "generic",
            "tool": name or version or "not reported",
            "tool_version": version if name else "not reported",
            "model": run.info.server.get("model"),
        },
        "native": {"config": config},
    }


def _load(run: Run, ran: Measured, summary: Summary) -> Json | None:
    """None where no input length is known: the format asks for one."""
    info = run.info
    config = {"trace": info.trace, "settings": info.settings, "seed": info.seed, "command": list(info.command)}
    given = _length(ran.ok["input_tokens"])
    if given is None:
        return None
    enforced = summary.wanted_output_tokens is not None and (
        ran.ok["output_tokens"].eq(ran.ok["wanted_output_tokens"]).fillna(False).all()
    )
    turns = ran.finals.groupby("session_id").size()
    return {
        "metadata": {
            "cfg_id": _digest({"trace": info.trace.get("sha256"), "settings": info.settings, "seed": info.seed}),
            "description": info.name,
        },
        "standardized": {
            "tool": "kvbench",
            "tool_version": info.kvbench_version,
            "source": "sampled",
            "input_seq_len": given,
            "output_seq_len": _length(ran.ok["wanted_output_tokens"]) if enforced else None,
            "multi_turn": {"enabled": bool((turns > 1).any()), "max_turns": _length(turns)},
        },
        "native": {"config": config},
    }


def _requests(ran: Measured, summary: Summary) -> Json:
    sent = ran.finals[ran.finals["error_class"] != "skipped"]
    cancelled = int((sent["error_class"] == "cancelled").sum())
    ok, window = ran.ok, ran.window_s
    in_window = None if ran.window is None else int((ok["end_at_s"] <= ran.window[1]).sum())
    rates = (summary.input_tokens_per_s, summary.output_tokens_per_s)
    # One token a chunk in every turn, or the gaps are not between tokens.
    single = bool(((ok["chunks_ns"].map(len) == ok["output_tokens"]).fillna(False)).all())
    return {
        "requests": {
            "total": len(sent),
            "failures": len(sent) - len(ok) - cancelled,
            "incomplete": cancelled,
            "input_length": _statistics(ok["input_tokens"], "count"),
            "output_length": _statistics(ok["output_tokens"], "count"),
        },
        "latency": {
            "time_to_first_token": _statistics(ok["ttft_s"], "s"),
            "normalized_time_per_output_token": _statistics(
                ok["e2e_s"] / ok["output_tokens"].where(ok["output_tokens"] > 0), "s/token"
            ),
            "time_per_output_token": _statistics(ok["tpot_s"], "s/token"),
            "inter_token_latency": _statistics(chunk_gaps_s(ran), "s/token") if single else None,
            "request_latency": _statistics(ok["e2e_s"], "s"),
        },
        "throughput": {
            "input_token_rate": _mean(rates[0], "tokens/s"),
            "output_token_rate": _mean(rates[1], "tokens/s"),
            "total_token_rate": _mean(None if None in rates else sum(filter(None, rates)), "tokens/s"),
            "request_rate": _mean(None if in_window is None or not window else in_window / window, "queries/s"),
        },
    }


def _sessions(ran: Measured) -> Json:
    """Session trees: a root session with its sub-agents."""
    finals = ran.finals
    trees = finals.groupby("root_id")
    broken = finals[~finals["ok"]]
    dropped = broken["error_class"].isin(["skipped", "cancelled"])
    return {
        "total": trees.ngroups,
        "succeeded": len(ran.jobs),
        "failed": int(broken["root_id"].nunique()),
        "total_events": len(finals),
        "total_events_completed": len(ran.ok),
        "total_events_cancelled": int(dropped.sum()),
        "session_rate": _mean(len(ran.jobs) / ran.window_s if ran.window_s and ran.jobs else None, "queries/s"),
        "session_duration": _statistics(job_latencies_s(ran), "s"),
        "events_per_session": _statistics(trees.size(), "count"),
        "input_tokens_per_session": _statistics(_sums(ran, "input_tokens"), "count"),
        "output_tokens_per_session": _statistics(_sums(ran, "output_tokens"), "count"),
    }


def _sums(ran: Measured, column: str) -> pd.Series:
    """Of whole trees that report all: part of one is no session's tokens."""
    whole = ran.ok[ran.ok["root_id"].isin(list(ran.jobs))]
    told = whole[column].notna().groupby(whole["root_id"]).all()
    sums: pd.Series = whole.groupby("root_id")[column].sum()
    return sums[told]


def _observability(summary: Summary, told: Mapping[str, Any]) -> Json:
    hit_rate = None if summary.hit_rate is None else _mean(summary.hit_rate * 100, "percent")
    component = {"component_label": ENDPOINT, "aggregate": {"cache_hit_rate": hit_rate}}
    # The directory is this machine's business.
    own = {name: value for name, value in told.items() if name != "run"}
    return {"components": None if hit_rate is None else [component], "kvbench": own}


def _statistics(values: pd.Series, units: str) -> Json | None:
    """Population figures of what was reported, percentiles by linear interpolation; None where nothing was."""
    known = values.dropna().to_numpy(dtype=float)
    if not len(known):
        return None
    quantiles = np.quantile(known, list(_PERCENTILES.values()))
    return {
        "units": units,
        "mean": float(known.mean()),
        "stddev": float(known.std()),
        "min": float(known.min()),
        **dict(zip(_PERCENTILES, map(float, quantiles), strict=True)),
        "max": float(known.max()),
    }


def _mean(value: float | None, units: str) -> Json | None:
    return None if value is None else {"units": units, "mean": float(value)}


def _length(values: pd.Series) -> Json | None:
    known = values.dropna().to_numpy(dtype=float)
    if not len(known):
        return None
    if known.min() == known.max():
        return {"distribution": "fixed", "value": float(known[0])}
    return {
        "distribution": "other",
        "value": float(known.mean()),
        "std_dev": float(known.std()),
        "min": int(known.min()),
        "max": int(known.max()),
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:32]


def _plain(value: Any, *, nulls: bool = False) -> Any:
    """Absent and null are one in this format, whose own writer leaves nulls out; kvbench's own summary keeps them.

    No exponents: the format's reader takes JSON for YAML 1.1, where 4e-06 is a text.
    """
    if isinstance(value, dict):
        return {
            key: _plain(inner, nulls=nulls or key == "kvbench")
            for key, inner in value.items()
            if nulls or inner is not None
        }
    if isinstance(value, list | tuple):
        return [_plain(inner, nulls=nulls) for inner in value]
    if isinstance(value, float) and "e" in repr(value):
        return msgspec.Raw(format(Decimal(repr(value)), "f").encode())
    return value
