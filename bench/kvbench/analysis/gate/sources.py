"""From what is written on the command line to the runs it means."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from kvbench.analysis.gate.evidence import Evidence, from_run
from kvbench.analysis.gate.foreign import load_results
from kvbench.analysis.slo import Slo
from kvbench.errors import InputError, UsageError
from kvbench.prices.pricing import PriceList
from kvbench.runs.night import NIGHT_FILE, load_night, records_sha256
from kvbench.runs.reader import RUNS_DIR, resolve_run
from kvbench.runs.writer import RUN_FILE


def expand(given: Sequence[str], base: Path = RUNS_DIR) -> list[str]:
    """Comma lists and globs (of paths, or of ids under `base`) as single names, in the order given. A name that is
    given twice stays twice: what it means is for the reader to judge. InputError where a glob matches nothing, or a
    directory is one of runs; UsageError for a text without a name, as a variable that is not set leaves it.
    """
    names: list[str] = []
    for text in given:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if not parts:
            raise UsageError(f"'{text}' names no run", hint="a run directory or id, a comma list, or a glob")
        names += [name for part in parts for name in _named(part, base)]
    return names


def _named(part: str, base: Path) -> list[str]:
    if glob.has_magic(part) and not Path(part).exists():
        found = sorted(glob.glob(part)) or sorted(glob.glob(str(base / part)))
        if not found:
            raise InputError("matches no run", path=part, hint="kvbench runs   lists the runs there are")
        return found
    if not (Path(part) / RUN_FILE).exists() and next(Path(part).glob(f"*/{RUN_FILE}"), None) is not None:
        raise InputError(
            "a directory of runs, not a run", path=part, hint=f"all that are in it: '{part.rstrip('/')}/*'"
        )
    return [part]


def run_directories(given: Sequence[str]) -> list[Path]:
    """The run directories meant. A directory of runs is not one run: a glob says which of it."""
    names = expand(given)
    for name in names:
        if Path(name).is_file() and Path(name).name != RUN_FILE:
            raise InputError(
                "a file: a comparison turn by turn needs run directories",
                path=name,
                hint="kvbench gate judges result files of other tools",
            )
    return [resolve_run(name) for name in names]


def load_side(given: Sequence[str], slos: tuple[Slo, ...] = (), prices: PriceList | None = None) -> list[Evidence]:
    """Runs of one side, kvbench's and other tools' results."""
    found: list[Evidence] = []
    for name in expand(given):
        path = Path(name)
        if path.is_file() and not (path.parent / RUN_FILE).is_file():
            found += load_results(path)
        else:
            run = resolve_run(name)
            one = from_run(run, slos, prices)
            found.append(replace(one, problems=(*one.problems, *_of_night(run))))
    return found


def _of_night(run: Path) -> Iterator[str]:
    """What the night that made a run says against it."""
    path = run.resolve().parent.parent
    if not (path / NIGHT_FILE).is_file():
        return
    try:
        night = load_night(path)
    except InputError as error:
        yield f"is of a night whose {NIGHT_FILE} cannot be read: {error.message}"
        return
    if night.status != "done":
        yield f"is of a night that is INCOMPLETE ({night.status})"
    made = next((each for each in night.runs if (path / each.run).resolve() == run.resolve()), None)
    if made is not None and made.records_sha256 != records_sha256(run):
        yield "has not the records that its night wrote"
