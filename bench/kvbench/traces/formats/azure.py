"""Azure's LLM inference traces, and the same requests as simulators after Splitwise have them: arrivals and lengths."""

from __future__ import annotations

from datetime import date
from functools import lru_cache, partial

from kvbench.traces.formats.arrivals import NOTES, TICKS, ArrivalsConverter, Columns, decimal_ticks
from kvbench.traces.formats.base import Format


def date_ticks(text: str) -> int:
    """`2023-11-16 18:17:03.9799600`, with up to 7 digits after the point and perhaps an offset, in 100 ns.

    Raises ValueError.
    """
    day, clock = text[:10], text[11:]
    offset_s = 0
    if clock.endswith("Z"):
        clock = clock[:-1]
    elif (at := max(clock.rfind("+"), clock.rfind("-"))) > 0:
        offset_s = _offset_s(clock[at:])
        clock = clock[:at]
    time, point, fraction = clock.partition(".")
    if text[10:11] not in (" ", "T") or len(time) != 8 or time[2] != ":" or time[5] != ":":
        raise ValueError(text)
    digits = time[:2] + time[3:5] + time[6:]
    if not (digits.isascii() and digits.isdigit()) or (point and not (fraction.isascii() and fraction.isdigit())):
        raise ValueError(text)
    hours, minutes, seconds = int(digits[:2]), int(digits[2:4]), int(digits[4:])
    if hours > 23 or minutes > 59 or seconds > 60 or len(fraction) > 9:
        raise ValueError(text)
    whole_s = _day_s(day) + hours * 3600 + minutes * 60 + seconds - offset_s
    return whole_s * TICKS + int(fraction[:7].ljust(7, "0"))


@lru_cache(maxsize=64)
def _day_s(day: str) -> int:
    return date.fromisoformat(day).toordinal() * 86_400


@lru_cache(maxsize=64)
def _offset_s(text: str) -> int:
    hours, _, minutes = text[1:].partition(":")
    if not (hours + minutes).isdigit() or int(hours) > 23:
        raise ValueError(text)
    return (1 if text[0] == "+" else -1) * (int(hours) * 3600 + int(minutes or 0) * 60)


_AZURE = Columns(
    time="TIMESTAMP",
    input_tokens="ContextTokens",
    output_tokens="GeneratedTokens",
    ticks=date_ticks,
    time_form="2023-11-16 18:17:03.9799600",
)
_SPLITWISE = Columns(
    time="arrived_at",
    input_tokens="num_prefill_tokens",
    output_tokens="num_decode_tokens",
    ticks=decimal_ticks,
    time_form="seconds, as 0.052",
)

AZURE = Format(
    name="azure",
    about="Azure LLM inference",
    unit="row",
    matches=_AZURE.match,
    converter=partial(ArrivalsConverter, columns=_AZURE),
    notes=NOTES,
)
SPLITWISE = Format(
    name="splitwise",
    about="Splitwise",
    unit="row",
    matches=_SPLITWISE.match,
    converter=partial(ArrivalsConverter, columns=_SPLITWISE),
    notes=NOTES,
)
