"""What a nightly job does, as TOML (docs/nightly.md), checked before hours of runs depend on it."""

from __future__ import annotations

import datetime
import math
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from kvbench.analysis.gate.decide import MIN_RUNS, enough
from kvbench.analysis.gate.expression import Gate, parse_fail_if, parse_slo
from kvbench.analysis.gate.validity import Treatment
from kvbench.analysis.metrics import PRICED
from kvbench.analysis.slo import Slo
from kvbench.errors import InputError, KvbenchError, UsageError
from kvbench.prices.load import bundled_books, load_prices
from kvbench.prices.pricing import PriceList


class SideSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """endpoint: as `kvbench run --endpoint`. before_run: a shell command before each of its runs."""

    endpoint: str
    model: str | None = None
    before_run: str | None = None


class HistorySpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """runs: at most this many stored ones, the newest, are the baseline. since: none from before this day (UTC)."""

    runs: int = 20
    since: datetime.date | None = None


class NightlySpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Paths start at the spec's own directory. runs: a side. prices: books, for gates on cost. run: options of `kvbench
    run`, by the names that run.json has under `settings`."""

    trace: str
    candidate: SideSpec
    base: SideSpec | None = None
    history: HistorySpec | None = None
    directory: str = "nights"
    runs: int = 5
    fail_if: tuple[str, ...] = ()
    slo: tuple[str, ...] = ()
    treatment: tuple[str, ...] = ()
    prices: tuple[str, ...] = ()
    hook_timeout_s: float = 600.0
    run: dict[str, Any] = {}


class Goals(msgspec.Struct, frozen=True):
    """The spec's expressions, parsed. prices: None where no gate needs any."""

    gates: list[Gate]
    slos: tuple[Slo, ...]
    treatments: list[Treatment]
    prices: PriceList | None = None


def load_spec(path: Path) -> tuple[NightlySpec, Goals]:
    """InputError names the file and the field."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
        spec = msgspec.convert(given, NightlySpec)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from None
    except UnicodeDecodeError:
        raise InputError("not UTF-8", path=path) from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"not TOML: {error}", path=path) from None
    except msgspec.ValidationError as error:
        raise InputError(str(error), path=path, hint="docs/nightly.md has all fields") from None
    goals = _goals(spec, path)
    _check(spec, goals, path)
    return spec, goals


def _goals(spec: NightlySpec, path: Path) -> Goals:
    def parsed(field: str, parse: Any) -> list[Any]:
        try:
            return [parse(text) for text in getattr(spec, field)]
        except KvbenchError as error:
            raise InputError(error.message, path=path, field=field, hint=error.hint) from None

    absolute = parsed("slo", parse_slo)
    gates = parsed("fail_if", parse_fail_if) + [goal for goal in absolute if not isinstance(goal, Slo)]
    slos = tuple(goal for goal in absolute if isinstance(goal, Slo))
    return Goals(gates, slos, parsed("treatment", Treatment.parse), _prices(spec, gates, path))


def _prices(spec: NightlySpec, gates: list[Gate], path: Path) -> PriceList | None:
    if not spec.prices and not any(gate.metric.word in PRICED for gate in gates):
        return None
    try:
        return load_prices([name if name in bundled_books() else str(path.parent / name) for name in spec.prices])
    except UsageError as error:
        raise InputError(error.message, path=path, field="prices", hint=error.hint) from None


def _check(spec: NightlySpec, goals: Goals, path: Path) -> None:
    def wrong(field: str, said: str, hint: str | None = None) -> InputError:
        return InputError(said, path=path, field=field, hint=hint)

    if not goals.gates:
        raise wrong("fail_if", "nothing to judge by", 'for example fail_if = ["ttft.geomean>+3%", "errors>1%"]')
    relative = [gate for gate in goals.gates if gate.kind != "value"]
    if (spec.base is None) == (spec.history is None):
        raise wrong("base", "either [base], run tonight beside the candidate, or [history], stored runs", None)
    if spec.history is not None and spec.history.runs < 1:
        raise wrong("history.runs", f"{spec.history.runs}: must be 1 or more")
    baseline = spec.runs if spec.history is None else spec.history.runs
    least = MIN_RUNS if not relative else next(n for n in range(MIN_RUNS, 100) if enough(n if spec.base else 20, n))
    if spec.runs < least:
        raise wrong("runs", f"{spec.runs} a side can give no verdict: at least {least}")
    if relative and not enough(baseline, spec.runs):
        raise wrong("history.runs", f"{baseline} stored and {spec.runs} new runs can give no verdict: 7 and 3 can")
    if not (math.isfinite(spec.hook_timeout_s) and spec.hook_timeout_s > 0):
        raise wrong("hook_timeout_s", "must be more than 0 seconds")
    if spec.run.get("salt") == "none":
        sides = [side for side in (spec.base, spec.candidate) if side is not None]
        if any(side.before_run is None for side in sides):
            raise wrong(
                "run.salt",
                "with salt none each run hits what the one before left, so every side needs a before_run that "
                "empties the cache",
                "leave salt out: each run then has a cache namespace of its own",
            )
