"""The tables of docs/sim.md from presets and parameters: `python -m kvbench.sim.reference docs/sim.md` renews them."""

from __future__ import annotations

import sys
from pathlib import Path

from kvbench.sim.parameters import Preset
from kvbench.sim.presets import PRESETS
from kvbench.sim.settings import names, parameters

_DEFAULTS = Preset(name="", description="")


def presets_table() -> str:
    """A line a preset: what it is, and the sizes that decide what it holds."""
    lines = [
        "| preset | what | bytes a token | bytes a running request | block, tokens | pool, tokens | context, tokens |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for preset in PRESETS.values():
        sizes = (
            f"{preset.bytes_per_token:,.10g}",
            f"{preset.bytes_per_session:,}",
            f"{preset.block_size}",
            f"{preset.capacity_tokens:,}",
            f"{preset.max_model_len:,}",
        )
        lines.append(f"| `{preset.name}` | {preset.description} | {' | '.join(sizes)} |")
    return "\n".join(lines)


def parameters_table() -> str:
    """A line a parameter: unit, value where a preset says nothing, and what it does."""
    lines = ["| parameter | unit | default | what |", "| --- | --- | --- | --- |"]
    for row in parameters(PRESETS["tiny"]):
        default = getattr(_DEFAULTS, str(row["name"]))
        unit = ", ".join(names(str(row["name"]))) or row["unit"]
        lines.append(f"| `{row['name']}` | {unit} | {_shown(default)} | {row['what']} |")
    return "\n".join(lines)


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:,.10g}" if isinstance(value, (int, float)) else str(value) or "empty"


TABLES = {"presets": presets_table, "parameters": parameters_table}


def renewed(page: str) -> str:
    """The page with its tables as they are now; they stand between marks."""
    for name, table in TABLES.items():
        before, start, rest = page.partition(f"<!-- {name} -->")
        _, end, after = rest.partition(f"<!-- end of {name} -->")
        page = f"{before}{start}\n\n{table()}\n\n{end}{after}"
    return page


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(renewed(path.read_text()))
