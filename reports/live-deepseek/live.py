"""Ask DeepSeek's API what its documentation leaves open, for at most USD 0.20.

    export DEEPSEEK_API_KEY=...; make live-deepseek      # about eight minutes; writes <date>.md and <date>.json here

The cap is hard: before each request its worst case is set aside at the dearest price the model ever had, and a request
that does not fit is not sent. Nothing that is written holds the key, or any text of the model.
Exit code: 0 everything was asked; 3 stopped early (the cap, or the API refused); 2 and 4 as kvbench.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import probes
from budget import HARD_CAP_USD, Budget, CapReached
from report import render

from kvbench.endpoints.balance import Balances, spent
from kvbench.endpoints.client import Endpoint
from kvbench.endpoints.clock import RunClock
from kvbench.endpoints.profile import load_profile
from kvbench.errors import EXIT_INCONCLUSIVE, EXIT_OK, KvbenchError

HERE = Path(__file__).parent
OVERHEAD_GUESS = 5


async def check(spec: str, budget: Budget, pause_scale: float) -> dict[str, Any]:
    """All findings so far, however it ended."""
    started = datetime.now(UTC)
    endpoint = await Endpoint.open(load_profile(spec), RunClock.start())
    try:
        info = await endpoint.discover()
        before = await _balance(endpoint)
        prober = probes.Prober(endpoint, budget, pause_scale, seed=int(started.timestamp()))
        findings: dict[str, Any] = {}
        ended = "everything was asked"
        try:
            await _ask_everything(prober, findings)
        except (CapReached, probes.GivenUp) as error:
            ended = f"stopped early: {error}"
        bill = spent(before, await _balance(endpoint))
    finally:
        await endpoint.aclose()
    return {
        "date": started.date().isoformat(),
        "started_at": started.isoformat(timespec="seconds"),
        "endpoint": endpoint.profile.url,
        "model": info.model,
        "listed_models": info.models,
        "complete": ended == "everything was asked",
        "ended": ended,
        "requests": budget.requests,
        "used_usd": f"{budget.used_usd:.4f}",
        "cap_usd": str(budget.cap_usd),
        "balance": "; ".join(
            f"{one.currency} {one.before} -> {one.after}, {one.at_least} to {one.at_most} spent" for one in bill or ()
        ),
        "failures": prober.failures,
        "findings": findings,
    }


async def _ask_everything(prober: probes.Prober, findings: dict[str, Any]) -> None:
    findings["usage_shape"] = await probes.usage_shape(prober)
    overhead = findings["template_overhead"] = await probes.template_overhead(prober)
    tokens = round(overhead["user"].get("overhead_tokens", OVERHEAD_GUESS))
    questions: dict[str, Callable[[probes.Prober], Awaitable[dict[str, Any]]]] = {
        "granularity": lambda prober: probes.granularity(prober, tokens),
        "common_prefix": probes.common_prefix,
        "next_turn": probes.next_turn,
        "building": probes.building,
        "lifetime": probes.lifetime,
    }
    for name, question in questions.items():
        print(f"asking: {name}", file=sys.stderr, flush=True)
        findings[name] = await question(prober)


async def _balance(endpoint: Endpoint) -> Balances | None:
    try:
        return await endpoint.balance()
    except KvbenchError:
        return None


def _cap(text: str) -> Decimal:
    try:
        return Budget(Decimal(text)).cap_usd
    except (InvalidOperation, ValueError):
        raise argparse.ArgumentTypeError(f"{text}: must be above 0 and at most {HARD_CAP_USD} USD") from None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--endpoint", default="deepseek", help="deepseek, or an endpoint TOML that speaks its dialect")
    parser.add_argument("--cap-usd", type=_cap, default=HARD_CAP_USD, help=f"at most {HARD_CAP_USD}")
    parser.add_argument("--pause-scale", type=float, default=1.0, help="multiplies the pauses; for trying it out")
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args()
    try:
        result = asyncio.run(check(options.endpoint, Budget(options.cap_usd), options.pause_scale))
    except KvbenchError as error:
        print(f"live-deepseek: {error.message}" + (f"\n  {error.hint}" if error.hint else ""), file=sys.stderr)
        return error.exit_code
    options.out.mkdir(parents=True, exist_ok=True)
    stem = options.out / result["date"]
    stem.with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    stem.with_suffix(".md").write_text(render(result), encoding="utf-8")
    print(f"{result['ended']}; see {stem.with_suffix('.md')}")
    return EXIT_OK if result["complete"] else EXIT_INCONCLUSIVE


if __name__ == "__main__":
    sys.exit(main())
