"""The run directory: `<out>/<utc>-<name>-<6 hex>/`, the contract between what measures and what reads.

    run.json             RunInfo: schema_version, status (started | done | interrupted | failed), what was run where,
                         the client's own error; replaced as a whole
    trace.jsonl          the lines of the trace that were replayed, as they stood in it
    records.jsonl        a Record a line, one an attempt, in the order in which they ended; append-only
    expectations.jsonl   {request_id, attempt, expectation}: worked out after the last turn, joined into the records
    events.jsonl         {kind, at_ns, ...}: lag samples, scrapes of the server's metrics (gauges: those of
                         its cache alone), interruptions
    lock                 held, and there, only while a run is being written
    derived/             whatever can be rebuilt from the rest

Times ending in _ns are monotonic nanoseconds from the run's start; null means not reported, never 0. Readers take every
older schema_version and refuse newer ones. A run without status done is INCOMPLETE, and its rows are still good.
"""
