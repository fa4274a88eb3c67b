"""The option that says where to send, and what it opens."""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from kvbench.endpoints.profile import EndpointProfile

_T = TypeVar("_T")

EndpointOption = Annotated[
    str,
    typer.Option(
        metavar="URL|deepseek|FILE|sim[:PRESET][?NAME=VALUE&...]",
        help="Where to: a URL, DeepSeek's public API, an endpoint TOML, or a simulated one (parameters after ?).",
    ),
]


def opened_endpoint(
    spec: str, time_scale: float, stack: contextlib.ExitStack
) -> tuple[EndpointProfile, dict[str, Any] | None]:
    """The profile of `spec`; for sim[:PRESET][?...] of a process that is started here and ends with `stack`."""
    from kvbench.endpoints.profile import load_profile
    from kvbench.sim.process import SimProcess
    from kvbench.sim.settings import parse_endpoint

    simulated = parse_endpoint(spec)
    if simulated is None:
        return load_profile(spec), None
    preset, given = simulated
    process = stack.enter_context(SimProcess.start(preset, time_scale=time_scale, settings=given))
    return load_profile(process.url), {"preset": preset, "settings": given, "time_scale": time_scale}


def in_event_loop(work: Coroutine[Any, Any, _T]) -> _T:
    try:
        import uvloop
    except ImportError:  # no wheel for this platform: slower, and just as right
        import asyncio

        return asyncio.run(work)
    return uvloop.run(work)
