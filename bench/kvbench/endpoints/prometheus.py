"""Prometheus' text exposition format, as far as inference servers use it."""

from __future__ import annotations

import re
from typing import NamedTuple

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,|(?=\}))')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", '"': '"', "\\": "\\"}


class Sample(NamedTuple):
    labels: dict[str, str]
    value: float


Samples = dict[str, list[Sample]]
"""Series by metric name (histograms by name_bucket, name_sum, name_count)."""


def parse_prometheus(text: str) -> Samples:
    """All samples of `text`. `_created` series (times, not measurements) and timestamps are left out.

    ValueError, naming the line, for what is no such text: an HTML page, say.
    """
    samples: Samples = {}
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if not line or line[0] == "#":
            continue
        match = _NAME.match(line)
        if match is None:
            raise ValueError(f"line {number} is no Prometheus sample: {line[:60]!r}")
        name, rest = match[0], line[match.end() :]
        labels: dict[str, str] = {}
        if rest.startswith("{"):
            labels, rest = _labels(rest, number)
        fields = rest.split()
        if not 1 <= len(fields) <= 2:
            raise ValueError(f"line {number} is no Prometheus sample: {line[:60]!r}")
        try:
            value = float(fields[0])
        except ValueError:
            raise ValueError(f"line {number}: not a number: {fields[0][:60]!r}") from None
        if not name.endswith("_created"):
            samples.setdefault(name, []).append(Sample(labels, value))
    return samples


def _labels(rest: str, number: int) -> tuple[dict[str, str], str]:
    labels: dict[str, str] = {}
    at = 1
    while not rest.startswith("}", at):
        match = _LABEL.match(rest, at)
        if match is None:
            if rest[at:].lstrip().startswith("}"):
                at = rest.index("}", at)
                break
            raise ValueError(f'line {number}: labels are not name="value": {rest[:60]!r}')
        labels[match[1]] = _ESCAPE.sub(lambda m: _ESCAPED.get(m[1], m[0]), match[2])
        at = match.end()
    return labels, rest[at + 1 :]
