"""`kvbench predict`: hit rate and TTFT of another load, pool or trace, from a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvbench.cli.output import say
from kvbench.cli.trace_options import FormatOption
from kvbench.errors import EXIT_INCONCLUSIVE, EXIT_OK, UsageError

if TYPE_CHECKING:
    from kvbench.analysis.predicting.load import Load
    from kvbench.analysis.predicting.target import Target


def predict(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run that is fitted: its directory or id.")],
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TARGET]", help="Another run, to be held against, or a trace. Default: RUN's own trace."
        ),
    ] = None,
    sessions: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Root sessions live at all times. Default: as TARGET ran, or RUN."),
    ] = None,
    capacity_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="What the cache holds. Default: as fitted.")
    ] = None,
    time_scale: Annotated[
        float | None, typer.Option(min=0, metavar="F", help="Multiplies the trace's starts and pauses.")
    ] = None,
    max_in_flight: Annotated[int | None, typer.Option(min=1, metavar="N", help="At most N requests at a time.")] = None,
    latency: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="A latency probe of the endpoint: its TTFT terms in place of RUN's."),
    ] = None,
    replay_tokens: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="So many tokens of each hit are computed again; else as known."),
    ] = None,
    split: Annotated[
        bool, typer.Option("--split", help="Fit on half of RUN's session trees, and predict the other half.")
    ] = False,
    block_size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tokens a block, for a TARGET with text (default: RUN's).")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="SPEC", help="For a TARGET with text: as of kvbench trace curve.")
    ] = None,
    format: FormatOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Fit a run, and say what hit rate and TTFT another load, pool or trace would have, and where the hit rate falls;
    with the error where that was run too."""
    from kvbench.analysis.fit.given import Given
    from kvbench.analysis.predicting.predict import model_of
    from kvbench.analysis.predicting.predict import predict as predicted
    from kvbench.analysis.predicting.split import split as halves
    from kvbench.render.predict_text import predict_lines
    from kvbench.runs.reader import load_run, resolve_run

    if split and (target is not None or sessions is not None or capacity_tokens is not None):
        raise UsageError(
            "--split predicts the run's other half as it ran; TARGET, --sessions and --capacity-tokens say otherwise",
            hint="leave them out, or leave --split out",
        )
    fitted = load_run(resolve_run(run))
    given = Given(replay_tokens=replay_tokens).check()
    if split:
        found = halves(fitted, given)
    else:
        said = {"sessions": sessions, "time_scale": time_scale, "max_in_flight": max_in_flight}
        changed = {name: value for name, value in said.items() if value is not None}
        what, load, ran = _target(target, fitted.path, block_size, tokenizer, format)
        load = load_of(load, changed)
        model = model_of(
            fitted, given, capacity_tokens, latency_run=load_run(resolve_run(latency)) if latency else None
        )
        observed = ran and not changed and (capacity_tokens is None or target is not None)
        found = predicted(str(fitted.path), model, what, load, load.told, observed=observed)
    if json:
        from kvbench.render.jsonout import json_text

        say(json_text(found))
    else:
        say("\n".join(predict_lines(found)))
    raise typer.Exit(EXIT_OK if found.figures else EXIT_INCONCLUSIVE)


def load_of(load: Load, changed: dict[str, int | float]) -> Load:
    """With what the options say otherwise."""
    from msgspec.structs import replace

    return replace(load, **changed).as_replayed()


def _target(
    target: str | None, fitted: Path, block_size: int | None, tokenizer: str | None, format: str | None
) -> tuple[Target, Load, bool]:
    """What to predict, the load that it ran at (or RUN did), and whether it ran."""
    from kvbench.analysis.predicting.load import Load
    from kvbench.analysis.predicting.target import block_size_of, target_of_run, target_of_trace
    from kvbench.runs.reader import load_info, load_run, resolve_run
    from kvbench.runs.writer import RUN_FILE
    from kvbench.traces.blocks import BlockedTrace
    from kvbench.traces.bundled import resolve_trace
    from kvbench.traces.importing import open_workload
    from kvbench.traces.tokenizers import load_tokenizer

    if target is None or (Path(target) / RUN_FILE).is_file() or (Path("runs") / target / RUN_FILE).is_file():
        path = fitted if target is None else resolve_run(target)
        return target_of_run(load_run(path)), Load.of_run(load_info(path).settings), True
    counts = load_tokenizer(tokenizer) if tokenizer is not None else None
    with open_workload(resolve_trace(target), format=format) as opened:
        own = None if opened.has_hash_ids else block_size or block_size_of(fitted)
        blocked = BlockedTrace(opened, block_size=own, tokenizer=counts)
        return target_of_trace(blocked), Load.of_run(load_info(fitted).settings), False
