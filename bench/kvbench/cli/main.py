"""The command line: which commands there are, and what an error of the user's looks like.

Command modules import nothing heavy at their top: `kvbench --help` has to come within 0.3 s.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from typing import Annotated, NoReturn

import typer

from kvbench import __version__
from kvbench.cli import (
    claims,
    compare,
    fit,
    gate,
    history,
    model,
    nightly,
    plan,
    predict,
    price,
    prices,
    probe,
    run,
    runs,
    show,
    sim,
    trace,
)
from kvbench.errors import EXIT_FAILED, EXIT_INTERRUPTED, KvbenchError
from kvbench.render.text import safe

app = typer.Typer(
    name="kvbench",
    help="Replay agent traces against a live LLM endpoint; measure TTFT, cache hits and throughput.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvbench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    del version


app.command("run", short_help="Replay a trace against an endpoint: TTFT, cache hits, throughput.")(run.run)
app.add_typer(trace.app, name="trace", short_help="Check, describe, convert and make workloads.")
app.command("sim", short_help="Serve a simulated endpoint on loopback until Ctrl-C.")(sim.sim)
app.command("show")(show.show)
app.command("runs")(runs.runs)
app.command("compare", short_help="Compare runs turn by turn: what changed, by how much, and where.")(compare.compare)
app.command("gate", short_help="Judge runs against a baseline: pass, fail or inconclusive.")(gate.gate)
app.command("nightly", short_help="Run a baseline and a candidate in turn, and judge them.")(nightly.nightly)
app.command("history", short_help="List a directory's runs, each metric over nights.")(history.history)
app.command("model", short_help="KV bytes a token and a session: claimed, by config, allocated.")(model.model)
app.command("claims")(claims.claims)
app.command("price")(price.price)
app.command("prices", short_help="Check a price book and list its rows, with their sources.")(prices.prices)
app.add_typer(probe.app, name="probe")
app.command("fit", short_help="Bytes a token, capacity, lifetime and speed, from runs.")(fit.fit)
app.command("predict", short_help="Say what another load, pool or trace would do, from a run.")(predict.predict)
app.command("plan", short_help="Plan a cache: sessions, hit rate, bounds and costs.")(plan.plan)


def _safe(message: str) -> str:
    """A message may quote a trace or a server; its own line ends stay."""
    return "\n".join(map(safe, message.split("\n")))


def main() -> None:
    """Entry point. A KvbenchError becomes one clear line and its exit code; anything else is a defect, and ends with 4:
    a job must not take it for a failed check."""
    try:
        app()
    except KvbenchError as error:
        print(f"kvbench: {_safe(error.message)}", file=sys.stderr)
        if error.hint:
            print(f"  next: {_safe(error.hint)}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except SystemExit:
        # The reader of our output has left (head, less): no error of ours, and nothing more to say. Typer makes a 1 of
        # it, after wrapping the stream so that no flush fails again.
        if type(sys.stdout).__name__ == "PacifyFlushWrapper":
            sys.exit(0)
        raise
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            _end_of_a_defect()
        print(f"kvbench: the output cannot be written: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except Exception:
        _end_of_a_defect()


def _end_of_a_defect() -> NoReturn:
    traceback.print_exc()
    print(
        "kvbench: this is a defect of kvbench, not of what it measured; please report the lines above", file=sys.stderr
    )
    sys.exit(EXIT_FAILED)


if __name__ == "__main__":
    main()
