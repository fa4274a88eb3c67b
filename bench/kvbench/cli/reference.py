"""docs/cli.md from the commands' own help: `python -m kvbench.cli.reference`. A test holds the two together."""

from __future__ import annotations

import os

HEAD = """# Commands

Made from the commands' own help by `make docs`. Data goes to stdout, progress and errors to stderr.
Exit codes stand in the README.
"""
WIDTH = 100


def reference() -> str:
    """The whole page, the same on every terminal."""
    os.environ["COLUMNS"] = os.environ["TERMINAL_WIDTH"] = str(WIDTH)
    from typer.testing import CliRunner

    from kvbench.cli.main import app

    commands: list[list[str]] = [[]]
    for command in app.registered_commands:
        commands.append([str(command.name)])
    for group in app.registered_groups:
        commands.append([str(group.name)])
        assert group.typer_instance is not None
        for command in group.typer_instance.registered_commands:
            name = str(command.name or getattr(command.callback, "__name__", ""))
            commands.append([str(group.name), name])
    parts = [HEAD]
    for words in commands:
        result = CliRunner().invoke(app, [*words, "--help"], prog_name="kvbench", terminal_width=WIDTH)
        if result.exit_code:
            raise RuntimeError(f"{words}: {result.output}")
        text = "\n".join(line.rstrip() for line in result.output.strip().splitlines())
        parts.append(f"## {' '.join(['kvbench', *words])}\n\n```\n{text}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(reference(), end="")
