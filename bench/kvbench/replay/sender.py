"""What the runner sends through: prompts in the endpoint's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvbench.endpoints.client import Endpoint
from kvbench.endpoints.discovery import EndpointInfo
from kvbench.errors import ConfigError, InputError
from kvbench.model import Record, Request
from kvbench.replay.prompts import Prompt
from kvbench.replay.settings import RunSettings
from kvbench.traces.native import TraceFile
from kvbench.traces.reasoning import carries_reasoning


def thinking(trace: TraceFile, info: EndpointInfo, settings: RunSettings) -> bool | None:
    """A recorded history without reasoning is one whose models did not think (or whose thoughts are lost, and DeepSeek
    wants them back): thinking is then disabled. None leaves it to the endpoint."""
    if info.dialect != "deepseek" or settings.history == "live":
        return None
    return None if carries_reasoning(trace) else False


class EndpointSender:
    """Prompts in the endpoint's words."""

    def __init__(
        self,
        endpoint: Endpoint,
        info: EndpointInfo,
        settings: RunSettings,
        model: str | None,
        thinking: bool | None = None,
        model_map: Mapping[str, str] | None = None,
    ) -> None:
        self._model_map = model_map or {}
        self._thinking = thinking
        self._endpoint = endpoint
        self._info = info
        self._settings = settings
        self._model = model

    @property
    def salt_field(self) -> bool:
        return self._endpoint.salt_field

    def body(self, prompt: Prompt, output_tokens: int | None) -> dict[str, Any]:
        return self._endpoint.build_body(
            messages=prompt.messages,
            prompt=prompt.token_ids,
            tools=prompt.tools,
            output_tokens=output_tokens,
            salt=prompt.salt if self.salt_field else None,
            free_output=self._settings.output == "free",
            model=self.model(prompt),
            thinking=self._thinking,
            return_token_ids=prompt.token_ids is not None and self._settings.history == "live",
        )

    def model(self, prompt: Prompt) -> str:
        """--model wins over the trace, the trace over the profile; --model-map replaces some of the trace's names."""
        if self._model is not None or prompt.model is None:
            return self._info.model
        return self._model_map.get(prompt.model, prompt.model)

    def check_models(self, trace: TraceFile) -> None:
        """Before the first turn: a model that is not there would end the run at the turn that names it.

        InputError for a model of the trace that the endpoint does not serve, ConfigError for a mapped name that the
        trace does not have.
        """
        named = trace.models
        for name in self._model_map:
            if name not in named:
                raise ConfigError(
                    f"--model-map {name}={self._model_map[name]}: no turn of the trace names the model {name!r}",
                    hint=f"it names {', '.join(named)}" if named else "it names none: use --model M",
                )
        if self._model is not None or not self._info.models:
            return
        for name, line in named.items():
            model = self._model_map.get(name, name)
            if model in self._info.models:
                continue
            mapped = "" if model == name else f" (from {name!r} by --model-map)"
            raise InputError(
                f"names the model {model!r}{mapped}, which the endpoint does not serve; "
                f"it serves {', '.join(self._info.models)}",
                path=trace.path,
                line=line or None,
                hint=f"add --model M to replay every turn on M, or --model-map {name}=M for these",
            )

    async def send(self, request: Request) -> Record:
        return await self._endpoint.send(request)

    async def tokenize(self, prompt: Prompt) -> list[int] | None:
        return await self._endpoint.tokenize(
            prompt.messages, prompt.tools, self.model(prompt), prompt.token_ids, self._thinking
        )
