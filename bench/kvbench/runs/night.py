"""One night of a nightly job on disk: which runs were made for which side, and what came of them.

DIR/<night>/night.json    this, written anew after each run
            runs/         run directories
            gate.json, junit.xml, summary.md, gate.om
            hooks.log     what the hooks printed
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Literal

import msgspec

from kvbench.errors import FailedError, InputError
from kvbench.runs.writer import RECORDS_FILE

NIGHT_FILE = "night.json"
NIGHT_SCHEMA_VERSION = 1
"""History: 1 (0.1.0) first."""
Side = Literal["base", "candidate"]


class NightRun(msgspec.Struct, frozen=True, kw_only=True):
    """run: its directory, from the night's. records_sha256: of records.jsonl as the run left it. confirming: made to
    confirm a FAIL against stored runs. repeated: degraded by the client's own error, so made again and not judged."""

    run: str
    side: Side
    records_sha256: str
    confirming: bool = False
    repeated: bool = False


class Night(msgspec.Struct, frozen=True, kw_only=True):
    """night.json. spec: as read. stored: run ids of the baseline, where it was history. verdict: None until judged."""

    schema_version: int = NIGHT_SCHEMA_VERSION
    kvbench_version: str
    night: str
    status: Literal["started", "done", "failed", "interrupted"]
    started_at: str
    ended_at: str | None = None
    spec: dict[str, Any] = {}
    runs: tuple[NightRun, ...] = ()
    stored: tuple[str, ...] = ()
    verdict: Literal["pass", "fail", "inconclusive", "refused"] | None = None
    failure: str | None = None


def write_night(path: Path, night: Night) -> None:
    """Whole or not at all. FailedError where the disk does not take it."""
    temporary = path / f".{NIGHT_FILE}"
    try:
        with temporary.open("wb") as stream:
            stream.write(msgspec.json.format(msgspec.json.encode(night), indent=2) + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path / NIGHT_FILE)
    except OSError as error:
        raise FailedError(f"{path / NIGHT_FILE}: cannot be written: {error.strerror}") from None


def load_night(path: Path) -> Night:
    """night.json of a night's directory; InputError when it is broken, or of a newer kvbench."""
    file = path / NIGHT_FILE
    try:
        data = file.read_bytes()
        version = msgspec.json.decode(data).get("schema_version")
        if isinstance(version, int) and version > NIGHT_SCHEMA_VERSION:
            raise InputError(
                f"version {version}; this kvbench reads 1 to {NIGHT_SCHEMA_VERSION}",
                path=file,
                field="schema_version",
                hint="use the kvbench that made the night, or a newer one",
            )
        return msgspec.json.decode(data, type=Night)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=file) from None
    except (msgspec.MsgspecError, AttributeError, ValueError, RecursionError) as error:
        raise InputError(f"not a night's description: {error}", path=file) from None


def records_sha256(run_dir: Path) -> str:
    """InputError where the records cannot be read."""
    try:
        with (run_dir / RECORDS_FILE).open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=run_dir / RECORDS_FILE) from None
