"""The runs of a directory over nights: by key, each metric a series; and which of them can be a baseline."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kvbench.analysis.gate.evidence import facts_of, moment
from kvbench.analysis.gate.validity import Treatment
from kvbench.analysis.measured import measured
from kvbench.analysis.metrics import BY_WORD, statistic
from kvbench.analysis.summary import summarise
from kvbench.errors import InputError, KvbenchError
from kvbench.model import RunInfo
from kvbench.runs.night import NIGHT_FILE, Night, NightRun, load_night, records_sha256
from kvbench.runs.reader import load_info, load_run, status_text
from kvbench.runs.writer import RUN_FILE

SERIES = (
    ("ttft", "geomean"),
    ("ttft", "p95"),
    ("tpot", "geomean"),
    ("e2e", "geomean"),
    ("job_latency", "geomean"),
    ("hit_rate", None),
    ("output_throughput", None),
    ("errors", None),
)
"""What is drawn: metric and statistic, as gate expressions name them."""
_KEYED = ("trace.sha256", "settings", "endpoint", "server.model")


@dataclass(frozen=True)
class Stored:
    """A run directory as it lies there. night: what made it, None where no nightly job did. problem: why it cannot be
    used, whatever it is used for."""

    path: Path
    info: RunInfo | None
    night: Night | None = None
    made: NightRun | None = None
    problem: str | None = None

    @property
    def night_id(self) -> str:
        if self.night is not None:
            return self.night.night
        return self.info.started_at[:10] if self.info is not None else ""


def stored_runs(directory: Path) -> list[Stored]:
    """All run directories of DIR and of its nights, in the order of time. Records that are no longer what the run left
    are a problem: a history that changes afterwards is none. InputError when DIR is no directory.
    """
    if not directory.is_dir():
        raise InputError("no such directory", path=directory, hint="kvbench history DIR   of a nightly job, or of runs")
    found: list[Stored] = []
    for path in sorted(directory.iterdir()):
        if (path / NIGHT_FILE).is_file():
            found += _of_night(path)
        elif (path / RUN_FILE).is_file():
            found.append(_stored(path))
    return sorted(found, key=lambda run: run.info.started_at if run.info is not None else "")


def _of_night(path: Path) -> list[Stored]:
    try:
        night = load_night(path)
    except InputError as error:
        return [Stored(path, None, problem=error.message)]
    return [_stored(path / made.run, night, made) for made in night.runs]


def _stored(path: Path, night: Night | None = None, made: NightRun | None = None) -> Stored:
    try:
        info = load_info(path)
        if made is not None and records_sha256(path) != made.records_sha256:
            return Stored(path, info, night, made, "its records are not those that the night wrote")
    except KvbenchError as error:
        return Stored(path, None, night, made, error.message)
    return Stored(path, info, night, made)


def key_facts(info: RunInfo, ignored: Sequence[Treatment] = ()) -> dict[str, str]:
    """Trace hash, configuration, endpoint and model, flat: runs that have these in common are one history."""
    return {
        name: value
        for name, value in facts_of(info).items()
        if any(name == top or name.startswith(f"{top}.") for top in _KEYED)
        and not any(treatment.covers(name) for treatment in ignored)
    }


def key_id(facts: dict[str, str]) -> str:
    return hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()[:8]


def baseline(
    runs: Sequence[Stored], like: RunInfo, ignored: Sequence[Treatment], *, most: int, since: date | None
) -> list[Path]:
    """The newest `most` stored runs of `like`'s key that may be a baseline: whole, trusted, not of a night that failed
    or was refused (a regression would become the new normal), and not from before `since` (UTC)."""
    key = key_facts(like, ignored)
    return [run.path for run in runs if _usable(run, since) and _alike(run, key, ignored)][-most:]


def _alike(run: Stored, key: dict[str, str], ignored: Sequence[Treatment]) -> bool:
    return run.info is not None and key_facts(run.info, ignored) == key


def _usable(run: Stored, since: date | None) -> bool:
    if run.info is None or run.problem is not None or status_text(run.info, run.path) != "done":
        return False
    if run.info.trust is None or run.info.trust.verdict != "ok":
        return False
    if run.info.rules is not None and not run.info.rules.valid:
        return False
    if run.night is not None and (run.night.verdict in (None, "fail", "refused")):
        return False
    at = moment(run.info.started_at)
    return since is None or (at is not None and at.date() >= since)


def history(directory: Path) -> dict[str, Any]:
    """What `kvbench history --json` prints.

    keys: one for each trace, configuration, endpoint and model, and each side of a job (`side`: base, candidate or
    null), with `nights` [{night, status, verdict, servers, runs, values, all}]; values: a mean over the night's runs
    for each of SERIES, geometric but for shares, null = not reported; all: the same of each run. Runs that are not
    whole or not trusted are in `left_out` with the reason, and in no value.
    """
    groups: dict[tuple[str, str | None], list[Stored]] = defaultdict(list)
    left_out: list[dict[str, str]] = []
    for run in stored_runs(directory):
        if run.info is None or run.problem is not None:
            left_out.append({"run": str(run.path), "reason": run.problem or ""})
        else:
            groups[key_id(key_facts(run.info)), run.made.side if run.made is not None else None].append(run)
    keys = [_group(key, side, runs, left_out) for (key, side), runs in groups.items()]
    return {"directory": str(directory), "keys": [key for key in keys if key["nights"]], "left_out": left_out}


def _group(key: str, side: str | None, runs: list[Stored], left_out: list[dict[str, str]]) -> dict[str, Any]:
    nights: dict[str, list[dict[str, float | None]]] = defaultdict(list)
    told: dict[str, dict[str, str | None]] = {}
    servers: dict[str, dict[str, None]] = defaultdict(dict)
    first = runs[0].info
    assert first is not None
    for stored in runs:
        try:
            values = _values(stored)
        except KvbenchError as error:
            left_out.append({"run": str(stored.path), "reason": error.message})
            continue
        nights[stored.night_id].append(values)
        of = stored.night
        assert stored.info is not None
        servers[stored.night_id][str(stored.info.server.get("server"))] = None
        told[stored.night_id] = {
            "status": None if of is None else of.status,
            "verdict": None if of is None else of.verdict,
        }
    names = [metric_name(*series) for series in SERIES]
    return {
        "key": key,
        "side": side,
        "trace": first.trace.get("name"),
        "trace_sha256": first.trace.get("sha256"),
        "endpoint": "simulated" if first.endpoint.get("simulated") else first.endpoint.get("url"),
        "model": first.server.get("model"),
        "servers": list(dict.fromkeys(str(run.info.server.get("server")) for run in runs if run.info is not None)),
        "nights": [
            {
                "night": night,
                **told[night],
                "servers": list(servers[night]),
                "runs": len(values),
                "values": {name: _mean(name, [run[name] for run in values]) for name in names},
                "all": {name: [run[name] for run in values] for name in names},
            }
            for night, values in nights.items()
        ],
    }


def metric_name(word: str, stat: str | None) -> str:
    return word if stat is None else f"{word}.{stat}"


def _values(stored: Stored) -> dict[str, float | None]:
    run = load_run(stored.path)
    status = status_text(run.info, run.path)
    if status != "done":
        raise InputError(f"is {status}")
    summary = summarise(run)
    if summary.trust.verdict != "ok":
        raise InputError(f"is degraded: {'; '.join(summary.trust.reasons)}")
    if summary.rules is not None and not summary.rules.valid:
        raise InputError(f"is not valid by the {summary.rules.name} rules: {'; '.join(summary.rules.reasons)}")
    ran = measured(run)
    return {metric_name(word, stat): statistic(ran, BY_WORD[word].name, stat) for word, stat in SERIES}


def _mean(name: str, values: Sequence[float | None]) -> float | None:
    told = np.array([value for value in values if value is not None], dtype=float)
    if len(told) < len(values) or not len(told):
        return None
    if BY_WORD[name.partition(".")[0]].unit == "1" or (told <= 0).any():
        return float(told.mean())
    return float(np.exp(np.log(told).mean()))
