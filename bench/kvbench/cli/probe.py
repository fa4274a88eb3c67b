"""`kvbench probe`: designed experiments against a live endpoint."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvbench.cli.endpoint import EndpointOption, in_event_loop, opened_endpoint
from kvbench.cli.fit import shown
from kvbench.errors import EXIT_INTERRUPTED, UsageError

if TYPE_CHECKING:
    from kvbench.replay.probes.probe import Experiment

app = typer.Typer(
    name="probe",
    help="Ask an endpoint what no replay can tell: designed experiments.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

OutOption = Annotated[Path, typer.Option(metavar="DIR", help="Where the run directory is made.")]
ModelOption = Annotated[str | None, typer.Option(metavar="M", help="The model to ask.")]
RequestsOption = Annotated[int, typer.Option(metavar="N", help="Send at most N requests.")]
TokensOption = Annotated[int | None, typer.Option(metavar="N", help="Send at most N prompt tokens.")]
HoursOption = Annotated[float, typer.Option(metavar="H", help="Send nothing after H hours.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask before it starts.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.callback()
def _group() -> None:
    pass


@app.command()
def capacity(
    endpoint: EndpointOption,
    kv_memory: Annotated[
        int | None,
        typer.Option(metavar="BYTES", help="What the endpoint has for its KV cache: bytes per token follow from it."),
    ] = None,
    input_tokens: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Lengths of the prompts, as 501,1001,2001. Default: three that fit."),
    ] = None,
    max_requests: RequestsOption = 250,
    max_tokens: TokensOption = None,
    max_hours: HoursOption = 1.0,
    model: ModelOption = None,
    out: OutOption = Path("runs"),
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """How many tokens the prefix cache holds: fill it until the first prompts are lost, then read it backwards."""
    from kvbench.replay.probes.capacity import CapacityDesign, CapacityProbe

    if kv_memory is not None and kv_memory <= 0:
        raise UsageError(f"--kv-memory {kv_memory}: must be more than 0 bytes")
    design = CapacityDesign(kv_memory_bytes=kv_memory, input_tokens=_lengths(input_tokens))
    settings = {"kv_memory_bytes": kv_memory, "input_tokens": list(design.input_tokens)}
    limits = (max_requests, max_hours, max_tokens)
    _probe("capacity", endpoint, CapacityProbe(design).probe, settings, limits, model, out, yes, json)


@app.command()
def granularity(
    endpoint: EndpointOption,
    max_requests: RequestsOption = 100,
    max_tokens: TokensOption = None,
    max_hours: HoursOption = 1.0,
    model: ModelOption = None,
    out: OutOption = Path("runs"),
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Which hit rule holds: block size, least hit, what is computed again."""
    from kvbench.replay.probes.granularity import GranularityProbe

    limits = (max_requests, max_hours, max_tokens)
    _probe("granularity", endpoint, GranularityProbe().probe, {}, limits, model, out, yes, json)


@app.command()
def ttl(
    endpoint: EndpointOption,
    max_age: Annotated[float, typer.Option(metavar="S", help="Age of the oldest prompt that is asked for, seconds.")],
    min_age: Annotated[float, typer.Option(metavar="S", help="Age of the youngest, seconds.")] = 1.0,
    passes: Annotated[int, typer.Option(metavar="N", help="Each takes up to --max-age and narrows the bracket.")] = 3,
    input_tokens: Annotated[int, typer.Option(metavar="N", help="Length of the prompts.")] = 1_201,
    max_requests: RequestsOption = 100,
    max_tokens: TokensOption = None,
    max_hours: HoursOption = 24.0,
    model: ModelOption = None,
    out: OutOption = Path("runs"),
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """How long a cached prompt lives that nobody asks for: one prompt for each age."""
    from msgspec import to_builtins

    from kvbench.replay.probes.ttl import TtlDesign, TtlProbe

    design = TtlDesign(max_age_s=max_age, min_age_s=min_age, passes=passes, input_tokens=input_tokens).check()
    limits = (max_requests, max_hours, max_tokens)
    _probe("ttl", endpoint, TtlProbe(design).probe, to_builtins(design), limits, model, out, yes, json)


@app.command()
def latency(
    endpoint: EndpointOption,
    cells: Annotated[int, typer.Option(metavar="N", help="Pairs of uncached and cached tokens.")] = 60,
    repeats: Annotated[int, typer.Option(metavar="N", help="Measurements of each.")] = 5,
    max_input_tokens: Annotated[int, typer.Option(metavar="N", help="Longest prompt.")] = 32_768,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the pairs and their order.")] = 0,
    max_requests: RequestsOption = 1_000,
    max_tokens: TokensOption = None,
    max_hours: HoursOption = 1.0,
    model: ModelOption = None,
    out: OutOption = Path("runs"),
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """What a hit and a miss cost in time: TTFT over uncached and cached tokens, in random order."""
    from msgspec import to_builtins

    from kvbench.replay.probes.latency import LatencyDesign, LatencyProbe

    design = LatencyDesign(cells=cells, repeats=repeats, max_input_tokens=max_input_tokens, seed=seed).check()
    limits = (max_requests, max_hours, max_tokens)
    _probe("latency", endpoint, LatencyProbe(design).probe, to_builtins(design), limits, model, out, yes, json)


@app.command()
def consistency(
    endpoint: EndpointOption,
    prompts: Annotated[int, typer.Option(metavar="N", help="How many prompts are compared.")] = 20,
    input_tokens: Annotated[int, typer.Option(metavar="N", help="Their length.")] = 1_001,
    output_tokens: Annotated[int, typer.Option(metavar="N", help="Length of the answers.")] = 32,
    max_requests: RequestsOption = 250,
    max_tokens: TokensOption = None,
    max_hours: HoursOption = 1.0,
    model: ModelOption = None,
    out: OutOption = Path("runs"),
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Whether an answer from the cache is the one that was computed: the same prompts cold and cached, greedy."""
    from msgspec import to_builtins

    from kvbench.replay.probes.consistency import ConsistencyDesign, ConsistencyProbe

    design = ConsistencyDesign(prompts=prompts, input_tokens=input_tokens, output_tokens=output_tokens).check()
    limits = (max_requests, max_hours, max_tokens)
    _probe("consistency", endpoint, ConsistencyProbe(design).probe, to_builtins(design), limits, model, out, yes, json)


@app.command()
def occupancy(
    endpoint: EndpointOption,
    kv_memory: Annotated[
        int | None,
        typer.Option(metavar="BYTES", help="What the endpoint has for its KV cache, where it does not say so itself."),
    ] = None,
    input_tokens: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Lengths of the prompts, as 1000,2000,4000. Default: three that fit."),
    ] = None,
    repeats: Annotated[int, typer.Option(metavar="N", help="Of each number of requests and length.")] = 2,
    max_requests: RequestsOption = 250,
    max_tokens: TokensOption = None,
    max_hours: HoursOption = 1.0,
    model: ModelOption = None,
    out: OutOption = Path("runs"),
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """What a token and a request take of the pool, by the server's own gauge, while some are kept generating."""
    from kvbench.replay.probes.occupancy import OccupancyDesign, OccupancyProbe

    if kv_memory is not None and kv_memory <= 0:
        raise UsageError(f"--kv-memory {kv_memory}: must be more than 0 bytes")
    design = OccupancyDesign(kv_memory_bytes=kv_memory, input_tokens=_lengths(input_tokens), repeats=repeats).check()
    settings = {"kv_memory_bytes": kv_memory, "input_tokens": list(design.input_tokens), "repeats": repeats}
    limits = (max_requests, max_hours, max_tokens)
    _probe("occupancy", endpoint, OccupancyProbe(design).probe, settings, limits, model, out, yes, json)


def _lengths(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        found = tuple(int(part.replace("_", "")) for part in text.split(","))
    except ValueError:
        found = (0,)
    if min(found) < 2:
        raise UsageError(f"--input-tokens {text}: not a list of numbers of tokens", hint="as --input-tokens 501,1001")
    return found


def _probe(
    name: str,
    endpoint: str,
    experiment: Experiment,
    settings: dict[str, Any],
    limits: tuple[int, float, int | None],
    model: str | None,
    out: Path,
    yes: bool,
    json: bool,
) -> None:
    from kvbench.analysis.fit.fit import fit_run
    from kvbench.replay.probes.probe import Budget, ProbePlan, run_probe
    from kvbench.runs.reader import load_run

    requests, hours, tokens = limits
    budget = Budget(requests=requests, hours=hours, tokens=tokens).check()
    if not yes and not sys.stdin.isatty():
        raise UsageError(f"probe {name} asks before it starts, and nobody is there to answer", hint="add --yes")
    with contextlib.ExitStack() as stack:
        profile, simulated = opened_endpoint(endpoint, 1.0, stack)
        plan = ProbePlan(
            name=name,
            profile=profile,
            budget=budget,
            settings=settings,
            out_dir=out,
            confirm=_confirm(yes),
            say=_say,
            model=model,
            command=("kvbench", *sys.argv[1:]),
            simulated=simulated,
        )
        run_dir = in_event_loop(run_probe(plan, experiment))
    run = load_run(run_dir)
    code = shown(fit_run(run), json)
    raise typer.Exit(EXIT_INTERRUPTED if run.info.status == "interrupted" else code)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _confirm(yes: bool) -> Callable[[str], bool]:
    def confirm(text: str) -> bool:
        _say(text)
        return yes or typer.confirm("go on?", err=True)

    return confirm
