"""Arguments that every command reading a trace has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from fractions import Fraction

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
BytesOption = Annotated[
    str | None,
    typer.Option("--bytes-per-token", metavar="B", help="Also give sizes in bytes, at B bytes a token of KV cache."),
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME", help="Bytes a token by this model's architecture (kvbench model NAME)."),
]


def given_bytes_per_token(given: str | None, model: str | None) -> Fraction | None:
    from fractions import Fraction

    from kvbench.errors import UsageError

    if model is not None:
        if given is not None:
            raise UsageError("--bytes-per-token and --model both say what a token takes", hint="give one of them")
        from kvbench.analysis.models import bytes_model

        return bytes_model(model).bytes_per_token
    if given is None:
        return None
    try:
        found = Fraction(given)
    except (ValueError, ZeroDivisionError):
        found = Fraction(0)
    if not 0 < found < 10**9:
        raise UsageError(f"--bytes-per-token {given}: not a number of bytes above 0", hint="as 890 or 3514.25")
    return found
