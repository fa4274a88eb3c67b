"""The runs of a directory, a row each, whatever state they are in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvbench.analysis.measured import Measured, measured
from kvbench.analysis.metrics import distribution, scalar
from kvbench.errors import InputError, KvbenchError
from kvbench.runs import agentx
from kvbench.runs.reader import Run, load_run, status_text
from kvbench.runs.writer import RUN_FILE


def list_runs(directory: Path) -> list[dict[str, Any]]:
    """Rows in the order of their ids, which is that of time. `problem` says why a directory cannot be read as a run;
    the row's figures are then None. InputError when `directory` is none.
    """
    if not directory.is_dir():
        raise InputError("no such directory", path=directory, hint="kvbench runs DIR   where DIR is run's --out")
    if (directory / RUN_FILE).is_file():
        return [_row(directory)]
    return [_row(path) for path in sorted(directory.iterdir()) if path.is_dir() and not path.name.startswith(".")]


def _status(run: Run, ran: Measured) -> str:
    """What status_text says, and what makes the figures beside it doubtful."""
    parts = [status_text(run.info, run.path)]
    if run.info.trust is not None and run.info.trust.verdict == "degraded":
        parts.append("DEGRADED")
    rules = run.info.rules or agentx.check(run.info, run.records)
    if rules is not None and not rules.valid:
        parts.append(f"not valid by {rules.name}")
    failed = len(ran.finals) - len(ran.ok)
    if failed:
        parts.append(f"{failed:,} failed")
    return ", ".join(parts)


def _row(path: Path) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(
        ("run", "status", "started_at", "trace", "endpoint", "turns", "ttft_p50_s", "hit_rate", "problem")
    )
    row["run"] = path.name
    try:
        run = load_run(path)
    except KvbenchError as error:
        return row | {"problem": error.message}
    ran = measured(run)
    info = run.info
    return row | {
        "status": _status(run, ran),
        "started_at": info.started_at,
        "trace": info.trace.get("name") or info.name,
        "endpoint": info.endpoint.get("url"),
        "turns": len(ran.finals),
        "ttft_p50_s": distribution(ran, "ttft_s").p50,
        "hit_rate": scalar(ran, "hit_rate"),
    }
