"""The options that write a verdict for machines, shared by the commands that have one."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from kvbench.errors import FailedError, UsageError

JunitOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write JUnit XML: a test case a gate, inconclusive ones skipped.")
]
MarkdownOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a Markdown table.")]
OpenMetricsOption = Annotated[
    Path | None, typer.Option("--openmetrics", metavar="FILE", help="Write OpenMetrics text (gauges).")
]
GithubOption = Annotated[
    bool, typer.Option("--github", help="In a GitHub Actions step: add to its summary, and annotate (on stderr).")
]


@dataclass(frozen=True)
class GateOutputs:
    """Where a verdict goes besides stdout."""

    junit: Path | None = None
    markdown: Path | None = None
    openmetrics: Path | None = None
    github: bool = False

    def check(self) -> GateOutputs:
        """UsageError for what could not be written, before hours of runs."""
        written: dict[Path, str] = {}
        for option in ("junit", "markdown", "openmetrics"):
            path: Path | None = getattr(self, option)
            if path is not None and (path.is_dir() or not path.parent.is_dir()):
                said = "is a directory" if path.is_dir() else f"there is no directory {path.parent}"
                raise UsageError(f"--{option} {path}: {said}", hint="name a file in a directory that exists")
            if path is not None and (other := written.setdefault(path.resolve(), option)) != option:
                raise UsageError(f"--{option} {path}: --{other} writes the same file", hint="name another file")
        if self.github and not os.environ.get("GITHUB_STEP_SUMMARY"):
            raise UsageError(
                "--github: GITHUB_STEP_SUMMARY is not set, so this is no step of GitHub Actions",
                hint="--markdown FILE writes the same table anywhere",
            )
        return self

    def write(self, judged: dict[str, Any], title: str = "kvbench gate") -> None:
        from kvbench.render.junit import junit_xml
        from kvbench.render.markdown import STEP_SUMMARY_BYTES, gate_markdown, github_annotations, step_summary
        from kvbench.render.openmetrics import gate_openmetrics

        if self.junit is not None:
            write_whole(self.junit, junit_xml(judged, title))
        if self.markdown is not None:
            write_whole(self.markdown, gate_markdown(judged, title))
        if self.openmetrics is not None:
            write_whole(self.openmetrics, gate_openmetrics(judged))
        if self.github:
            summary = Path(os.environ["GITHUB_STEP_SUMMARY"])
            # The limit is the step's, and something may have been written before.
            room = STEP_SUMMARY_BYTES - (summary.stat().st_size if summary.exists() else 0)
            try:
                with summary.open("a", encoding="utf-8") as stream:
                    stream.write(step_summary(gate_markdown(judged, title), max(room - 1, 0)))
            except OSError as error:
                raise FailedError(f"GITHUB_STEP_SUMMARY {summary}: cannot be written: {error.strerror}") from None
            print("\n".join(github_annotations(judged)), file=sys.stderr)


def write_whole(path: Path, text: str) -> None:
    """The file appears whole or not at all: a collector may read it at any moment. FailedError where it cannot."""
    from kvbench.traces.output import trace_output

    with trace_output(path) as write:
        write(text.encode())
