"""`kvbench fit`: what runs say of an endpoint's cache and speed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvbench.errors import EXIT_INCONCLUSIVE, EXIT_OK, UsageError

if TYPE_CHECKING:
    from kvbench.model import FitReport


def fit(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Run directories, or ids of runs under ./runs; probes or replays."),
    ],
    kv_memory: Annotated[
        int | None,
        typer.Option(metavar="BYTES", help="What the endpoint has for its KV cache, where the run does not say."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Bytes a token, capacity, lifetime and speed from probes and replays, with intervals; refused where they cannot
    be told."""
    from kvbench.analysis.fit.fit import fit_runs
    from kvbench.runs.reader import load_run, resolve_run

    if kv_memory is not None and kv_memory <= 0:
        raise UsageError(f"--kv-memory {kv_memory}: must be more than 0 bytes")
    report = fit_runs([load_run(resolve_run(run)) for run in runs], kv_memory_bytes=kv_memory)
    raise typer.Exit(shown(report, json))


def shown(report: FitReport, as_json: bool) -> int:
    """Print it; 3 where nothing could be estimated."""
    if as_json:
        import msgspec

        typer.echo(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        from kvbench.render.fittext import fit_lines

        typer.echo("\n".join(fit_lines(report)))
    return EXIT_OK if report.estimates else EXIT_INCONCLUSIVE
