"""Spans as exporters write them, in one shape: plain (`{"spans": [...]}`, or a span a line) and OTLP JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from kvbench.traces.formats.calls import time_s
from kvbench.traces.formats.otel_messages import Attributes
from kvbench.traces.lines import LineError

Kind = Literal["call", "agent", "tool", "other"]

_CALLS = frozenset({"chat", "text_completion", "generate_content"})
_CALL_MARKS = (
    "gen_ai.input.messages",
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.prompt_tokens",
    "gen_ai.prompt.0.role",
)


class Span(msgspec.Struct):
    """field: where it stands in its object. Times in seconds of Unix time; failed: its status says so.

    agent: who made it, where the span itself says; service: whose process it ran in.
    """

    field: str
    trace_id: str
    span_id: str
    parent_id: str
    name: str
    attributes: Attributes
    events: list[tuple[str, Attributes]]
    start_s: float | None
    end_s: float | None
    failed: bool
    agent: str | None
    service: str | None

    @property
    def kind(self) -> Kind:
        """A request to a model, a run of an agent or a tool that may make some, or anything else (HTTP ...)."""
        operation = self.attributes.get("gen_ai.operation.name")
        if not isinstance(operation, str | None):
            return "other"
        if operation in _CALLS:
            return "call"
        if operation in ("invoke_agent", "invoke_workflow"):
            return "agent"
        if operation == "execute_tool":
            return "tool"
        if operation is None and any(name in self.attributes for name in _CALL_MARKS):
            return "call"
        return "other"


def spans_in(obj: dict[str, Any]) -> Iterator[Span]:
    """All spans of one object. Raises LineError naming the field; the spans before it were given."""
    if "resourceSpans" in obj or "resource_spans" in obj:
        yield from _otlp(obj)
    elif "spans" in obj:
        for index, span in enumerate(_array(obj["spans"], "spans")):
            yield _span(span, f"spans[{index}]", trace_id=obj.get("trace_id"))
    else:
        yield _span(obj, "")


def _otlp(obj: dict[str, Any]) -> Iterator[Span]:
    resources = "resourceSpans" if "resourceSpans" in obj else "resource_spans"
    for number, resource in enumerate(_array(obj[resources], resources)):
        where = f"{resources}[{number}]"
        resource = _object(resource, where)
        common = _attributes(_object(resource.get("resource") or {}, f"{where}.resource").get("attributes"), where)
        scopes = next(
            (key for key in ("scopeSpans", "scope_spans", "instrumentationLibrarySpans") if key in resource), ""
        )
        for index, scope in enumerate(_array(resource.get(scopes, []), f"{where}.{scopes}")):
            inner = f"{where}.{scopes}[{index}]"
            for at, span in enumerate(_array(_object(scope, inner).get("spans", []), f"{inner}.spans")):
                yield _span(span, f"{inner}.spans[{at}]", resource=common)


def _span(span: Any, field: str, *, trace_id: Any = None, resource: Attributes | None = None) -> Span:
    span = _object(span, field or "the line")
    prefix = f"{field}." if field else ""

    def given(*names: str) -> tuple[Any, str]:
        return next(
            ((span[name], prefix + name) for name in names if span.get(name) not in (None, "")),
            (None, prefix + names[0]),
        )

    span_id, where = given("span_id", "spanId")
    if not isinstance(span_id, str):
        raise LineError("missing; every span has an id", field=where)
    trace = given("trace_id", "traceId")[0] or trace_id
    status = span.get("status")
    code = status.get("code", status.get("status_code")) if isinstance(status, dict) else status
    attributes = _attributes(span.get("attributes"), f"{prefix}attributes")
    events = span.get("events")
    common = (
        _attributes(span.get("resource_attributes"), f"{prefix}resource_attributes") if resource is None else resource
    )
    agent = attributes.get("gen_ai.agent.id", attributes.get("gen_ai.agent.name"))
    service = common.get("service.name")
    return Span(
        field=field,
        trace_id=str(trace or ""),
        span_id=span_id,
        parent_id=str(given("parent_span_id", "parentSpanId", "parent_id")[0] or ""),
        name=str(span.get("name") or ""),
        attributes=attributes,
        events=[_event(event, f"{prefix}events") for event in _array(events or [], f"{prefix}events")],
        start_s=time_s(*given("start_time", "startTimeUnixNano", "start_time_unix_nano", "startTime")),
        end_s=time_s(*given("end_time", "endTimeUnixNano", "end_time_unix_nano", "endTime")),
        failed=code in (2, "2", "ERROR", "STATUS_CODE_ERROR", "StatusCode.ERROR"),
        agent=agent if isinstance(agent, str) else None,
        service=service if isinstance(service, str) else None,
    )


def _event(event: Any, field: str) -> tuple[str, Attributes]:
    event = _object(event, field)
    return str(event.get("name") or ""), _attributes(event.get("attributes"), f"{field}.attributes")


def _attributes(found: Any, field: str) -> Attributes:
    """An object, or OTLP's list of {key, value: {stringValue: ...}}."""
    if found is None:
        return {}
    if isinstance(found, dict):
        return found
    out: Attributes = {}
    for pair in _array(found, field):
        pair = _object(pair, field)
        if not isinstance(pair.get("key"), str):
            raise LineError('expected {"key": ..., "value": ...}', field=field)
        out[pair["key"]] = _value(pair.get("value"), f"{field}[{pair['key']}]")
    return out


def _value(value: Any, field: str) -> Any:
    if not isinstance(value, dict):
        return value
    for name, found in value.items():
        if name in ("stringValue", "string_value", "boolValue", "bool_value", "doubleValue", "double_value"):
            return found
        if name in ("intValue", "int_value"):  # OTLP writes 64-bit integers as text.
            try:
                return int(found)
            except (TypeError, ValueError):
                raise LineError(f"{str(found)[:40]} is no whole number", field=field) from None
        if name in ("arrayValue", "array_value"):
            return [_value(each, field) for each in _array(_object(found, field).get("values", []), field)]
        if name in ("kvlistValue", "kvlist_value"):
            return _attributes(_object(found, field).get("values", []), field)
    return None


def _array(value: Any, field: str) -> list[Any]:
    if not isinstance(value, list):
        raise LineError("expected an array", field=field)
    return value


def _object(value: Any, field: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise LineError("expected an object", field=field)
    return value
