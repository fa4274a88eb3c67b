"""Predicted hits of a log's calls, where that is sound: at cache_control marks, in prompts that the log has as sent.

From usage alone nothing is: that a call read what the one before it had cached depends on what it sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.model import Expectation
from kvbench.traces.formats.sink import LoggedUsage
from kvbench.traces.prefix import BreakpointHits, BreakpointsRule, Marked
from kvbench.usage import normalise

NO_TEXT = "the log tells neither the token ids of its prompts nor all of their text"
NO_MARKS = "no prompt of the log has a cache_control mark, and what else its provider caches is not known from a log"
NO_TIMES = "the log has no times, and what is cached when is not known without them"
NO_WRITES = "the log has cache_control marks, and its usage reports say nothing of what was written to the cache"


def expected_of_log(calls: Sequence[LoggedUsage]) -> tuple[dict[int, Expectation], str]:
    """By the place of a call in `calls`; and why the others have none.

    Only the models are predicted of which some call was marked and some usage counts writes: another provider takes no
    notice of marks. A log does not tell when an answer began, so what a call wrote is sure to be there from its end on.
    """
    if not any(call.marked is not None for call in calls):
        return {}, NO_TEXT
    marked = {call.model for call in calls if call.marked is not None and call.marked.marks}
    if not marked:
        return {}, NO_MARKS
    usages = [normalise(call.usage) for call in calls]
    writes = {call.model for call, usage in zip(calls, usages, strict=True) if usage.cache_write_tokens is not None}
    if not marked & writes:
        return {}, NO_WRITES
    if any(call.start_s is None for call in calls if call.model in marked):
        return {}, NO_TIMES
    requests = []
    for number, (call, usage) in enumerate(zip(calls, usages, strict=True)):
        if call.model not in marked & writes or call.marked is None or call.start_s is None:
            continue
        end_ns = None if call.end_s is None else round(call.end_s * 1e9)
        requests.append(
            Marked(
                key=str(number),
                space=call.model or "",
                chain=call.marked.chain,
                marks=call.marked.marks,
                sent_ns=round(call.start_s * 1e9),
                first_token_ns=end_ns if usage.output_tokens else None,
                end_ns=end_ns,
                input_tokens=usage.input_tokens,
                read_tokens=usage.cached_tokens,
                written_tokens=usage.cache_write_tokens,
            )
        )
    found: dict[int, Expectation] = {}

    def emit(key: str, expectation: Expectation) -> None:
        found[int(key)] = expectation

    model = BreakpointHits(BreakpointsRule(), emit)
    model.learn(requests)
    for request in sorted(requests, key=lambda each: each.sent_ns):
        model.add(request)
    model.finish()
    return found, "calls of other models, or without their prompt, have none"
