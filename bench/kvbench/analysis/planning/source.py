"""Where a field of a plan was set, so that an error can say so: an option, or a line of the profile."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from kvbench.errors import InputError, KvbenchError, UsageError

OPTIONS = {
    "model.name": "--model",
    "model.tensor_parallel": "--tp",
    "memory.kv": "--kv-memory",
    "memory.hbm": "--hbm",
    "memory.weights": "--weights",
    "memory.activations": "--activations",
    "memory.reserve": "--reserve",
    "traffic.trace": "--trace",
    "traffic.context": "--context",
    "traffic.new_tokens": "--new-tokens",
    "traffic.output_tokens": "--output",
}
"""Fields that have an option of `kvbench plan`, which comes before the profile's."""


class Source(msgspec.Struct, frozen=True):
    """path and text: the profile, where there is one. options: those given, by field."""

    path: Path | None
    text: str
    options: Mapping[str, Any]

    def wrong(self, field: str, message: str, hint: str | None = None) -> KvbenchError:
        """The error for a field, saying where it is set, or where it could be."""
        if self.path is None or field in self.options:
            name = OPTIONS.get(field, field)
            return UsageError(f"{name}: {message}", hint=hint)
        line = line_of(self.text, field) or line_of(self.text, field.rpartition(".")[0] or field)
        return InputError(message, path=self.path, line=line, field=field, hint=hint)

    def beside(self, field: str, name: str) -> str:
        """A path of the profile counts from the profile's directory, where there is such a file."""
        if self.path is None or field in self.options:
            return name
        try:
            found = self.path.parent / Path(name).expanduser()
            return str(found) if found.exists() else name
        except (OSError, ValueError, RuntimeError):
            return name


def line_of(text: str, field: str) -> int | None:
    """Line (from 1) on which a dotted field stands, or its table begins, as far as a look at the text can tell."""
    *tables, key = re.sub(r"\[\d+\]", "", field).split(".")
    number = re.search(r"\[(\d+)\]", field)
    table = ".".join(tables)
    passed = -1
    current, begun = "", None
    setting = re.compile(rf"\s*[\"']?{re.escape(key)}[\"']?\s*(=|\.)")
    inline = re.compile(rf"\s*{re.escape(tables[0])}\s*(=|\.\s*{re.escape(key)}\b)") if tables else None
    for at, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]", line)
        if header:
            current = header[2]
            passed += header[1] == "[[" and current == table
            if current == table and (number is None or passed == int(number[1])):
                begun = at
            if not tables and current == key:
                return at
            continue
        here = current == table and (number is None or passed == int(number[1]))
        if (here and setting.match(line)) or (inline is not None and not current and inline.match(line)):
            return at
    return begun
