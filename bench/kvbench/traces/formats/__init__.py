"""The formats in which traces and logs are published, in the order in which they are tried."""

from __future__ import annotations

from kvbench.traces.formats.aiperf import AIPERF
from kvbench.traces.formats.azure import AZURE, SPLITWISE
from kvbench.traces.formats.bailian import BAILIAN
from kvbench.traces.formats.base import Format
from kvbench.traces.formats.burstgpt import BURSTGPT
from kvbench.traces.formats.chat_lines import OPENAI_MESSAGES, SHAREGPT
from kvbench.traces.formats.claude_code import CLAUDE_CODE
from kvbench.traces.formats.codex import CODEX
from kvbench.traces.formats.codex_exec import CODEX_EXEC
from kvbench.traces.formats.litellm import LITELLM
from kvbench.traces.formats.mini_swe_agent import MINI_SWE_AGENT
from kvbench.traces.formats.mooncake import MOONCAKE
from kvbench.traces.formats.native import NATIVE
from kvbench.traces.formats.openhands import OPENHANDS
from kvbench.traces.formats.openhands_completions import OPENHANDS_COMPLETIONS
from kvbench.traces.formats.otel import OTEL
from kvbench.traces.formats.request_log import REQUEST_LOG
from kvbench.traces.formats.swe_agent import SWE_AGENT
from kvbench.traces.formats.tracelab import TRACELAB
from kvbench.traces.formats.weka import WEKA

FORMATS: tuple[Format, ...] = (
    NATIVE,
    CLAUDE_CODE,
    TRACELAB,
    CODEX,
    CODEX_EXEC,
    OPENHANDS,
    OPENHANDS_COMPLETIONS,
    SWE_AGENT,
    MINI_SWE_AGENT,
    WEKA,
    OTEL,
    BAILIAN,
    AIPERF,
    LITELLM,
    REQUEST_LOG,
    MOONCAKE,
    SHAREGPT,
    OPENAI_MESSAGES,
    AZURE,
    SPLITWISE,
    BURSTGPT,
)
FORMAT_NAMES: tuple[str, ...] = tuple(format.name for format in FORMATS)

__all__ = ["FORMATS", "FORMAT_NAMES", "NATIVE"]
