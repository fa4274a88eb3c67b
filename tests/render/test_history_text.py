"""Nights as text and as a page."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.analysis.nights.nights import make_night

from kvbench.analysis.nights.history import history
from kvbench.render.history_plot import history_page
from kvbench.render.history_text import history_lines, sparkline


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


def test_nothing_there_is_said(tmp_path: Path) -> None:
    assert history_lines(history(tmp_path))[-1].startswith("no whole runs in ")
