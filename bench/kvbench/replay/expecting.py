"""The expected hits of a finished run: by which rule, on whose token ids, written to the run directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvbench.endpoints.client import Endpoint
from kvbench.endpoints.discovery import EndpointInfo
from kvbench.endpoints.profile import EndpointProfile
from kvbench.errors import KvbenchError
from kvbench.model import Expectation, Record, Warning
from kvbench.replay.expectation import (
    PromptReplay,
    Tokenize,
    block_rows,
    expect_hits,
    expectation_warnings,
    no_expectation,
)
from kvbench.replay.hashed import HashPrompts
from kvbench.replay.local_ids import LocalIds
from kvbench.replay.marked import expect_marked
from kvbench.replay.rules import choose_rule
from kvbench.replay.schedule import Arrival
from kvbench.replay.settings import RunSettings
from kvbench.runs.writer import RunWriter
from kvbench.traces.native import TraceFile
from kvbench.traces.prefix import BreakpointsRule
from kvbench.traces.prefix.marks import MARK
from kvbench.traces.tokenizers import load_tokenizer


@dataclass(frozen=True)
class Expecting:
    """What one run's expectations depend on. simulated: kvbench started the endpoint, whose times scale with the
    trace's."""

    trace: TraceFile
    profile: EndpointProfile
    settings: RunSettings
    endpoint: Endpoint
    info: EndpointInfo
    writer: RunWriter
    hashed: HashPrompts | None
    tokenize: Tokenize
    simulated: bool

    async def work_out(self, records: Sequence[Record], arrivals: Mapping[str, Arrival]) -> list[Warning]:
        """Token ids are asked for when nothing is being timed any more; what stands in the way becomes a warning."""
        if not records:
            return [no_expectation("nothing was sent")]
        scale = self.settings.time_scale if self.simulated else 1.0
        rule, why_not = choose_rule(self.profile.expected_hits, self.info, time_scale=scale)
        if rule is None:
            return [no_expectation(why_not)]
        run_id = self.writer.info.run_id
        prompts = PromptReplay(
            self.trace,
            arrivals,
            self.settings,
            run_id,
            salt_in_text=not self.endpoint.salt_field,
            resend_reasoning=self.endpoint.resends_reasoning,
            hashed=self.hashed,
        )

        def emit(record: Record, expectation: Expectation) -> None:
            self.writer.expectation(record.request_id, record.attempt, expectation)

        if isinstance(rule, BreakpointsRule):
            whole = self.profile.extra_body.get(MARK)
            return expect_marked(prompts.prompts(records), rule, self.settings, emit, whole=whole)
        try:
            local = self._local_ids()
        except KvbenchError as error:
            return [no_expectation(error.message)]
        blocks = block_rows(rule, run_id, self.writer.blocks)
        sent = prompts.prompts(records)
        return await expectation_warnings(expect_hits(sent, self.tokenize, rule, self.settings, emit, local, blocks))

    def _local_ids(self) -> LocalIds | None:
        name = self.profile.tokenizer
        if name is None or self.info.dialect == "vllm":
            return None
        tokenizer = load_tokenizer(name)
        return LocalIds(tokenizer.encode, tokenizer.name)
