"""Figures and foreign text in the form people read: units beside numbers, None in words, no control characters."""

from __future__ import annotations

import re

NOT_REPORTED = "not reported"

# C0, DEL and C1 drive terminals; the directional marks and separators reorder or break lines.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def safe(text: str) -> str:
    """`text` with every character that could drive a terminal or reorder a line as a visible escape."""
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def seconds(value: float | None) -> str:
    """`0.081 s`; four significant digits above ten seconds are enough, microseconds below a millisecond are not."""
    if value is None:
        return NOT_REPORTED
    if abs(value) < 0.001 and value != 0:
        return f"{value:.6f} s"
    return f"{value:.3f} s" if abs(value) < 10 else f"{value:.1f} s"


def milliseconds(value_s: float | None) -> str:
    """`12.1 ms`; below a tenth of one `4.0 us`."""
    if value_s is None:
        return NOT_REPORTED
    return f"{value_s * 1e6:.1f} us" if 0 < abs(value_s) < 1e-4 else f"{value_s * 1e3:.1f} ms"


def token_time(value_s: float | None) -> str:
    """Times of a token side by side, all in milliseconds: `12.1 ms`, `0.104 ms`, `0.0995 ms`."""
    if value_s is not None and 0 < abs(value_s) < 1e-3:
        return f"{value_s * 1e3:.3g} ms"
    return milliseconds(value_s)


def span(value_s: float | None) -> str:
    """A length of time by its largest units: `31.2 s`, `12 min 40 s`, `3 h 05 min`."""
    if value_s is None:
        return NOT_REPORTED
    if value_s < 99.95:
        return f"{value_s:.1f} s"
    minutes, rest = divmod(round(value_s), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def count(value: int | None) -> str:
    return NOT_REPORTED if value is None else f"{value:,}"


def percent(share: float | None) -> str:
    return NOT_REPORTED if share is None else f"{share * 100:.1f}%"


def rate(per_s: float | None) -> str:
    """`612/s`, `44.6k/s`."""
    if per_s is None:
        return NOT_REPORTED
    if per_s >= 1e6:
        return f"{per_s / 1e6:.1f}M/s"
    if per_s >= 10_000:
        return f"{per_s / 1e3:.1f}k/s"
    return f"{per_s:,.0f}/s" if per_s >= 100 else f"{per_s:.1f}/s"


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
