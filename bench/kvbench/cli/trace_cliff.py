"""`kvbench trace cliff`: at how many live sessions a cache of a given size stops holding them."""

from __future__ import annotations

from typing import Annotated

import typer

from kvbench.cli.trace_options import FormatOption, TraceArgument


def cliff(
    trace: TraceArgument,
    capacity_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="What the cache holds.")],
    sessions: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="The present load: root sessions live at all times.")
    ] = None,
    time_scale: Annotated[
        float, typer.Option(min=0, metavar="F", help="Multiplies the trace's starts and pauses.")
    ] = 1.0,
    block_size: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Tokens a block, for text (default 64). Hash ids have their own."),
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(metavar="SPEC", help="For text: as of kvbench trace curve.")] = None,
    format: FormatOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """The eviction cliff before it is reached: hit rate by number of live sessions at one capacity, the number at which
    it falls, and the capacity below which it would at the present load."""
    from kvbench.analysis.predicting.cliff import cliff_of
    from kvbench.analysis.predicting.load import Load
    from kvbench.analysis.predicting.target import target_of_trace
    from kvbench.render.predict_text import cliff_lines
    from kvbench.traces.blocks import BlockedTrace
    from kvbench.traces.bundled import resolve_trace
    from kvbench.traces.importing import open_workload
    from kvbench.traces.tokenizers import load_tokenizer

    counts = load_tokenizer(tokenizer) if tokenizer is not None else None
    with open_workload(resolve_trace(trace), format=format) as opened:
        own = None if opened.has_hash_ids else block_size
        target = target_of_trace(BlockedTrace(opened, block_size=own, tokenizer=counts))
    found = cliff_of(target, Load(sessions=sessions, time_scale=time_scale).as_replayed(), capacity_tokens)
    if as_json:
        import msgspec

        from kvbench.render.jsonout import json_text

        body = {"trace": target.name, **msgspec.to_builtins(found), "notes": list(target.notes)}
        typer.echo(json_text(body))
    else:
        typer.echo("\n".join(cliff_lines(found)))
        for note in target.notes:
            typer.echo(f"note: {note}", err=True)
