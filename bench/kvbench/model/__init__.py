"""The types that cross rooms, and nothing else. The unit is in the name; None means not reported, never 0."""

from __future__ import annotations

from kvbench.model.audits import Check, CheckVerdict, Counted
from kvbench.model.fits import Estimate, FitReport, Misfit, Refusal
from kvbench.model.predictions import Cliff, CliffPoint, Figure, Predicted
from kvbench.model.requests import Api, Clock, Expectation, Phase, Record, Request, Usage
from kvbench.model.runs import RUN_SCHEMA_VERSION, OwnError, RulesCheck, RunInfo, Spent, Trust, Warning
from kvbench.model.summary import ExpectedHits, PromptLengths, Quantiles, RequestCounts, ServerFigures, Summary, Verdict
from kvbench.model.traces import (
    TRACE_VERSION,
    Message,
    Recorded,
    Session,
    SharedPrompt,
    TraceHeader,
    Tree,
    Turn,
    TurnRef,
)

__all__ = [
    "RUN_SCHEMA_VERSION",
    "TRACE_VERSION",
    "Api",
    "Check",
    "CheckVerdict",
    "Cliff",
    "CliffPoint",
    "Clock",
    "Counted",
    "Estimate",
    "Expectation",
    "ExpectedHits",
    "Figure",
    "FitReport",
    "Message",
    "Misfit",
    "OwnError",
    "Phase",
    "Predicted",
    "PromptLengths",
    "Quantiles",
    "Record",
    "Recorded",
    "Refusal",
    "Request",
    "RequestCounts",
    "RulesCheck",
    "RunInfo",
    "ServerFigures",
    "Session",
    "SharedPrompt",
    "Spent",
    "Summary",
    "TraceHeader",
    "Tree",
    "Trust",
    "Turn",
    "TurnRef",
    "Usage",
    "Verdict",
    "Warning",
]
