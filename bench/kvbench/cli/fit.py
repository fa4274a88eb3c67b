"""`kvbench fit`: what runs say of an endpoint's cache and speed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvbench.errors import EXIT_CHECK_FAILED, EXIT_INCONCLUSIVE, EXIT_OK, UsageError

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
    chunk_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Tokens of a prefill step (vLLM: max_num_batched_tokens); else one is looked for."
        ),
    ] = None,
    replay_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="So many tokens of each hit are computed again; else as known.")
    ] = None,
    tier_bandwidth: Annotated[
        float | None,
        typer.Option(
            metavar="BYTES_PER_S", help="Of the tier below HBM: gives bytes a token from a restored one's time."
        ),
    ] = None,
    hbm_bandwidth: Annotated[
        float | None,
        typer.Option(
            metavar="BYTES_PER_S", help="Of all that share a step: gives what it reads of a token of context."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Bytes a token, capacity, lifetime and speed from probes and replays, with intervals; refused where they cannot
    be told."""
    from kvbench.analysis.fit.fit import fit_runs
    from kvbench.analysis.fit.given import Given
    from kvbench.runs.reader import load_run, resolve_run

    if kv_memory is not None and kv_memory <= 0:
        raise UsageError(f"--kv-memory {kv_memory}: must be more than 0 bytes")
    given = Given(
        chunk_tokens=chunk_tokens,
        replay_tokens=replay_tokens,
        tier_bytes_per_s=tier_bandwidth,
        hbm_bytes_per_s=hbm_bandwidth,
    ).check()
    report = fit_runs([load_run(resolve_run(run)) for run in runs], kv_memory_bytes=kv_memory, given=given)
    raise typer.Exit(shown(report, json))


def shown(report: FitReport, as_json: bool) -> int:
    """Print it; 3 where nothing could be estimated, or no capacity though a run was there to tell it. An audit: 0
    confirmed, 1 disputed, 3 cannot tell."""
    if as_json:
        import msgspec

        typer.echo(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        from kvbench.render.fittext import fit_lines

        typer.echo("\n".join(fit_lines(report)))
    if report.verdict is not None:
        return {"confirmed": EXIT_OK, "disputed": EXIT_CHECK_FAILED}.get(report.verdict, EXIT_INCONCLUSIVE)
    of_cache = ("capacity_tokens", "bytes_per_token")
    refused = any(r.name in of_cache for r in report.refusals) and not any(map(report.named, of_cache))
    return EXIT_OK if report.estimates and not refused else EXIT_INCONCLUSIVE
