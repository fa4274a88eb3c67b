"""What a run has done so far, while it runs. The measuring thread only counts; a thread of its own writes."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import sys
import threading
import time
from collections import deque
from typing import TextIO

from kvbench.model import Record
from kvbench.render.text import milliseconds, percent, safe, seconds

TERMINAL_INTERVAL_S = 0.5
PLAIN_INTERVAL_S = 5.0
BUCKETS_PER_E = 50
"""TTFTs are kept in buckets 2% wide: constant memory and no sorting, and nobody reads progress more finely."""


class Progress:
    """Live progress on `file`: the state, rewritten twice a second, on a terminal, else a plain line every 5 s.

    `record`, `tick` and `say` cost microseconds and never write, so they may be called from the event loop; a terminal
    that blocks (Ctrl-S) cannot stop the run. Totals of None are not known.
    """

    def __init__(self, total_turns: int | None, total_sessions: int | None, file: TextIO | None = None) -> None:
        self._total_turns = total_turns
        self._total_sessions = total_sessions
        self._file = file or sys.stderr
        self._live = self._file.isatty() and os.environ.get("TERM") != "dumb"
        self._turns = self._failed = self._retried = 0
        self._sessions_done: int | None = None
        self._in_flight = 0
        self._lag_s: float | None = None
        self._input_tokens = self._cached_tokens = 0
        self._ttfts: dict[int, int] = {}
        self._started_s = 0.0
        self._said: deque[str] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._drawn_lines = 0
        self._writer: threading.Thread | None = None

    def start(self) -> None:
        self._started_s = time.monotonic()
        self._writer = threading.Thread(target=self._write_until_stopped, name="kvbench-progress", daemon=True)
        self._writer.start()

    def record(self, record: Record) -> None:
        """Count an attempt that has ended."""
        if not record.final:
            self._retried += 1
            return
        self._turns += 1
        if not record.ok:
            self._failed += record.error_class != "skipped"
            return
        clock, usage = record.clock, record.usage
        if clock.first_token is not None and clock.sent is not None and clock.first_token > clock.sent:
            bucket = round(math.log((clock.first_token - clock.sent) / 1e9) * BUCKETS_PER_E)
            self._ttfts[bucket] = self._ttfts.get(bucket, 0) + 1
        if usage.input_tokens is not None and usage.cached_tokens is not None:
            self._input_tokens += usage.input_tokens
            self._cached_tokens += usage.cached_tokens

    def tick(self, in_flight: int, lag_s: float | None, sessions_done: int | None = None) -> None:
        """Say how many requests are in flight, how late the client runs and, where known, how many sessions ended."""
        self._in_flight = in_flight
        self._lag_s = lag_s
        if sessions_done is not None:
            self._sessions_done = sessions_done

    def say(self, text: str) -> None:
        """Write a line of its own, between two states."""
        self._said.append(safe(text))
        self._wake.set()

    def stop(self) -> None:
        """Write the last state and leave the cursor on a line of its own; may be called again."""
        if self._writer is None:
            return
        self._in_flight = 0
        self._stopping = True
        self._wake.set()
        self._writer.join(timeout=1.0)
        self._writer = None

    def parts(self) -> list[str]:
        """The state, a figure each; TTFT to 2%."""
        parts = [f"{time.monotonic() - self._started_s:5.0f} s"]
        if self._sessions_done is not None:
            parts.append(f"sessions {_of(self._sessions_done, self._total_sessions)}")
        parts.append(f"turns {_of(self._turns, self._total_turns)}")
        parts.append(f"in flight {self._in_flight}")
        parts.append(f"errors {self._failed}" + (f" (+{self._retried} retried)" if self._retried else ""))
        if self._ttfts:
            parts.append(f"TTFT p50 {seconds(self._ttft(0.5))} p95 {seconds(self._ttft(0.95))}")
        if self._input_tokens:
            parts.append(f"hits {percent(self._cached_tokens / self._input_tokens)}")
        if self._lag_s is not None:
            parts.append(f"lag {milliseconds(self._lag_s)}")
        return parts

    def _ttft(self, q: float) -> float:
        buckets = sorted(self._ttfts.copy().items())
        ranks = itertools.accumulate(number for _, number in buckets)
        wanted = q * sum(number for _, number in buckets)
        bucket = next(bucket for (bucket, _), rank in zip(buckets, ranks, strict=True) if rank >= wanted)
        return math.exp(bucket / BUCKETS_PER_E)

    def _write_until_stopped(self) -> None:
        interval_s = TERMINAL_INTERVAL_S if self._live else PLAIN_INTERVAL_S
        try:
            while not self._stopping:
                woken = self._wake.wait(interval_s)
                self._wake.clear()
                self._write_said()
                if self._live or not woken:
                    self._write_state()
            self._write_said()
            self._write_state()
            if self._live:
                self._write("\n")
        except (OSError, ValueError):
            return  # the terminal has gone, or the file was closed: a run does not end for want of an onlooker

    def _write_said(self) -> None:
        while self._said:
            self._write(f"{self._erase()}{self._said.popleft()}\n")

    def _write_state(self) -> None:
        if not self._live:
            self._write("  ".join(self.parts()) + "\n")
            return
        lines = _packed(self.parts(), shutil.get_terminal_size().columns - 1)
        self._write(self._erase() + "\n".join(lines))
        self._drawn_lines = len(lines)

    def _erase(self) -> str:
        """Back to where the state on the screen began, and clear from there."""
        if not self._live:
            return ""
        above, self._drawn_lines = max(0, self._drawn_lines - 1), 0
        return "\r" + (f"\x1b[{above}A" if above else "") + "\x1b[J"

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()


def _packed(parts: list[str], width: int) -> list[str]:
    """`parts` in as few lines of at most `width` as keep each whole; one that is wider still is cut."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines.append(part[:width])
    return lines


def _of(done: int, total: int | None) -> str:
    return f"{done:,}" if total is None else f"{done:,}/{total:,}"
