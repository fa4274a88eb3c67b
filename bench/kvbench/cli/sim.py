"""`kvbench sim`: the simulated endpoint in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def sim(
    preset: Annotated[str, typer.Argument(help="Which endpoint to simulate.")] = "vllm-small",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Loopback port; 0 takes any free one.")] = 8000,
    time_scale: Annotated[
        float, typer.Option(min=0, help="Multiplies how long what is cached lives and takes to build, no latency.")
    ] = 1.0,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="PARAMETER=VALUE", help="Override a parameter of the preset.")
    ] = None,
    truth_log: Annotated[Path | None, typer.Option(help="Append what happened to each request (JSONL).")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="Require the key that this environment variable holds.")
    ] = None,
) -> None:
    """Serve a simulated endpoint on loopback until Ctrl-C: real HTTP, vLLM's or DeepSeek's dialect, a known cache."""
    import os

    from kvbench.errors import UsageError
    from kvbench.sim.server import run
    from kvbench.sim.settings import parse_settings, resolve_preset

    if api_key_env is not None and not os.environ.get(api_key_env):
        raise UsageError(f"--api-key-env {api_key_env}: the environment variable is not set")
    chosen = resolve_preset(preset, parse_settings(set_ or []))

    kept = f"block {chosen.block_size}, cache {chosen.capacity_tokens:,} tokens"
    if chosen.prefix == "units":
        kept = f"prefix units in steps of {chosen.unit_granularity_tokens} tokens"

    # The bundled trace has prompts of 22,000 tokens.
    task = "run agent-trace.jsonl" if chosen.max_model_len >= 32_768 else "probe capacity"

    def ready(url: str) -> None:
        typer.echo(url)
        typer.echo(
            f"{chosen.name}: {chosen.description}\n"
            f"model {chosen.model}, {kept}, context {chosen.max_model_len:,} tokens\n"
            f"next   kvbench {task} --endpoint {url}\n"
            f"truth  curl {url}/sim/truth",
            err=True,
        )

    run(
        chosen,
        port=port,
        on_ready=ready,
        time_scale=time_scale,
        truth_log=truth_log,
        api_key=os.environ[api_key_env] if api_key_env else None,
    )
