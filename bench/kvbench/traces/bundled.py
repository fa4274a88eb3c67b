"""Workloads that come with kvbench, found by name."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from kvbench.errors import InputError


def resolve_trace(name: str) -> Path:
    """Path of the trace file `name`, or of the bundled workload of that name if there is no such file.

    Raises InputError naming the bundled workloads. A name with a directory in it is only ever a path.
    """
    path = Path(name)
    try:
        if name and path.exists():
            return path
    except (OSError, ValueError):
        raise InputError("not a usable file name", path=name[:200]) from None
    bundled = bundled_workloads()
    found = bundled.get(name) or bundled.get(f"{name}.jsonl")
    if found is not None:
        return found
    raise InputError(
        "no such file, and no bundled workload of that name",
        path=name,
        hint=f"bundled workloads: {', '.join(sorted(bundled)) or 'none'}",
    )


def bundled_workloads() -> dict[str, Path]:
    """Bundled traces by file name."""
    folder = resources.files("kvbench") / "workloads"
    if not folder.is_dir():
        return {}
    return {entry.name: Path(str(entry)) for entry in folder.iterdir() if entry.name.endswith(".jsonl")}
