"""`kvbench probe`: designed experiments against a live endpoint."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from kvbench.cli.endpoint import EndpointOption, in_event_loop, opened_endpoint
from kvbench.cli.fit import shown
from kvbench.errors import EXIT_INTERRUPTED, UsageError

app = typer.Typer(
    name="probe",
    help="Ask an endpoint what no replay can tell: designed experiments.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


Design = tuple[Callable[[Any], Awaitable[None]], dict[str, Any]]
"""An experiment, and its own options for run.json."""


@app.callback()
def _group() -> None:
    pass


_SHORT = {
    "capacity": "How many tokens the prefix cache holds, and bytes a token.",
    "granularity": "Which hit rule holds: block size and least hit.",
    "ttl": "How long a cached prompt lives that nobody asks for.",
    "latency": "What a hit and a miss cost in time.",
    "consistency": "Whether answers from the cache are those computed.",
    "occupancy": "What a token and a request take, by the server's gauge.",
    "tokens": "Whether the reported token counts are right.",
}
"""For the list of commands, where a longer text would be cut off at 80 columns."""


def _command(*, requests: int, hours: float = 1.0) -> Callable[[Callable[..., Any]], None]:
    """Make a command of a function from an experiment's own options: those that all experiments have are added, with
    limits of so many requests and hours."""

    def add(design: Callable[..., Design]) -> None:
        def command(
            *,
            endpoint: EndpointOption,
            max_requests: Annotated[int, typer.Option(metavar="N", help="Send at most N requests.")] = requests,
            max_tokens: Annotated[int | None, typer.Option(metavar="N", help="Send at most N prompt tokens.")] = None,
            max_hours: Annotated[float, typer.Option(metavar="H", help="Send nothing after H hours.")] = hours,
            max_cost: Annotated[
                str | None,
                typer.Option(metavar="AMOUNT", help="Stop before it can have cost more, in the price book's currency."),
            ] = None,
            prices: Annotated[
                list[str] | None,
                typer.Option(metavar="BOOK", help="A bundled price book or a TOML. Without: all bundled ones."),
            ] = None,
            model: Annotated[str | None, typer.Option(metavar="M", help="The model to ask.")] = None,
            out: Annotated[Path, typer.Option(metavar="DIR", help="Where the run directory is made.")] = Path("runs"),
            yes: Annotated[bool, typer.Option("--yes", help="Do not ask before it starts.")] = False,
            json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
            **own: Any,
        ) -> None:
            from kvbench.analysis.fit.fit import fit_run
            from kvbench.analysis.fit.given import Given
            from kvbench.cli.max_cost import spending_limit
            from kvbench.prices.load import load_prices
            from kvbench.replay.probes.probe import run_probe
            from kvbench.replay.probes.prober import Budget, ProbePlan
            from kvbench.runs.reader import load_run

            experiment, settings = design(**own)
            budget = Budget(requests=max_requests, hours=max_hours, tokens=max_tokens).check()
            books = load_prices(prices)
            spending = spending_limit(max_cost, books)
            if not yes and not sys.stdin.isatty():
                raise UsageError(
                    f"probe {design.__name__} asks before it starts, and nobody is there to answer", hint="add --yes"
                )
            with contextlib.ExitStack() as stack:
                profile, simulated = opened_endpoint(endpoint, 1.0, stack)
                plan = ProbePlan(
                    name=design.__name__,
                    profile=profile,
                    budget=budget,
                    settings=settings,
                    out_dir=out,
                    confirm=_confirm(yes),
                    say=_say,
                    prices=books,
                    spending=spending,
                    model=model,
                    command=("kvbench", *sys.argv[1:]),
                    simulated=simulated,
                    needs_prompts=design.__name__ != "tokens",
                )
                run_dir = in_event_loop(run_probe(plan, experiment))
            run = load_run(run_dir)
            code = shown(fit_run(run, given=Given(prices=books)), json)
            raise typer.Exit(EXIT_INTERRUPTED if run.info.status == "interrupted" else code)

        app.command(design.__name__, help=design.__doc__, short_help=_SHORT[design.__name__])(
            _with_own_options(command, design)
        )

    return add


def _with_own_options(command: Callable[..., None], design: Callable[..., Any]) -> Callable[..., None]:
    """`command`, in whose signature the parameters of `design` stand for its **own: Typer reads signatures."""
    (endpoint, *common), own = _parameters(command), _parameters(design)
    command.__signature__ = inspect.Signature([endpoint, *own, *common])  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in (endpoint, *own, *common)}
    return command


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(function, include_extras=True)
    return [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]


@_command(requests=250)
def capacity(
    kv_memory: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="BYTES", help="What the endpoint has for its KV cache: bytes per token follow from it."
        ),
    ] = None,
    input_tokens: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Lengths of the prompts, as 501,1001,2001. Default: three that fit."),
    ] = None,
) -> Design:
    """How many tokens the prefix cache holds: fill it until the first prompts are lost, then read it backwards."""
    from kvbench.replay.probes.capacity import CapacityDesign, CapacityProbe

    design = CapacityDesign(kv_memory_bytes=kv_memory, input_tokens=_lengths(input_tokens))
    return CapacityProbe(design).probe, {"kv_memory_bytes": kv_memory, "input_tokens": list(design.input_tokens)}


@_command(requests=100)
def granularity() -> Design:
    """Which hit rule holds: block size, least hit, what is computed again."""
    from kvbench.replay.probes.granularity import GranularityProbe

    return GranularityProbe().probe, {}


@_command(requests=100, hours=24.0)
def ttl(
    max_age: Annotated[float, typer.Option(metavar="S", help="Age of the oldest prompt that is asked for, seconds.")],
    min_age: Annotated[float, typer.Option(metavar="S", help="Age of the youngest, seconds.")] = 1.0,
    passes: Annotated[int, typer.Option(metavar="N", help="Each takes up to --max-age and narrows the bracket.")] = 3,
    input_tokens: Annotated[int, typer.Option(metavar="N", help="Length of the prompts.")] = 1_201,
) -> Design:
    """How long a cached prompt lives that nobody asks for: one prompt for each age."""
    from msgspec import to_builtins

    from kvbench.replay.probes.ttl import TtlDesign, TtlProbe

    design = TtlDesign(max_age_s=max_age, min_age_s=min_age, passes=passes, input_tokens=input_tokens).check()
    return TtlProbe(design).probe, to_builtins(design)


@_command(requests=1_000)
def latency(
    cells: Annotated[int, typer.Option(metavar="N", help="Pairs of uncached and cached tokens.")] = 60,
    repeats: Annotated[int, typer.Option(metavar="N", help="Measurements of each.")] = 5,
    max_input_tokens: Annotated[int, typer.Option(metavar="N", help="Longest prompt.")] = 32_768,
    output_tokens: Annotated[
        int, typer.Option(metavar="N", help="Of each measured answer; with some, what context costs a generated token.")
    ] = 1,
    tier_after_tokens: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", help="Tokens that push a prompt out of HBM (and out of the next tier): hits from there."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the pairs and their order.")] = 0,
) -> Design:
    """What a hit and a miss cost in time: TTFT over uncached and cached tokens, in random order."""
    from msgspec import to_builtins

    from kvbench.replay.probes.latency import LatencyDesign, LatencyProbe

    design = LatencyDesign(
        cells=cells,
        repeats=repeats,
        max_input_tokens=max_input_tokens,
        output_tokens=output_tokens,
        tier_after_tokens=_lengths(tier_after_tokens, "--tier-after-tokens"),
        seed=seed,
    ).check()
    return LatencyProbe(design).probe, to_builtins(design)


@_command(requests=250)
def consistency(
    prompts: Annotated[int, typer.Option(metavar="N", help="How many prompts are compared.")] = 20,
    input_tokens: Annotated[int, typer.Option(metavar="N", help="Their length.")] = 1_001,
    output_tokens: Annotated[int, typer.Option(metavar="N", help="Length of the answers.")] = 32,
) -> Design:
    """Whether an answer from the cache is the one that was computed: the same prompts cold and cached, greedy."""
    from msgspec import to_builtins

    from kvbench.replay.probes.consistency import ConsistencyDesign, ConsistencyProbe

    design = ConsistencyDesign(prompts=prompts, input_tokens=input_tokens, output_tokens=output_tokens).check()
    return ConsistencyProbe(design).probe, to_builtins(design)


@_command(requests=250)
def occupancy(
    kv_memory: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="BYTES", help="What the endpoint has for its KV cache, where it does not say so itself."
        ),
    ] = None,
    input_tokens: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Lengths of the prompts, as 1000,2000,4000. Default: three that fit."),
    ] = None,
    repeats: Annotated[int, typer.Option(metavar="N", help="Of each number of requests and length.")] = 2,
) -> Design:
    """What a token and a request take of the pool, by the server's own gauge, while some are kept generating."""
    from kvbench.replay.probes.occupancy import OccupancyDesign, OccupancyProbe

    design = OccupancyDesign(kv_memory_bytes=kv_memory, input_tokens=_lengths(input_tokens), repeats=repeats).check()
    settings = {"kv_memory_bytes": kv_memory, "input_tokens": list(design.input_tokens), "repeats": repeats}
    return OccupancyProbe(design).probe, settings


@_command(requests=150)
def tokens(
    sizes: Annotated[int, typer.Option(metavar="N", help="How many lengths of prompts, four texts of each.")] = 6,
    max_input_tokens: Annotated[int, typer.Option(metavar="N", help="Longest prompt.")] = 4_096,
    max_output_tokens: Annotated[int, typer.Option(metavar="N", help="Longest sentence to be repeated.")] = 256,
) -> Design:
    """Whether reported token counts are right, by an exact tokenizer. Exit code 0 confirmed, 1 disputed, 3 cannot
    tell."""
    from msgspec import to_builtins

    from kvbench.replay.probes.tokens import TokensDesign, TokensProbe

    design = TokensDesign(sizes=sizes, max_input_tokens=max_input_tokens, max_output_tokens=max_output_tokens).check()
    return TokensProbe(design).probe, to_builtins(design)


def _lengths(text: str | None, option: str = "--input-tokens") -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        found = tuple(int(part.replace("_", "")) for part in text.split(","))
    except ValueError:
        found = (0,)
    if min(found) < 2:
        raise UsageError(f"{option} {text}: not a list of numbers of tokens", hint=f"as {option} 501,1001")
    return found


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _confirm(yes: bool) -> Callable[[str], bool]:
    def confirm(text: str) -> bool:
        _say(text)
        return yes or typer.confirm("go on?", err=True)

    return confirm
