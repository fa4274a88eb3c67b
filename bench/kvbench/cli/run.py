"""`kvbench run`: replay a trace against an endpoint and say what it took."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kvbench.cli.endpoint import EndpointOption, in_event_loop, opened_endpoint
from kvbench.cli.max_cost import spending_limit
from kvbench.cli.output import say, verdict_outlives_reader
from kvbench.cli.trace_options import FormatOption, NestedOption, TraceArgument
from kvbench.errors import EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, EXIT_OK, UsageError

if TYPE_CHECKING:
    from kvbench.model import Summary
    from kvbench.replay.budget import Budget


def run(
    trace: TraceArgument,
    endpoint: EndpointOption,
    model: Annotated[str | None, typer.Option(metavar="M", help="Replay every turn on this model.")] = None,
    model_map: Annotated[
        list[str] | None,
        typer.Option(metavar="A=B", help="Replay the trace's turns on model A on B; may be given again."),
    ] = None,
    format: FormatOption = None,
    nested_t: NestedOption = "auto",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the run directory is made.")] = Path("runs"),
    time_scale: Annotated[
        float, typer.Option(metavar="F", help="Multiplies the trace's starts and pauses; 0: no pauses.")
    ] = 1.0,
    max_pause: Annotated[
        float | None, typer.Option(metavar="S", help="Cap pauses at S seconds of trace time, before scaling.")
    ] = None,
    sessions: Annotated[
        int | None, typer.Option(metavar="N", help="Keep N root sessions live at all times, in file order.")
    ] = None,
    rate: Annotated[float | None, typer.Option(metavar="R", help="Let R root sessions a second arrive.")] = None,
    rate_shape: Annotated[Literal["poisson", "constant"], typer.Option(help="How --rate arrives.")] = "poisson",
    duration: Annotated[float | None, typer.Option(metavar="S", help="Start no turn after S seconds.")] = None,
    warmup: Annotated[int, typer.Option(metavar="N", help="The first N turns are recorded, but not measured.")] = 0,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of arrivals.")] = 0,
    max_in_flight: Annotated[int | None, typer.Option(metavar="N", help="At most N requests at a time.")] = None,
    retries: Annotated[int, typer.Option(metavar="N", help="Attempts after the first, where one can help.")] = 0,
    history: Annotated[
        Literal["recorded", "live"], typer.Option(help="Send the trace's answers, or those just received.")
    ] = "recorded",
    salt: Annotated[
        Literal["run", "tree", "none"] | None,
        typer.Option(help="Cache namespaces: one a run (without --rules), one a session tree, or none."),
    ] = None,
    output: Annotated[
        Literal["recorded", "free"], typer.Option(help="As many tokens as in the trace, or as the model likes.")
    ] = "recorded",
    rules: Annotated[
        Literal["agentx"] | None,
        typer.Option(help="Published rules to measure by, docs/agentx.md; the run says whether it kept to them."),
    ] = None,
    max_cost: Annotated[
        str | None,
        typer.Option(metavar="AMOUNT", help="Stop before the run can have cost more, in the price book's currency."),
    ] = None,
    prices: Annotated[
        list[str] | None,
        typer.Option(metavar="BOOK", help="Of --max-cost: a bundled price book or a TOML. Without: all bundled ones."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the summary.")] = False,
) -> None:
    """Replay TRACE's sessions against an endpoint; measure TTFT, cache hits and throughput; keep every record."""
    from kvbench.render.progress import Progress
    from kvbench.replay.run import Plan, replay
    from kvbench.replay.settings import RunSettings
    from kvbench.traces.bundled import resolve_trace
    from kvbench.traces.importing import open_workload

    settings = RunSettings.of(
        time_scale=time_scale,
        max_pause_s=max_pause,
        sessions=sessions,
        rate=rate,
        rate_shape=rate_shape,
        duration_s=duration,
        warmup=warmup,
        seed=seed,
        max_in_flight=max_in_flight,
        retries=retries,
        history=history,
        salt=salt,
        output=output,
        rules=rules,
    )
    models = _model_map(model_map or ())
    budget = _budget(max_cost, prices, output)
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(open_workload(resolve_trace(trace), format=format, nested_t=nested_t))
        for sentence in opened.imported.sentences() if opened.imported else ():
            print(f"import: {sentence}", file=sys.stderr)
        profile, simulated = opened_endpoint(endpoint, settings.time_scale, stack)
        plan = Plan(
            trace=opened,
            profile=profile,
            settings=settings,
            out_dir=out,
            model=model,
            model_map=models,
            command=("kvbench", *sys.argv[1:]),
            simulated=simulated,
            budget=budget,
        )
        once = not settings.reuses_trees
        progress = Progress(opened.turn_count if once else None, opened.session_count if once else None)
        run_dir = in_event_loop(replay(plan, progress))
    summary = _show(run_dir, json)
    raise typer.Exit(exit_code(summary))


def _budget(max_cost: str | None, prices: list[str] | None, output: str) -> Budget | None:
    if max_cost is None:
        if prices:
            raise UsageError("--prices is of --max-cost, and there is none", hint="kvbench price RUN prices a run")
        return None
    if output == "free":
        raise UsageError("--max-cost needs answers with a bound, and --output free has none", hint="leave one out")
    from kvbench.prices.load import load_prices

    return spending_limit(max_cost, load_prices(prices))


def _model_map(pairs: Iterable[str]) -> dict[str, str]:
    models: dict[str, str] = {}
    for pair in pairs:
        name, _, other = pair.partition("=")
        if not name or not other:
            raise UsageError(
                f"--model-map {pair}: must be A=B, the trace's name of a model and the one to replay it on",
                hint="for example --model-map claude-haiku-4-5=deepseek-flash",
            )
        if models.setdefault(name, other) != other:
            raise UsageError(f"--model-map gives {name} twice: {models[name]} and {other}", hint="give one of them")
    return models


def _show(run_dir: Path, as_json: bool) -> Summary:
    from kvbench.analysis.summary import summarise
    from kvbench.runs.reader import load_run

    summary = summarise(load_run(run_dir))
    if as_json:
        from kvbench.render.jsonout import json_text, summary_json

        say(json_text(summary_json(summary, run_dir)))
    else:
        from kvbench.render.terminal import print_summary

        with verdict_outlives_reader():
            print_summary(summary, run_dir)
    return summary


def exit_code(summary: Summary) -> int:
    """130 interrupted; 3 degraded, not valid by the rules it was made by, cut short by --max-cost, nothing measured, or
    more than 1% of the turns failed; else 0.
    """
    if summary.status == "interrupted":
        return EXIT_INTERRUPTED
    if summary.rules is not None and not summary.rules.valid:
        return EXIT_INCONCLUSIVE
    if any(warning.code == "max_cost" for warning in summary.warnings):
        return EXIT_INCONCLUSIVE
    failed = summary.requests.failed + summary.requests.skipped
    if summary.trust.verdict == "degraded" or not summary.requests.ok or failed > 0.01 * summary.turns:
        return EXIT_INCONCLUSIVE
    return EXIT_OK
