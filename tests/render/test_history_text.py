"""Nights as text and as a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.analysis.nights.nights import make_night

from kvbench.analysis.nights.history import history
from kvbench.render.history_plot import history_page
from kvbench.render.history_text import history_lines, sparkline
from kvbench.runs.night import load_night, write_night


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], "▁▂▃▄▅▆▇█"),
        ([2.0, None, 1.0], "█ ▁"),
        ([5.0, 5.0], "▄▄"),
        ([None, None], "  "),
        ([0.0, 0.0, None], "▄▄ "),
    ],
)
def test_a_bar_a_value(values: list[float | None], drawn: str) -> None:
    assert sparkline(values) == drawn


def test_nights_as_lines_and_as_a_page(tmp_path: Path) -> None:
    for day, ttft in enumerate((1.0, 1.0, 2.0)):
        make_night(tmp_path, day, ttft=ttft, n=1, verdict="fail" if day == 2 else "pass")
    make_night(tmp_path, 3, n=1, trace={"sha256": "b" * 64, "name": "<b>\x1b[31m"})
    found = history(tmp_path)
    lines = history_lines(found)
    (ttft,) = [line for line in lines if line.startswith("  ttft.geomean")][:1]
    assert ttft.split()[1][-1] == "█"
    assert ttft.split()[1][0] in "▁▂"
    assert [line.split()[1] for line in lines if line.startswith("  verdicts")] == ["PPF", "P"]
    assert "\x1b" not in "\n".join(lines)
    page = history_page(found)
    assert "&lt;b&gt;\\x1b[31m" in page
    assert page.count("Plotly.newPlot") == 2
    assert "cdn.plot.ly/plotly" not in page.partition("<h2>")[0]


def figures(page: str) -> list[tuple[list[dict[str, Any]], dict[str, Any]]]:
    """Traces and layout of each figure of a page."""
    found = []
    for part in page.split("Plotly.newPlot(")[1:]:
        decoder = json.JSONDecoder()
        traces, end = decoder.raw_decode(part, part.index("["))
        layout, _ = decoder.raw_decode(part, part.index("{", end))
        found.append((traces, layout))
    return found


def test_a_page_shows_verdicts_servers_and_axes_that_fit(tmp_path: Path) -> None:
    for day, verdict in enumerate(("pass", "inconclusive", "fail", "refused", None)):
        server = {"server": "vLLM 0.33.0" if day > 1 else "vLLM 0.32.0", "model": "tiny"}
        night = make_night(tmp_path, day, n=1, noise=0, verdict=verdict, server=server)
    write_night(night, replace(load_night(night), status="interrupted"))
    found = history(tmp_path)
    (verdicts,) = [line for line in history_lines(found) if line.startswith("  verdicts")]
    assert verdicts.split() == ["verdicts", "PiFrx"]
    ((traces, layout),) = figures(history_page(found))
    means = [trace for trace in traces if trace["mode"] == "lines+markers"]
    symbols = ["circle", "circle-open", "x", "square-open", "diamond-open"]
    assert {tuple(trace["marker"]["symbol"]) for trace in means} == {tuple(symbols)}
    assert [trace["name"] for trace in traces if trace.get("showlegend") is not False] == [
        *("pass", "inconclusive", "fail", "refused", "not finished")
    ]
    # Between the second night and the third.
    assert [(shape["x0"], shape["x1"]) for shape in layout["shapes"]] == [(1.5, 1.5)]
    axes = {axis["title"]["text"]: axis["range"] for name, axis in layout.items() if name.startswith("yaxis")}
    # 10 ms a token, 60% and 0% in every night: no axis of -1 to 1, and none below what can be.
    assert axes["tpot.geomean<br>ms/token"] == pytest.approx([9.8, 10.2])
    assert axes["hit_rate<br>%"] == pytest.approx([58.8, 61.2])
    assert axes["errors<br>%"] == pytest.approx([-0.05, 1.0])
    assert layout["xaxis"]["range"] == [-0.5, 4.5]


def test_nothing_there_is_said(tmp_path: Path) -> None:
    assert history_lines(history(tmp_path))[-1].startswith("no whole runs in ")
