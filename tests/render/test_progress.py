from __future__ import annotations

import io
import re
import time

import pytest

from kvbench.model import Clock, Record, Usage
from kvbench.render import progress
from kvbench.render.progress import Progress


def record(ttft_ms: float | None = None, **fields: object) -> Record:
    first = None if ttft_ms is None else round(ttft_ms * 1e6)
    clock = Clock(scheduled=0, due=0, sent=0, first_token=first)
    return Record(request_id="r", session_id="s", turn=0, clock=clock, **fields)  # type: ignore[arg-type]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_counts_what_has_ended() -> None:
    shown = Progress(10, 4, file=io.StringIO())
    for ttft_ms in (100, 200, 300):
        shown.record(record(ttft_ms, usage=Usage(input_tokens=100, cached_tokens=75)))
    shown.record(record(final=False, error_class="overloaded"))
    shown.record(record(error_class="reset"))
    shown.record(record(error_class="skipped"))
    shown.record(record(50))  # reports no usage
    shown.tick(in_flight=3, lag_s=0.0004, sessions_done=1)
    line = "  ".join(shown.parts())
    assert "sessions 1/4  turns 6/10  in flight 3  errors 1 (+1 retried)" in line
    assert line.endswith("hits 75.0%  lag 0.4 ms")
    match = re.search(r"TTFT p50 ([\d.]+) s p95 ([\d.]+) s", line)
    assert match is not None
    # Of 50 100 200 300 the ranks 2 and 4 hold half and 95%; buckets are 2% wide.
    assert float(match[1]) == pytest.approx(0.1, rel=0.02)
    assert float(match[2]) == pytest.approx(0.3, rel=0.02)


def test_nothing_is_invented() -> None:
    shown = Progress(None, None, file=io.StringIO())
    shown.tick(in_flight=0, lag_s=None)
    assert shown.parts()[1:] == ["turns 0", "in flight 0", "errors 0"]


def test_plain_lines_where_there_is_no_terminal() -> None:
    out = io.StringIO()
    shown = Progress(2, 1, file=out)
    shown.start()
    shown.record(record(100))
    shown.stop()
    shown.stop()
    assert out.getvalue().count("\n") == 1
    assert "turns 1/2" in out.getvalue()
    assert "\r" not in out.getvalue()
    assert "\x1b" not in out.getvalue()


def screen(text: str) -> list[str]:
    """What a terminal shows of `text`, for the few controls that progress uses."""
    lines, row = [""], 0
    for token in re.findall(r"\x1b\[\d*[AJ]|\r|\n|[^\x1b\r\n]+", text):
        if token == "\x1b[J":
            lines[row:] = [""]
        elif token.startswith("\x1b["):
            row -= int(token[2:-1])
            assert row >= 0
        elif token == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif token != "\r":
            lines[row] += token
    return lines


def test_the_state_is_rewritten_in_place_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(progress, "TERMINAL_INTERVAL_S", 0.01)
    out = Terminal()
    shown = Progress(200, 100, file=out)
    shown.start()
    shown.tick(in_flight=3, lag_s=0.001, sessions_done=1)
    shown.record(record(100))
    while "\x1b[" not in out.getvalue() or out.getvalue().count("\r") < 3:
        time.sleep(0.002)
    shown.say("stopping\x1b[2J")
    shown.stop()
    lines = screen(out.getvalue())
    assert lines[0] == "stopping\\x1b[2J"
    assert lines[1].endswith(" s  sessions 1/100  turns 1/200")
    assert lines[2:] == ["in flight 0  errors 0", "TTFT p50 0.100 s p95 0.100 s", "lag 1.0 ms", ""]


def test_a_terminal_that_goes_away_does_not_stop_a_run() -> None:
    out = io.StringIO()
    shown = Progress(2, 1, file=out)
    shown.start()
    out.close()
    shown.record(record(100))
    shown.stop()
