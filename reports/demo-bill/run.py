"""A bill of the bundled demo run, verified: one honest, one with 5% more input tokens.

    make demo-bill    # a minute; rewrites the files beside this one

The bundled agent trace is replayed against the simulated DeepSeek API, whose clock says that it is Thursday, 15 October
2026, 40 s before the peak hours begin; it charges DeepSeek's prices, and its log says what. From the log the biller of
reports/pricing, which shares nothing with kvbench, writes the provider's usage export. The run is kept without its
texts, dated by the endpoint's clock.
"""

# ruff: noqa: E501  (lines of Markdown)

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "pricing"))

import biller  # noqa: E402

BEGIN = datetime(2026, 10, 15, 0, 59, 20, tzinfo=UTC)
PEAK = datetime(2026, 10, 15, 1, tzinfo=UTC)
OTHER_DATE = "2026-09-03"
"""Six weeks before, under the row that DeepSeek's list had until 10 September."""
SCALE = 0.04
RUN = "agent-demo"
ENDPOINT = """url = "{url}"
dialect = "deepseek"
model = "deepseek-flash"
balance = true

[expected_hits]
rule = "units"
build_s = 0.5    # 3 s of trace time, at a time scale of 0.04, and room
"""
KEPT = ("request_id", "session_id", "turn", "attempt", "phase", "root_id", "final", "usage_raw", "http_status")
KEPT += ("finish_reason", "error_class", "request_model", "response_model", "response_id")
TIMES = ("scheduled", "due", "upload_start", "sent", "first_token", "last_token", "end", "stamp")
CASES = {"honest": 0.0, "input-5-percent-more": 0.05}


def main() -> None:
    """Raises SystemExit where a verdict, or an amount, is not what it has to be."""
    with tempfile.TemporaryDirectory() as directory:
        run, truths = replayed(Path(directory))
        keep(run, HERE / RUN)
    items = [item_of(truth) for truth in truths]
    verdicts = []
    for name, share in CASES.items():
        verdicts.append(case(name, share, items))
    (HERE / "README.md").write_text(readme(verdicts))
    for each in verdicts:
        found = sum(Decimal(finding["amount"]) for finding in each["report"]["findings"])
        if each["exit_code"] != bool(each["charged_too_much"]) or found != each["charged_too_much"]:
            raise SystemExit(f"{each['name']}: exit code {each['exit_code']}, {found} found")


# -------------------------------------------------------------------------------------------------------------- the run


def replayed(there: Path) -> tuple[Path, list[dict[str, Any]]]:
    """The run's directory, dated by the endpoint's clock, and the endpoint's own log."""
    from kvbench.sim.process import SimProcess

    log = there / "truth.jsonl"
    settings = {"utc_start": f"{BEGIN:%Y-%m-%dT%H:%M:%SZ}"}
    with SimProcess.start("deepseek-api", settings=settings, truth_log=log, time_scale=SCALE) as sim:
        began_ns, wall_ns = time.monotonic_ns(), time.time_ns()
        profile = there / "deepseek.toml"
        profile.write_text(ENDPOINT.format(url=sim.url))
        words = ["agent-trace.jsonl", "--endpoint", str(profile), "--time-scale", str(SCALE), "--out", str(there)]
        done = kvbench("run", *words, "--json")
        if done.returncode not in (0, 3):
            raise SystemExit(done.stderr)
    run = Path(json.loads(done.stdout)["run"])
    info = json.loads((run / "run.json").read_text())
    moved_ns = round(BEGIN.timestamp()) * 1_000_000_000 - wall_ns
    info["zero_unix_ns"] += moved_ns
    for name in ("started_at", "ended_at"):
        at = datetime.fromisoformat(info[name]) + timedelta(microseconds=moved_ns / 1000)
        info[name] = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    (run / "run.json").write_text(json.dumps(info))
    truths = [json.loads(line, parse_float=Decimal) for line in log.read_text().splitlines()]
    for truth in truths:
        at = BEGIN + timedelta(microseconds=(truth["arrival_ns"] - began_ns) / 1000)
        # The endpoint's clock began up to a second before it said that it listens; its log says what was peak.
        truth["at"] = max(at, PEAK) if truth["peak"] else min(at, PEAK - timedelta(microseconds=1))
    return run, truths


def keep(run: Path, out: Path) -> None:
    """What a bill is verified with: times, usage and expected hits, without texts and without this machine."""
    out.mkdir(exist_ok=True)
    info = json.loads((run / "run.json").read_text())
    info |= {"run_id": "agent-demo", "command": ["kvbench", "run", "agent-trace.jsonl", "--endpoint", "deepseek.toml"]}
    info["command"] += ["--time-scale", str(SCALE)]
    info["endpoint"] = {"url": "http://127.0.0.1", "dialect": "deepseek", "model": "deepseek-flash", "balance": True}
    for name in ("environment", "own_error"):
        info.pop(name, None)
    (out / "run.json").write_text(json.dumps(info, indent=1) + "\n")
    rows = []
    names: dict[str, str] = {}
    for line in (run / "records.jsonl").read_text().splitlines():
        record = json.loads(line)
        name = names[record["request_id"]] = f"{record['session_id']}/{record['turn']}"
        row = {key: record[key] for key in KEPT if record.get(key) not in (None, [])}
        row |= {"request_id": name, "usage": {key: value for key, value in record["usage"].items() if value}}
        row["clock"] = {key: record["clock"][key] for key in TIMES if record["clock"].get(key) is not None}
        rows.append(json.dumps(row, separators=(",", ":")))
    (out / "records.jsonl").write_text("\n".join(rows) + "\n")
    rows = []
    for line in (run / "expectations.jsonl").read_text().splitlines():
        row = json.loads(line)
        rows.append(json.dumps(row | {"request_id": names[row["request_id"]]}, separators=(",", ":")))
    (out / "expectations.jsonl").write_text("\n".join(rows) + "\n")


# ------------------------------------------------------------------------------------------------------------- the bill


def item_of(truth: dict[str, Any]) -> biller.Item:
    hit, prompt = truth["cached_tokens"], truth["prompt_tokens"]
    tokens = {"hit": hit, "miss": prompt - hit, "output": truth["output_tokens"]}
    at = truth["at"]
    item = biller.Item(biller.Used(truth["response_id"], at, at, tokens), dict(tokens), at, truth["peak"])
    if item.amount != Decimal(truth["charged"]):
        raise SystemExit(f"{truth['response_id']}: charged {truth['charged']}, and its tokens cost {item.amount}")
    return item


def case(name: str, share: float, honest: list[biller.Item]) -> dict[str, Any]:
    """One bill in its files, and what kvbench says of it."""
    there = HERE / name
    there.mkdir(exist_ok=True)
    for old in there.glob("*.md"):
        old.unlink()
    items = [biller.Item(each.used, dict(each.tokens), each.at, each.peak) for each in honest]
    if share:
        biller.input_inflated(items, _Alike(), share=share)
    biller.write_export(there, items, biller.Habits(), [])
    done = kvbench(*price_words(name), "--json", cwd=HERE)
    if done.returncode not in (0, 1, 3):
        raise SystemExit(done.stderr)
    return {
        "name": name,
        "charged_too_much": biller.total(items) - biller.total(honest),
        "exit_code": done.returncode,
        "report": json.loads(done.stdout),
    }


def price_words(name: str) -> list[str]:
    invoices = [word for table in ("amount", "cost") for word in ("--invoice", f"{name}/{table}.csv")]
    words = ["price", RUN, "--prices", "deepseek", *invoices, "--dedicated-key", "--date", OTHER_DATE]
    return [*words, "--report", f"{name}/report.md", "--letter", f"{name}/dispute.md"]


class _Alike(random.Random):
    """Hits and misses grow alike."""

    def random(self) -> float:
        return 0.0


def kvbench(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvbench", *words], capture_output=True, text=True, check=False, cwd=cwd
    )


# ----------------------------------------------------------------------------------------------------------- the page


def readme(verdicts: list[dict[str, Any]]) -> str:
    report = verdicts[0]["report"]
    rows = [
        f"| [{each['name']}]({each['name']}/report.md) | {each['report']['verdict']} ({each['exit_code']}) | "
        f"{', '.join(found['kind'] for found in each['report']['findings']) or 'nothing'} | {each['report']['total']['amount']} "
        f"| {each['report']['bill']['invoiced']} | {each['charged_too_much'].normalize():f} | "
        f"{sum(Decimal(found['amount']) for found in each['report']['findings']):f} |"
        for each in verdicts
    ]
    return "\n".join(
        [
            "# The demo run's bill, verified",
            "",
            f"`make demo-bill` replays the bundled agent trace ({report['requests']['priced']} requests) against the simulated "
            "DeepSeek API, whose clock says that it is 15 October 2026, just before the peak hours begin. The provider's usage "
            "export is written from the endpoint's own log of what it charged, by a biller that shares nothing with kvbench, "
            "once as it is and once with 5% more input tokens, and verified:",
            "",
            "```",
            f"kvbench {' '.join(price_words('NAME'))}",
            "```",
            "",
            "| bill | verdict (exit code) | named | should cost, USD | invoiced, USD | charged too much, USD | found, USD |",
            "| --- | --- | --- | ---: | ---: | ---: | ---: |",
            *rows,
            "",
            "[The report of the honest bill](honest/report.md), [of the other](input-5-percent-more/report.md), and "
            "[the letter that disputes it](input-5-percent-more/dispute.md).",
            "",
            f"`{RUN}/` is the run's directory without texts, `*/amount.csv` and `*/cost.csv` are the export: the command can be "
            "given again. The endpoint's latencies are assumed, so that which requests fall into peak hours, and with them the "
            "amounts, differ a little each time it is made. The export's shape is known from third-party readers only.",
            "",
        ]
    )


if __name__ == "__main__":
    main()
