"""`kvbench trace convert`: a trace in another format, or without its texts and names."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kvbench.cli.trace_options import FormatOption, NestedOption, TraceArgument

if TYPE_CHECKING:
    from kvbench.traces.import_report import ImportReport
    from kvbench.traces.writers.report import ExportReport


def convert(
    trace: TraceArgument,
    out: Annotated[
        str,
        typer.Argument(
            metavar="OUT",
            help="The file to write, packed where it ends in .gz or .zst; - is stdout. None is overwritten.",
        ),
    ],
    to: Annotated[Literal["native", "mooncake", "weka"], typer.Option(help="The format of OUT.")] = "native",
    anonymise: Annotated[
        bool, typer.Option("--anonymise", help="Put ids of blocks in the place of texts, and numbers in that of names.")
    ] = False,
    block_size: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens a block, for texts (64; mooncake: 512). Ids in TRACE keep their own."),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="What counts the tokens of texts: a tokenizer.json, deepseek or tiktoken:PATH. Else 4 characters.",
        ),
    ] = None,
    key_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A secret that makes the ids of several anonymised traces agree."),
    ] = None,
    format: FormatOption = None,
    nested_t: NestedOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a trace in another format, or anonymised; say what was made up and what OUT cannot hold."""
    from pathlib import Path

    from kvbench.errors import UsageError
    from kvbench.traces.bundled import resolve_trace
    from kvbench.traces.importing import open_workload
    from kvbench.traces.output import trace_output
    from kvbench.traces.tokenizers import load_tokenizer
    from kvbench.traces.writers.convert import Conversion
    from kvbench.traces.writers.ids import read_key

    if as_json and out == "-":
        raise UsageError("--json goes to stdout, and so does the trace", hint="name a file for the trace")
    counter = load_tokenizer(tokenizer) if tokenizer is not None else None
    key = read_key(Path(key_file)) if key_file is not None else None
    file = None if out == "-" else Path(out)
    with (
        trace_output(file, replace=False) as write,
        open_workload(resolve_trace(trace), format=format, nested_t=nested_t) as opened,
    ):
        conversion = Conversion(opened, to, anonymise=anonymise, block_size=block_size, tokenizer=counter, key=key)
        report = conversion.write(write)
    if as_json:
        _print_json(trace, out, opened.imported, report)
    else:
        _print_report(opened.imported, report, out)


def _print_json(trace: str, out: str, imported: ImportReport | None, report: ExportReport) -> None:
    from kvbench.render.jsonout import json_text

    shown = {"trace": trace, "out": out, "import": imported, "export": report}
    typer.echo(json_text(shown))


def _print_report(imported: ImportReport | None, report: ExportReport, out: str) -> None:
    """Beside the trace where that goes to stdout."""
    file = sys.stderr if out == "-" else sys.stdout
    for sentence in imported.sentences() if imported else ():
        print(f"{'import':<10} {sentence}", file=file)
    for sentence in report.sentences():
        print(f"{'written':<10} {sentence}", file=file)
