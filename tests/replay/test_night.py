"""A night's runs: their order, and hooks that fail, hang, or leave a server behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from kvbench.errors import FailedError, InputError
from kvbench.replay import night
from kvbench.replay.night import Bench, Half, interleaved, make_runs, run_arguments, run_hook


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    out = tmp_path / "night"
    out.mkdir()
    return Bench("t.jsonl", tmp_path, out, hook_timeout_s=30)


def test_sides_come_abba() -> None:
    assert "".join(side[0] for side in interleaved(5, base=True)) == "bccbbccbbc"
    assert interleaved(3, base=False) == ["candidate"] * 3


def test_a_hook_is_told_its_side_and_run(bench: Bench) -> None:
    run_hook('echo "$KVBENCH_SIDE $KVBENCH_RUN" > told.txt; echo noise', bench, side="candidate", number=3)
    assert (bench.cwd / "told.txt").read_text() == "candidate 3\n"
    assert (bench.out / "hooks.log").read_text().endswith("told.txt; echo noise\nnoise\n")


def test_a_failed_hook_is_named_with_what_it_said(bench: Bench) -> None:
    run_hook("echo earlier", bench, side="base", number=1)
    with pytest.raises(FailedError) as caught:
        run_hook("echo no such image >&2; exit 7", bench, side="base", number=2)
    assert caught.value.message == (
        "base.before_run ended with exit code 7: echo no such image >&2; exit 7\nno such image"
    )
    assert "hooks.log" in (caught.value.hint or "")


def test_a_hook_that_hangs_is_ended_with_all_it_started(bench: Bench) -> None:
    slow = Bench(bench.trace, bench.cwd, bench.out, hook_timeout_s=0.5)
    with pytest.raises(FailedError, match=r"candidate\.before_run took more than 0\.5 s: sleep 60 &"):
        run_hook("sleep 60 & echo $! > pid; wait", slow, side="candidate", number=1)
    pid = int((bench.cwd / "pid").read_text())
    # Ended, though it may stay a zombie until something reaps it.
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_what_a_hook_leaves_running_stays_and_holds_nothing_up(bench: Bench) -> None:
    run_hook("sleep 60 & echo $! > pid", bench, side="base", number=1)
    pid = int((bench.cwd / "pid").read_text())
    os.kill(pid, signal.SIGKILL)  # raises where it was gone already


def test_run_options_go_by_the_names_of_run_json(tmp_path: Path) -> None:
    given = {"time_scale": 0.2, "max_pause_s": 5, "duration_s": 60.0, "rate": 2, "rate_shape": "constant"}
    words = run_arguments(given, tmp_path / "spec.toml")
    assert words == (
        *("--time-scale", "0.2", "--max-pause", "5", "--duration", "60.0", "--rate", "2", "--rate-shape", "constant"),
    )


def test_runs_by_the_rules_are_asked_for_by_name(tmp_path: Path) -> None:
    words = run_arguments({"rules": "agentx", "sessions": 4, "duration_s": 1800.0}, tmp_path / "spec.toml")
    assert words == ("--rules", "agentx", "--sessions", "4", "--duration", "1800.0")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"speed": 2}, "run.speed: no such option; allowed: time_scale, max_pause_s"),
        ({"salt": "never"}, "Invalid enum value 'never'"),
        ({"rate": 1.0, "sessions": 2}, "exclude each other"),
        ({"rules": "agentx"}, "--rules agentx keeps N session trees live"),
        (
            {"rules": "agentx", "sessions": 4, "duration_s": 60.0, "salt": "run"},
            "valid by the agentx rules, and the gate refuses such: window 60 s < 900 s (--duration); plays shared",
        ),
    ],
)
def test_what_run_does_not_take_is_found_first(tmp_path: Path, given: dict[str, object], said: str) -> None:
    with pytest.raises(InputError) as caught:
        run_arguments(given, tmp_path / "spec.toml")
    assert said in caught.value.message
    assert "spec.toml" in caught.value.message


def test_a_run_that_its_client_degraded_is_made_again_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    trusted = iter([True, False, True, False, False, True])
    made: list[str] = []

    def run(where: Bench, half: Half, label: str) -> tuple[Path, bool]:
        made.append(label)
        path = where.out / "runs" / f"r{len(made)}"
        path.mkdir(parents=True)
        (path / "records.jsonl").write_text(f"{len(made)}\n")
        return path, next(trusted)

    monkeypatch.setattr(night, "_run", run)
    halves = {"base": Half("base", (), "echo again"), "candidate": Half("candidate", ())}
    runs = list(make_runs(bench, halves, interleaved(2, base=True), confirming=False))
    assert [(r.side[0], r.run, r.repeated) for r in runs] == [
        ("b", "runs/r1", False),
        ("c", "runs/r2", True),
        ("c", "runs/r3", False),
        ("c", "runs/r4", True),
        # Degraded twice: kept, and for the gate to refuse.
        ("c", "runs/r5", False),
        ("b", "runs/r6", False),
    ]
    assert (bench.out / "hooks.log").read_text().count("\nagain\n") == 2
