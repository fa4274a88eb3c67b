"""Arguments that every command reading a trace has."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

NestedT = Literal["auto", "absolute", "relative"]

TraceArgument = Annotated[
    str,
    typer.Argument(
        metavar="TRACE",
        help="A trace or log of any format that is read, packed or not; a directory of them; or a bundled workload.",
    ),
]
FormatOption = Annotated[
    str | None,
    typer.Option("--format", metavar="NAME", help="What TRACE is, where its content is not to decide."),
]
NestedOption = Annotated[
    NestedT,
    typer.Option(help="What times inside a Weka sub-agent count from: the trace's start, or the sub-agent's."),
]
