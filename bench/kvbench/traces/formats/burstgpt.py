"""BurstGPT traces: arrivals, lengths and models; from the third release on also conversations and elapsed times."""

from __future__ import annotations

from functools import partial

from kvbench.traces.formats.arrivals import NOTES, ArrivalsConverter, Columns, decimal_ticks
from kvbench.traces.formats.base import Format

_COLUMNS = Columns(
    time="Timestamp",
    input_tokens="Request tokens",
    output_tokens="Response tokens",
    ticks=decimal_ticks,
    time_form="seconds, as 19440110.0",
    model="Model",
    session="Session ID",
    elapsed_s="Elapsed time",
    kept=("Log Type",),
    failed=True,
)

BURSTGPT = Format(
    name="burstgpt",
    about="BurstGPT",
    unit="row",
    matches=_COLUMNS.match,
    converter=partial(ArrivalsConverter, columns=_COLUMNS),
    notes=NOTES
    | {
        "failed": "rows without output tokens, which are requests that failed: {n}",
        "clipped_pauses": "requests earlier than the end of the one before them in their conversation: {n} (they "
        "follow without a pause)",
    },
)
