"""`kvbench nightly`: the whole of a nightly job, from the first hook to one exit code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvbench.cli.gate_outputs import GateOutputs, GithubOption, JunitOption, MarkdownOption, OpenMetricsOption
from kvbench.cli.output import say, verdict_code

if TYPE_CHECKING:
    from kvbench.analysis.gate.judge import Judged
    from kvbench.analysis.nights.spec import Goals, NightlySpec
    from kvbench.replay.night import Bench, Half
    from kvbench.runs.night import Night, Side


def nightly(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.toml", help="What the job does: docs/nightly.md.")],
    junit: JunitOption = None,
    markdown: MarkdownOption = None,
    openmetrics: OpenMetricsOption = None,
    github: GithubOption = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run base and candidate in turn and judge: exit 0 pass, 1 fail, 3 inconclusive or refused, 4 not done."""
    import msgspec

    from kvbench.analysis.nights.spec import load_spec
    from kvbench.render.gatetext import gate_lines
    from kvbench.render.jsonout import json_text

    outputs = GateOutputs(junit, markdown, openmetrics, github).check()
    loaded, goals = load_spec(spec)
    halves = _halves(loaded, spec)
    directory = spec.parent / loaded.directory
    with _only_one(directory), _told_to_end():
        night = _Night(loaded, goals, spec, directory)
        judged = night.run(halves)
    plain = msgspec.to_builtins(judged)
    title = f"kvbench nightly {night.dir.name}"
    own = GateOutputs(night.dir / "junit.xml", night.dir / "summary.md", night.dir / "gate.om")
    for each in (own, outputs):
        each.write(plain, title)
    told = {"night": str(night.dir), "runs": night.listed(), "stored": list(night.state.stored), **plain}
    encoded = json_text(told)
    (night.dir / "gate.json").write_text(encoded + "\n", encoding="utf-8")
    say(encoded if json else "\n".join([*gate_lines(plain), f"night: {night.dir}"]))
    raise typer.Exit(verdict_code(judged.verdict))


def _halves(spec: NightlySpec, path: Path) -> dict[Side, Half]:
    from kvbench.replay.night import Half, run_arguments

    settings = run_arguments(spec.run, path)
    halves: dict[Side, Half] = {}
    sides: list[tuple[Side, Any]] = [("base", spec.base), ("candidate", spec.candidate)]
    for name, side in sides:
        if side is not None:
            model = ("--model", side.model) if side.model is not None else ()
            halves[name] = Half(name, ("--endpoint", side.endpoint, *model, *settings), side.before_run)
    return halves


@contextlib.contextmanager
def _only_one(directory: Path) -> Iterator[None]:
    """Two jobs at a time would each be the other's load."""
    import fcntl

    from kvbench.errors import FailedError, UsageError

    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / ".lock").open("w")
    except OSError as error:
        raise FailedError(f"{directory}: cannot be written: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{directory}: another nightly job is running", hint="wait for it: each would be the other's load"
            ) from None
        yield


@contextlib.contextmanager
def _told_to_end() -> Iterator[None]:
    """SIGTERM, and a terminal that closes, end a night as Ctrl-C does: the run is ended and the night noted."""
    import signal
    from types import FrameType

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    before = [(number, signal.signal(number, stop)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


class _Night:
    """One night: its directory, and night.json as it goes on."""

    def __init__(self, spec: NightlySpec, goals: Goals, path: Path, directory: Path) -> None:
        import secrets

        import msgspec

        from kvbench import __version__
        from kvbench.runs.night import Night

        self.spec, self.goals, self.path = spec, goals, path
        self.directory = directory.resolve()
        started = _now()
        name = f"{started[:19].replace('-', '').replace(':', '')}Z-{secrets.token_hex(3)}"
        self.dir = self.directory / name
        (self.dir / "runs").mkdir(parents=True)
        self.state: Night = Night(
            kvbench_version=__version__,
            night=name,
            status="started",
            started_at=started,
            spec=msgspec.to_builtins(spec),
        )

    def run(self, halves: dict[Side, Half]) -> Judged:
        from dataclasses import replace

        from kvbench.errors import KvbenchError

        self._note()
        try:
            judged = self._against_base(halves) if self.spec.base is not None else self._against_stored(halves)
        except KeyboardInterrupt:
            self._note(status="interrupted", ended_at=_now())
            typer.echo(f"night: {self.dir} is INCOMPLETE (interrupted)", err=True)
            raise
        except KvbenchError as error:
            self._note(status="failed", ended_at=_now(), failure=error.message)
            raise
        self._note(status="done", ended_at=_now(), verdict=judged.verdict)
        return replace(judged, notes=[*judged.notes, *self._repeated()])

    def _repeated(self) -> list[str]:
        sides = [made.side for made in self.state.runs if made.repeated]
        if not sides:
            return []
        each = ", ".join(f"{sides.count(side)} {side}" for side in dict.fromkeys(sides))
        return [f"degraded by the client's own lag, so made again: {each}; where one side has most, look at why"]

    def listed(self) -> list[dict[str, Any]]:
        return [
            {"run": str(self.dir / r.run), "side": r.side, "confirming": r.confirming, "repeated": r.repeated}
            for r in self.state.runs
        ]

    def _against_base(self, halves: dict[Side, Half]) -> Judged:
        from kvbench.analysis.gate.judge import Judged
        from kvbench.analysis.nights.verdict import early_refusals, judge_sides
        from kvbench.replay.night import interleaved

        order = interleaved(self.spec.runs, base=True)
        checked = False
        for _ in self._make(halves, order):
            if not checked and self._paths("base") and self._paths("candidate"):
                checked = True
                reasons = early_refusals(self._paths("base")[0], self._paths("candidate")[0], self.goals)
                if reasons:
                    return Judged("refused", _no_figures(self.goals), reasons, ["stopped after one run a side"])
        return judge_sides(self._paths("base"), self._paths("candidate"), self.goals)

    def _against_stored(self, halves: dict[Side, Half]) -> Judged:
        from kvbench.analysis.gate.decide import enough
        from kvbench.analysis.gate.judge import Judged
        from kvbench.analysis.nights.history import baseline, stored_runs
        from kvbench.analysis.nights.verdict import LEAST_STORED, confirmed, judge_stored
        from kvbench.replay.night import interleaved
        from kvbench.runs.reader import load_info

        assert self.spec.history is not None
        order = interleaved(self.spec.runs, base=False)
        tonight = [self.dir / made.run for made in self._make(halves, order) if not made.repeated]
        stored = baseline(
            stored_runs(self.directory),
            load_info(tonight[0]),
            self.goals.treatments,
            most=self.spec.history.runs,
            since=self.spec.history.since,
        )
        self._note(stored=tuple(path.name for path in stored))
        relative = any(gate.kind != "value" for gate in self.goals.gates)
        if relative and not enough(len(stored), len(tonight)):
            said = f"{len(stored)} stored runs of this trace, configuration, endpoint and model: {LEAST_STORED}"
            return Judged("inconclusive", _no_figures(self.goals, "inconclusive", said), [], [])
        first = judge_stored(stored, tonight, self.goals)
        if first.verdict != "fail":
            return first
        again = [self.dir / m.run for m in self._make(halves, order, confirming=True) if not m.repeated]
        return confirmed(first, judge_stored(stored, again, self.goals))

    def _make(self, halves: dict[Side, Half], order: list[Side], *, confirming: bool = False) -> Iterator[Any]:
        from kvbench.replay.night import Bench, make_runs

        where: Bench = Bench(self.spec.trace, self.path.parent.resolve(), self.dir, self.spec.hook_timeout_s)
        for made in make_runs(where, halves, order, confirming=confirming):
            self._note(runs=(*self.state.runs, made))
            yield made

    def _paths(self, side: Side) -> list[Path]:
        return [self.dir / made.run for made in self.state.runs if made.side == side and not made.repeated]

    def _note(self, **changes: Any) -> None:
        from msgspec.structs import replace

        from kvbench.runs.night import write_night

        self.state = replace(self.state, **changes)
        write_night(self.dir, self.state)


def _no_figures(goals: Goals, verdict: str = "refused", reason: str | None = None) -> list[dict[str, Any]]:
    from kvbench.analysis.gate.judge import unjudged

    return [unjudged(gate, verdict, reason) for gate in goals.gates]


def _now() -> str:
    from datetime import UTC, datetime

    return datetime.now(UTC).isoformat(timespec="milliseconds")
