"""The runs of one night: in the order A B B A, each after its side's hook, each a `kvbench run` of its own.

A process a run, so that every run begins with the same client, and can be repeated by its `command`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kvbench.errors import EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, EXIT_OK, FailedError, InputError, KvbenchError
from kvbench.replay.settings import RunSettings
from kvbench.runs import agentx
from kvbench.runs.night import NightRun, Side, records_sha256

HOOK_LOG = "hooks.log"
GRACE_S = 30.0
"""What a run that is told to end may take for what is in flight."""
_FLAGS = {"max_pause_s": "--max-pause", "duration_s": "--duration"}
_TAIL = 2000


@dataclass(frozen=True)
class Half:
    """One side of a night. arguments: of `kvbench run`, after the trace."""

    side: Side
    arguments: tuple[str, ...]
    before_run: str | None = None


@dataclass(frozen=True)
class Bench:
    """Where and how a night's runs are made. cwd: where relative paths and hooks start; out: the night's directory."""

    trace: str
    cwd: Path
    out: Path
    hook_timeout_s: float


def run_arguments(settings: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    """`[run]` as options of `kvbench run`; InputError for a field or a value that it does not take."""
    allowed = RunSettings.__struct_fields__
    for name in settings:
        if name not in allowed:
            raise InputError(f"no such option; allowed: {', '.join(allowed)}", path=path, field=f"run.{name}")
    try:
        msgspec.convert(dict(settings), RunSettings).check()
    except msgspec.ValidationError as error:
        raise InputError(str(error), path=path, field="run") from None
    except KvbenchError as error:
        raise InputError(error.message, path=path, field="run", hint=error.hint) from None
    _refuse_overridden(settings, path)
    words = [(_FLAGS.get(name, "--" + name.replace("_", "-")), str(value)) for name, value in settings.items()]
    return tuple(word for pair in words for word in pair)


def _refuse_overridden(settings: Mapping[str, Any], path: Path) -> None:
    """Runs that no gate would judge are not made."""
    if settings.get("rules") is None:
        return
    reasons = list(agentx.by_settings(msgspec.to_builtins(RunSettings.of(**settings))))
    if reasons:
        raise InputError(
            f"the runs would not be valid by the agentx rules, and the gate refuses such: {'; '.join(reasons)}",
            path=path,
            field="run",
            hint="leave out of [run] what the rules fix, or leave rules out",
        )


def interleaved(runs: int, *, base: bool) -> list[Side]:
    """ABBAABBA...: a drift in time then weighs on both sides alike."""
    if not base:
        return ["candidate"] * runs
    pairs: list[tuple[Side, Side]] = [("base", "candidate"), ("candidate", "base")]
    return [side for i in range(runs) for side in pairs[i % 2]]


def make_runs(bench: Bench, halves: Mapping[Side, Half], order: list[Side], *, confirming: bool) -> Iterator[NightRun]:
    """Each run as it is done. One that was degraded by the client's own error is made again, once: the fault is none of
    the endpoint's, and would have the whole night refused.

    FailedError names the hook or the run that could not be; KeyboardInterrupt is raised again when the run has closed
    its directory.
    """
    for number, side in enumerate(order, start=1):
        label = f"run {number} of {len(order)} ({side})"
        for again in (False, True):
            run_dir, trusted = _one(bench, halves[side], label, number)
            yield NightRun(
                run=str(run_dir.relative_to(bench.out)),
                side=side,
                records_sha256=records_sha256(run_dir),
                confirming=confirming,
                repeated=not trusted and not again,
            )
            if trusted:
                break
            print(f"{label}: degraded{'' if again else ', so made again'}", file=sys.stderr)


def _one(bench: Bench, half: Half, label: str, number: int) -> tuple[Path, bool]:
    if half.before_run is not None:
        print(f"{label}: before_run", file=sys.stderr)
        run_hook(half.before_run, bench, side=half.side, number=number)
    print(label, file=sys.stderr)
    return _run(bench, half, label)


def run_hook(command: str, bench: Bench, *, side: Side, number: int) -> None:
    """In the shell, in the spec's directory, with KVBENCH_SIDE and KVBENCH_RUN. What it prints goes to hooks.log, so
    that a server it leaves in the background keeps no pipe of ours. FailedError for an exit code but 0, and for a
    command that takes too long, which is ended with all it started.
    """
    log = bench.out / HOOK_LOG
    with log.open("ab") as stream:
        stream.write(f"--- {side}, run {number}: {command}\n".encode())
        stream.flush()
        begin = stream.tell()
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            cwd=bench.cwd,
            env=os.environ | {"KVBENCH_SIDE": side, "KVBENCH_RUN": str(number)},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
        said = None
        try:
            code = process.wait(bench.hook_timeout_s)
            if code:
                said = f"ended with exit code {code}" if code > 0 else f"was ended by signal {-code}"
        except subprocess.TimeoutExpired:
            said = f"took more than {bench.hook_timeout_s:g} s"
        finally:
            # Not after it has ended well: what it left running is the server.
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if said is not None:
        raise FailedError(
            f"{side}.before_run {said}: {command}{_tail(log, begin)}", hint=f"all that hooks printed is in {log}"
        )


def _tail(log: Path, begin: int) -> str:
    with log.open("rb") as stream:
        stream.seek(begin)
        text = stream.read()[-_TAIL:].decode(errors="replace").strip()
    return f"\n{text}" if text else ""


def _ended(process: subprocess.Popen[bytes]) -> tuple[int, bool]:
    """The exit code, and whether we were told to end meanwhile: the run then ends by its own rules, so that nothing
    that was measured is lost. First it finishes what is in flight; at the next signal, or after GRACE_S, it aborts
    that; and then it is killed, with the endpoint it may have started.
    """
    told = 0
    while True:
        try:
            return process.wait(GRACE_S if told else None), told > 0
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            told += 1
            if told <= 2:
                process.send_signal(signal.SIGTERM)
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _run(bench: Bench, half: Half, label: str) -> tuple[Path, bool]:
    """The run's directory, and whether its own error allows its figures to be used."""
    out = bench.out / "runs"
    # -P: a directory named kvbench beside the spec is not the package.
    words = [sys.executable, "-P", "-m", "kvbench", "run", bench.trace, *half.arguments, "--out", str(out), "--json"]
    result = bench.out / "run.json.part"
    with result.open("wb") as stream:
        # A process group of its own: a Ctrl-C of the terminal reaches it once, through us, as any other signal does.
        process = subprocess.Popen(words, cwd=bench.cwd, stdin=subprocess.DEVNULL, stdout=stream, process_group=0)
        code, interrupted = _ended(process)
    told = result.read_bytes()
    result.unlink()
    if interrupted or code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    if code not in (EXIT_OK, EXIT_INCONCLUSIVE):
        error = FailedError(f"{label} ended with exit code {code}; its own message stands above")
        if code == 2:
            error.exit_code = 2
        raise error
    try:
        summary = msgspec.json.decode(told)
        return Path(summary["run"]).resolve(), summary["trust"] == "ok"
    except (msgspec.MsgspecError, KeyError, TypeError):
        raise FailedError(f"{label} ended with exit code {code} and named no run directory") from None
