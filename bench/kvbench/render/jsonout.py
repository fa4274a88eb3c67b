"""The one JSON object that `--json` prints; scripts rely on its names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from kvbench.model import Summary


def json_text(value: Any) -> str:
    """A value as msgspec encodes it, indented. The name of a file may be no UTF-8: its bytes are lone surrogates then,
    which JSON can only hold escaped."""
    try:
        return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), indent=2)


def summary_json(summary: Summary, run_dir: Path) -> dict[str, Any]:
    """All fields of Summary by their own names, and:

    rules: "agentx" or null; valid: whether the run kept to them, null without; invalid_reasons beside it.
    run: the run directory. trust: "ok" or "degraded", trust_reasons beside it. expected_hit_rate: {floor, ceiling}
    and the counts of turns behind them, null without an expectation. Null means not reported, never 0.
    """
    plain: dict[str, Any] = msgspec.to_builtins(summary)
    trust = plain.pop("trust")
    rules = plain.pop("rules") or {"name": None, "valid": None, "reasons": []}
    expected = plain.pop("expected")
    return {
        "run": str(run_dir),
        "trust": trust["verdict"],
        "trust_reasons": trust["reasons"],
        "rules": rules["name"],
        "valid": rules["valid"],
        "invalid_reasons": rules["reasons"],
        **plain,
        "expected_hit_rate": expected,
    }
