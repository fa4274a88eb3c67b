"""`python -m kvbench.sim`: the simulated endpoint as a process of its own; one JSON line on stdout when it is ready."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from kvbench.errors import KvbenchError
from kvbench.sim.presets import DEFAULT_PRESET
from kvbench.sim.server import run
from kvbench.sim.settings import parse_settings, resolve_preset


def main(argv: list[str] | None = None) -> int:
    """Exit code; errors a user can cause go to stderr, one line each."""
    parser = argparse.ArgumentParser(prog="python -m kvbench.sim", description=__doc__)
    parser.add_argument("--preset", default=DEFAULT_PRESET)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--time-scale", type=float, default=1.0)
    parser.add_argument("--set", action="append", default=[], metavar="PARAMETER=VALUE")
    parser.add_argument("--truth-log", type=Path)
    parser.add_argument("--api-key-env", help="name of the environment variable that holds the key to require")
    parser.add_argument("--until-stdin-ends", action="store_true")
    args = parser.parse_args(argv)

    def ready(url: str) -> None:
        print(json.dumps({"url": url, "pid": os.getpid()}), flush=True)

    try:
        run(
            resolve_preset(args.preset, parse_settings(args.set)),
            port=args.port,
            on_ready=ready,
            time_scale=args.time_scale,
            truth_log=args.truth_log,
            api_key=os.environ[args.api_key_env] if args.api_key_env else None,
            until_stdin_ends=args.until_stdin_ends,
        )
    except KvbenchError as error:
        print(error.message, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
