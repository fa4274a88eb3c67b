"""Expected hits at explicit breakpoints: by the marks of the prompts that were sent, and lengths as reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from kvbench.model import Expectation, Record, Warning
from kvbench.replay.prompts import Prompt
from kvbench.replay.settings import RunSettings
from kvbench.traces.prefix import BreakpointHits, BreakpointsRule, Marked
from kvbench.traces.prefix.marks import marked_prompt


def expect_marked(
    sent_prompts: Iterator[tuple[Record, Prompt]],
    rule: BreakpointsRule,
    settings: RunSettings,
    emit: Callable[[Record, Expectation], None],
    *,
    whole: Any = None,
) -> list[Warning]:
    """Give each final ok record its expectation through `emit`. whole: a cache_control that goes with every request."""
    records: dict[str, Record] = {}
    requests: list[Marked] = []
    for record, prompt in sent_prompts:
        clock, usage = record.clock, record.usage
        assert clock.sent is not None
        key = f"{record.request_id}#{record.attempt}"
        records[key] = record
        prefix = marked_prompt(prompt.tools, None, prompt.messages, last=whole)
        requests.append(
            Marked(
                key=key,
                space=f"{record.request_model or record.response_model or ''} {prompt.salt or ''}",
                chain=prefix.chain,
                marks=prefix.marks,
                sent_ns=clock.sent,
                first_token_ns=clock.first_token if clock.first_token is not None else clock.end if record.ok else None,
                end_ns=clock.end,
                input_tokens=usage.input_tokens,
                read_tokens=usage.cached_tokens,
                written_tokens=usage.cache_write_tokens,
            )
        )

    def settle(key: str, expectation: Expectation) -> None:
        record = records[key]
        if settings.salt == "none" and expectation.ceiling is not None:
            most = expectation.input_tokens or expectation.ceiling
            expectation = replace(expectation, ceiling=most, reason="no salt: earlier traffic may have left more")
        if record.ok and record.final:
            emit(record, expectation)

    model = BreakpointHits(rule, settle)
    model.learn(requests)
    for request in requests:
        model.add(request)
    model.finish()
    return _warnings(requests)


def _warnings(requests: list[Marked]) -> list[Warning]:
    if not any(request.marks for request in requests):
        return [
            Warning(
                code="no_marks",
                message="no prompt has a cache_control mark, so by the rule `breakpoints` nothing is cached",
                advice='put "cache_control": {"type": "ephemeral"} on content parts of the trace, or into extra_body',
            )
        ]
    if not any(request.cached_tokens is not None for request in requests):
        return [
            Warning(
                code="writes_not_reported",
                message="no answer reports what was read from and written to the cache, so no hit is expected for sure",
                advice="ask the gateway for the provider's own usage",
            )
        ]
    return []
