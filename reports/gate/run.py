"""How often does `kvbench gate` err? By simulation, with the gate's own decision functions, and over HTTP.

    make gate-report    # some three minutes; writes results.json and README.md beside this file
    python reports/gate/run.py --quick     # a few replicates, no HTTP, printed and not written
    python reports/gate/run.py --simulate  # keeps what was found over HTTP
    python reports/gate/run.py --http      # keeps what was simulated
    python reports/gate/run.py --render    # README.md anew from results.json

Exit code 1 when a rate is beyond its limit.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from over_http import nights, over_http  # noqa: E402
from simulate import cell, drift, request_cell, shared, stored  # noqa: E402

from kvbench.analysis.gate.power import fail_power, pass_power  # noqa: E402

HEAD = """\
# How often does the gate err?

`make gate-report` makes runs at random, has them judged by the functions that `kvbench gate` judges with, and writes
this page; it fails when a rate is beyond its limit.

The rule is that of [docs/gate.md](../../docs/gate.md): FAIL when p < 1% (Holm over the gates) and the ratio is above
1.03; PASS when the one-sided 95% upper bound is below 1.05; else inconclusive.

- "Is it worse" is what p answers, so at a true +3% about a third (5 + 5) to half (10 + 10) of the comparisons FAIL.
- At +5% and 5 + 5 runs the chance of FAIL is {five:.1%} exactly, a hair below 80%; 6 + 6 have {six:.0%}.
- Holm over three gates costs power where one metric alone changes: the rows with 3 gates say how much.
- Where the noise is so large that the threshold of 3% changes nothing, the rate of false alarms is 1% by
  construction: its limit has two standard errors of the simulation added.
- What runs of one side share (a server start, a night) is invisible inside the side and becomes a false alarm:
  interleave, and start the server anew for each run, or for each run of neither side."""

SEED = 8
RUN_REPLICATES, REQUEST_REPLICATES = 20_000, 2_000
DESIGNS = ((5, 5), (7, 7), (10, 10), (20, 3))
THRESHOLD, PASS_BOUND, NOISE = float(np.log(1.03)), float(np.log(1.05)), 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few replicates, no HTTP, nothing written")
    parser.add_argument("--simulate", action="store_true", help="keep what was found over HTTP")
    parser.add_argument("--http", action="store_true", help="keep what was simulated")
    parser.add_argument("--render", action="store_true", help="simulate nothing")
    arguments = parser.parse_args()
    if arguments.render or arguments.http:
        results = json.loads((HERE / "results.json").read_text())
        if arguments.http:
            results |= {"http": over_http(), "nights": nights()}
    else:
        results = measure(RUN_REPLICATES // 10, 250) if arguments.quick else measure(RUN_REPLICATES, REQUEST_REPLICATES)
        if arguments.simulate:
            kept = json.loads((HERE / "results.json").read_text())
            results |= {name: kept[name] for name in ("http", "nights")}
        else:
            http = (None, None) if arguments.quick else (over_http(), nights())
            results |= {"http": http[0], "nights": http[1]}
    if arguments.quick:
        print(render(results))
    else:
        (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        (HERE / "README.md").write_text(render(results))
    beyond = [check["what"] for check in checks(results) if not check["holds"]]
    for what in beyond:
        print(f"beyond its limit: {what}", file=sys.stderr)
    sys.exit(bool(beyond))


def measure(run_replicates: int, request_replicates: int) -> dict[str, Any]:
    rng = np.random.default_rng(SEED)
    began = time.monotonic()
    designs = [
        {"n": n, "gates": gates, "effect": effect, **cell(rng, run_replicates, *n, effect=effect, gates=gates)}
        for n in DESIGNS
        for gates in (1, 3)
        for effect in (1.0, 1.03, 1.05, 1.1)
    ]
    orders = [
        {"what": f"4% drift, {order}", **cell(rng, run_replicates, 5, 5, add=drift(order, 0.04))}
        for order in ("BBBBBNNNNN", "BNBNBNBNBN", "BNNBBNNBBN")
    ]
    orders += [
        {
            "what": "one start of the server a side, as different from each other as runs are (2%)",
            **cell(rng, run_replicates, 5, 5, add=shared(5, 5, 0.02)),
        },
        {
            "what": "20 stored + 3 new, the new ones of one night (1% apart, 1.7% inside)",
            **cell(rng, run_replicates, 20, 3, noise=0.0173, add=tonight),
        },
    ]
    load = [
        {
            "n": n,
            "utilisation": utilisation,
            "effect": effect,
            **request_cell(rng, request_replicates, n, effect=effect, utilisation=utilisation),
        }
        for n, utilisation, effect in (
            *((5, 0.35, effect) for effect in (1.0, 1.05, 1.1)),
            *((10, 0.35, effect) for effect in (1.0, 1.05)),
            *((5, utilisation, 1.1) for utilisation in (0.44, 0.58, 0.75)),
        )
    ]
    nights = [
        {
            "run_sd": run_sd,
            **{
                f"{when}, {change}": stored(rng, run_replicates, run_sd, lasting=lasting, effect=effect)
                for when, lasting in (("another", 0.0), ("lasts", 1.0))
                for change, effect in (("A/A", 1.0), ("+5%", 1.05), ("+10%", 1.1))
            },
        }
        for run_sd in (0.02, 0.01)
    ]
    return {
        "at": datetime.now(UTC).isoformat(timespec="minutes"),
        "seed": SEED,
        "run_replicates": run_replicates,
        "request_replicates": request_replicates,
        "took_s": round(time.monotonic() - began, 1),
        "versions": {name: version(name) for name in ("kvbench", "numpy", "scipy")},
        "designs": designs,
        "orders": orders,
        "load": load,
        "stored": nights,
    }


def exact(n: tuple[int, int], effect: float) -> float:
    """FAIL of one gate at 2% run noise: the noncentral t, cut by the threshold."""
    return fail_power(*n, NOISE, float(np.log(effect)), threshold=THRESHOLD)


def tonight(rng: np.random.Generator, replicates: int) -> tuple[Any, Any]:
    """Each stored run has a night of its own; the new ones share tonight's."""
    return rng.normal(0, 0.01, (replicates, 20)), np.repeat(rng.normal(0, 0.01, (replicates, 1)), 3, axis=1)


def checks(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Each limit with what was found. Power of 80% at 5 + 5 is meant to the nearest per cent: see the page.

    Where the noise is so large that the threshold of the ratio changes nothing, the rate of false alarms is 1% by
    construction, and its estimate lies on either side: false alarms may be beyond by two standard errors.
    """

    def design(n: tuple[int, int], gates: int, effect: float) -> dict[str, Any]:
        return next(r for r in results["designs"] if (tuple(r["n"]), r["gates"], r["effect"]) == (n, gates, effect))

    def load(n: int, effect: float) -> dict[str, Any]:
        return next(
            r["geomean"] for r in results["load"] if (r["n"], r["utilisation"], r["effect"]) == (n, 0.35, effect)
        )

    abba = next(r for r in results["orders"] if r["what"].endswith("BNNBBNNBBN"))
    found = [
        *((f"A/A, {n[0]} + {n[1]}, family of {g}: any FAIL", design(n, g, 1.0)["family_fail"], "at most", 0.01)
          for n in DESIGNS for g in (1, 3)),
        *((f"+5%, {n[0]} + {n[1]}: wrong PASS", design(n, 1, 1.05)["pass"], "at most", 0.05) for n in DESIGNS),
        ("+5% on one metric, 5 + 5: FAIL", design((5, 5), 1, 1.05)["fail"], "at least", 0.795),
        ("+5% on one metric, 10 + 10: FAIL", design((10, 10), 1, 1.05)["fail"], "at least", 0.98),
        ("4% drift, interleaved ABBA: FAIL", abba["fail"], "at most", 0.01),
        ("requests, +10%, 5 + 5: FAIL", load(5, 1.1)["fail"], "at least", 0.90),
        ("requests, A/A, 5 + 5: FAIL", load(5, 1.0)["fail"], "at most", 0.01),
        ("requests, A/A, 10 + 10: FAIL", load(10, 1.0)["fail"], "at most", 0.01),
    ]  # fmt: skip
    rows = []
    for what, value, side, limit in found:
        n = results["request_replicates" if what.startswith("requests") else "run_replicates"]
        error = 2 * (limit * (1 - limit) / n) ** 0.5 if "A/A" in what else 0.0
        rows.append(
            {
                "what": what,
                "found": value,
                "limit": f"{side} {limit:.1%}" + (f" + {error:.1%}" if error else ""),
                "holds": value <= limit + error if side == "at most" else value >= limit,
            }
        )
    return rows


def render(results: dict[str, Any]) -> str:
    parts = [
        HEAD.format(five=exact((5, 5), 1.05), six=exact((6, 6), 1.05)),
        f"Made {results['at']}, seed {results['seed']}, in {results['took_s']:.0f} s: "
        f"{results['run_replicates']:,} replicates a cell where runs are drawn, {results['request_replicates']:,} "
        f"where requests are; {', '.join(f'{k} {v}' for k, v in results['versions'].items())}.",
        "## Limits\n\n"
        + table(
            ["", "found", "limit", ""],
            [
                [c["what"], f"{c['found']:.2%}", c["limit"], "holds" if c["holds"] else "**beyond**"]
                for c in checks(results)
            ],
        ),
        "## Designs\n\nRun noise 2%; the change is in one metric, FAIL / PASS / inconclusive of its gate in %.\n\n"
        + table(
            ["runs", "gates", "A/A", "+3%", "+5%", "+10%"],
            [
                [f"{n[0]} + {n[1]}", str(gates)]
                + [three(r) for r in results["designs"] if (tuple(r["n"]), r["gates"]) == (n, gates)]
                for n in DESIGNS
                for gates in (1, 3)
            ],
        ),
        "## Simulated and exact\n\nOne gate, 2% run noise, as simulated and as `kvbench gate` works it out for the "
        "spread that it finds. For 20 + 3 that is the pooled test's: where the few new runs happen to spread otherwise "
        "than the stored ones, Welch's takes its place, and the power is a little less.\n\n"
        + table(
            ["runs", *(f"FAIL at {change}" for change in ("A/A", "+3%", "+5%", "+10%")), "PASS at A/A"],
            [
                [f"{n[0]} + {n[1]}"]
                + [f"{r['fail']:.2%}, exact {exact(n, r['effect']):.2%}" for r in _alone(results, n)]
                + [f"{_alone(results, n)[0]['pass']:.2%}, exact {pass_power(*n, NOISE, pass_bound=PASS_BOUND):.2%}"]
                for n in DESIGNS
            ],
        ),
        "## Orders and shared effects\n\nNothing changed; one gate, 2% run noise.\n\n"
        + table(["", "FAIL / PASS / inconclusive, %"], [[r["what"], three(r)] for r in results["orders"]]),
        "## Against stored runs\n\nThree runs of tonight against 20 of seven earlier nights, one gate, 2% of noise "
        "between nights. A FAIL has to be confirmed by a second set of runs: by then the night's noise is another, or "
        "all of it lasts.\n\n" + table(list(STORED_HEAD), [stored_row(row) for row in results["stored"]]),
        "## Requests, a queue, stragglers and congestion\n\n2,000 requests a run, 200 sessions.\n\n"
        + table(
            ["runs", "utilisation", "change", "geometric mean", "p95"],
            [
                [
                    f"{r['n']} + {r['n']}",
                    f"{r['utilisation']:.2f}",
                    "A/A" if r["effect"] == 1 else f"+{r['effect'] - 1:.0%}",
                    three(r["geomean"]),
                    three(r["p95"]),
                ]
                for r in results["load"]
            ],
        ),
    ]
    if results["http"]:
        parts.append(
            "## Over HTTP\n\nThe simulated endpoint, 5 + 5 runs of 40 turns in the order ABBA, `kvbench gate "
            "--fail-if 'ttft.geomean>+3%'`; prefill of 100 us a token, and 110 us. As a night: the same by `kvbench "
            "nightly`.\n\n"
            + table(
                ["", "verdict", "ratio", "90% interval", "spread", "p", "refused for"],
                [
                    [
                        r["what"] + (f", as a night (exit code {r['exit_code']})" if "exit_code" in r else ""),
                        r["verdict"],
                        f"{r['ratio']:.4f}",
                        f"{r['low']:.4f} to {r['high']:.4f}",
                        f"{r['spread']:.2%}",
                        f"{r['p']:.2g}",
                        "; ".join(r["reasons"]) or "-",
                    ]
                    for r in (*results["http"], *results["nights"])
                ],
            )
        )
    return "\n\n".join(parts) + "\n"


STORED_HEAD = (
    "noise between runs",
    "first runs fail, nothing changed",
    "confirmed, the night's noise is another by then",
    "confirmed, all of it lasts",
    "+5% found",
    "+10% found",
)


def stored_row(row: dict[str, Any]) -> list[str]:
    """As docs/nightly.md has it, too."""

    def between(change: str) -> str:
        shares = sorted(row[f"{when}, {change}"]["confirmed"] for when in ("another", "lasts"))
        low, high = (f"{share * 100:.0f}" for share in shares)
        return f"{low}%" if low == high else f"{low} to {high}%"

    first = [row[f"{when}, A/A"]["first"] for when in ("another", "lasts")]
    return [
        f"{row['run_sd']:.0%}",
        f"{sum(first) / 2:.1%}",
        f"{row['another, A/A']['confirmed']:.1%}",
        f"{row['lasts, A/A']['confirmed']:.1%}",
        between("+5%"),
        between("+10%"),
    ]


def _alone(results: dict[str, Any], n: tuple[int, int]) -> list[dict[str, Any]]:
    return [r for r in results["designs"] if (tuple(r["n"]), r["gates"]) == (n, 1)]


def three(found: dict[str, float]) -> str:
    return " / ".join(f"{found[name] * 100:.1f}" for name in ("fail", "pass", "inconclusive"))


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
