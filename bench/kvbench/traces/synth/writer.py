"""Believable agent text from a recipe's templates and word lists: a function of the recipe and its dice alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kvbench.model import Message
from kvbench.traces.synth.dice import Dice
from kvbench.traces.synth.fields import AgentsRecipe, Tool

CHARS_PER_TOKEN = 4
"""The recipe's own measure of length; a tokenizer's count differs by text."""

_ARTICLE = re.compile(r"\b([Aa]) (?=[aeio]|un)")
_SLOT = re.compile(r"<([A-Za-z]\w*?)(\d?)>")


class Answer(msgspec.Struct, frozen=True):
    """An assistant message, and its length in the recipe's tokens."""

    message: Message
    tokens: int


class Writer:
    """Writes one session's texts. `paths` keeps the session on a few files, as real work is."""

    def __init__(self, recipe: AgentsRecipe, dice: Dice, session_id: str) -> None:
        self._words = recipe.words
        self._text = recipe.text
        self._results = recipe.results
        self._tools = recipe.tools
        self._dice = dice
        self._session_id = session_id
        self._calls = 0
        self._paths: list[str] = []
        self._topic = {name: dice.choice(self._words[name]) for name in recipe.text.topic}
        for template in recipe.text.paths:
            self._paths = [*self._paths, self.fill(template)]

    # ------------------------------------------------------------------------------------------- messages

    def user(self, kind: str, tokens: int) -> Message:
        return {"role": "user", "content": self._sentences(kind, tokens)}

    def question(self) -> str:
        return self.fill(self._dice.choice(self._text.questions))

    def closing(self, tokens: int) -> Answer:
        return self._plain("closings", tokens)

    def report(self, tokens: int) -> Answer:
        return self._plain("findings", tokens)

    def summary(self) -> Message:
        return {"role": "user", "content": "Summary of the work so far.\n" + self._lines(self._text.summary, 260)}

    def tool_turn(
        self, tools: Sequence[str], tokens: int, result_tokens: Sequence[int]
    ) -> tuple[Answer, list[Message]]:
        """An answer of about `tokens` that calls one tool per entry of `result_tokens`, and the tools' results."""
        calls, results, parts = [], [], []
        for wanted in result_tokens:
            name = self._dice.choice(tools)
            arguments, result = self._use(name, wanted, tokens)
            call, size = self._call(name, arguments)
            calls.append(call)
            parts.append(size)
            results.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        thought = self._sentences("thoughts", max(12, tokens - sum(parts) // CHARS_PER_TOKEN))
        size = len(thought) + sum(parts)
        return Answer({"role": "assistant", "content": thought, "tool_calls": calls}, tokens_of(size)), results

    def spawn(self, questions: Sequence[str]) -> Answer:
        """The answer that starts a sub-agent for each question."""
        calls, size = [], 0
        tool = self._text.spawn_tool
        more = self._filled(self._tools[tool].arguments) if tool in self._tools else {}
        for question in questions:
            call, length = self._call(tool, {"question": question, **more})
            calls.append(call)
            size += length
        thought = self.fill(self._text.spawn)
        return Answer({"role": "assistant", "content": thought, "tool_calls": calls}, tokens_of(size + len(thought)))

    def fill(self, template: str) -> str:
        """`template` with its slots filled; a slot named twice gets the same word twice."""
        drawn: dict[tuple[str, str], str] = {}

        def slot(match: re.Match[str]) -> str:
            name, number = match[1], match[2]
            key = (name.lower(), number)
            base, ending = _base(key[0])
            key = (base, number)
            if key not in drawn:
                drawn[key] = self._draw(base, number)
            word = _inflected(drawn[key], ending)
            return word[0].upper() + word[1:] if name[0].isupper() else word

        return _ARTICLE.sub(r"\1n ", _SLOT.sub(slot, template))

    # -------------------------------------------------------------------------------------------- details

    def _draw(self, name: str, number: str) -> str:
        dice = self._dice
        if name == "n":
            return str(dice.integer(2, 399))
        if name == "ms":
            return str(dice.integer(3, 2999))
        if name == "day":
            return f"{dice.integer(1, 28):02d}"
        if name == "hex":
            return f"{dice.integer(0, 2**32 - 1):08x}"
        if name == "time":
            return f"{dice.integer(0, 23):02d}:{dice.integer(0, 59):02d}:{dice.integer(0, 59):02d}"
        if name == "path":
            return dice.choice(self._paths)
        if name == "home":
            return self._paths[0]
        if not number and name in self._topic and dice.chance(0.5):
            return self._topic[name]
        return dice.choice(self._words[name])

    def _plain(self, kind: str, tokens: int) -> Answer:
        text = self._sentences(kind, tokens)
        return Answer({"role": "assistant", "content": text}, tokens_of(len(text)))

    def _call(self, name: str, arguments: dict[str, Any]) -> tuple[dict[str, Any], int]:
        self._calls += 1
        encoded = json.dumps(arguments)
        call_id = f"call_{self._session_id.replace('.', '_')}_{self._calls:02d}"
        function = {"name": name, "arguments": encoded}
        return {"id": call_id, "type": "function", "function": function}, len(name) + len(encoded)

    def _sentences(self, kind: str, tokens: int) -> str:
        """Templates of `kind`, filled and joined until about `tokens` long (at least one)."""
        limit = tokens * CHARS_PER_TOKEN
        unused = list(getattr(self._text, kind))
        text = ""
        while not text or len(text) < limit - 40:
            template = self._dice.choice(unused)
            unused.remove(template)
            text += " " * bool(text) + self.fill(template)
            unused = unused or list(getattr(self._text, kind))
        return text

    def _lines(self, templates: Sequence[str], tokens: int) -> str:
        limit = tokens * CHARS_PER_TOKEN
        lines: list[str] = []
        size = 0
        while size < limit:
            line = self.fill(self._dice.choice(templates))
            lines.append(line)
            size += len(line) + 1
        return "\n".join(lines)

    def _use(self, name: str, tokens: int, own: int) -> tuple[dict[str, Any], str]:
        """Arguments of a call of tool `name`, and its result of about `tokens`; the answer may have `own` tokens."""
        kind = self._tools[name].result
        if kind is None:
            return _BUILT_IN[name](self, tokens, own)
        return self._filled(self._tools[name].arguments), self._lines(self._results[kind], tokens)

    def _filled(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._filled(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._filled(inner) for inner in value]
        return self.fill(value) if isinstance(value, str) else value

    def _code(self, tokens: int) -> str:
        return self._lines([template.strip("\n") + "\n\n" for template in self._results["code"]], tokens)

    def _read_file(self, tokens: int, _: int) -> tuple[dict[str, Any], str]:
        first = self._dice.integer(1, 160)
        numbered = [f"{first + i:5d}  {line}".rstrip() for i, line in enumerate(self._code(tokens).split("\n"))]
        path = self._dice.choice(self._paths)
        return {"path": path, "first_line": first, "last_line": first + len(numbered) - 1}, "\n".join(numbered)

    def _search(self, tokens: int, _: int) -> tuple[dict[str, Any], str]:
        found = self._lines(self._results["search"], tokens)
        pattern = self.fill(self._dice.choice(["\\b<verb>_<noun>\\b", "<field>", "<noun>\\.<field>", "is_<adjective>"]))
        return {"pattern": pattern, "path": "services"}, found

    def _list_directory(self, tokens: int, _: int) -> tuple[dict[str, Any], str]:
        return {"path": self.fill("services/<service>"), "depth": 2}, self._lines(self._results["listing"], tokens)

    def _edit_file(self, tokens: int, own: int) -> tuple[dict[str, Any], str]:
        path = self._dice.choice(self._paths)
        old = self.fill('    row = store.get("<noun>s", <noun>_id)\n    row.<field> = row.<field2>\n')
        new = _cut(self._code(1), (own - 70) * CHARS_PER_TOKEN - len(old))
        region = f"{path}: 1 replacement\n" + self._code(tokens)
        return {"path": path, "old_text": old, "new_text": new}, region

    def _run_command(self, tokens: int, _: int) -> tuple[dict[str, Any], str]:
        command = self.fill(self._dice.choice(["make check-<service>", "python tools/<verb>_<noun>s.py --dry-run"]))
        return {"command": command, "timeout_s": 120}, "exit status 0\n" + self._lines(self._results["log"], tokens)

    def _run_tests(self, tokens: int, _: int) -> tuple[dict[str, Any], str]:
        report = self._lines(self._results["tests"], tokens)
        failed = report.count("FAILED")
        report += f"\n{failed} failed, {report.count('PASSED')} passed in {self._dice.uniform(0.4, 9.0):.2f}s"
        return {"target": self.fill("services/<service>/tests")}, report

    def _git_diff(self, tokens: int, _: int) -> tuple[dict[str, Any], str]:
        path = self._dice.choice(self._paths)
        return {"path": path}, f"--- a/{path}\n+++ b/{path}\n" + self._lines(self._results["diff"], tokens)

    def _query_logs(self, tokens: int, _: int) -> tuple[dict[str, Any], str]:
        arguments = {"service": self._topic["service"], "contains": self._topic["noun"], "level": "info"}
        return arguments, self._lines(self._results["log"], tokens)


_BUILT_IN: dict[str, Callable[[Writer, int, int], tuple[dict[str, Any], str]]] = {
    "read_file": Writer._read_file,
    "search": Writer._search,
    "list_directory": Writer._list_directory,
    "edit_file": Writer._edit_file,
    "run_command": Writer._run_command,
    "run_tests": Writer._run_tests,
    "git_diff": Writer._git_diff,
    "query_logs": Writer._query_logs,
}


def _base(name: str) -> tuple[str, str]:
    """The list a slot draws from, and how the word is inflected: "verbed" is ("verb", "ed")."""
    for ending in ("ed", "ing"):
        if name == f"verb{ending}":
            return "verb", ending
    return name, ""


def _inflected(word: str, ending: str) -> str:
    return (word.removesuffix("e") if ending else word) + ending


def _cut(text: str, chars: int) -> str:
    """The first lines of `text`, up to `chars` long, at least two."""
    lines = text.split("\n")
    size, count = 0, 0
    while count < len(lines) and (count < 2 or size + len(lines[count]) < chars):
        size += len(lines[count]) + 1
        count += 1
    return "\n".join(lines[:count]) + "\n"


def tokens_of(chars: int) -> int:
    """Length in the recipe's tokens, rounded up."""
    return -(-chars // CHARS_PER_TOKEN)


def message_tokens(message: Message) -> int:
    """Length of a message's text and tool calls in the recipe's tokens."""
    calls = message.get("tool_calls") or []
    size = sum(len(call["function"]["name"]) + len(call["function"]["arguments"]) for call in calls)
    return tokens_of(len(message.get("content") or "") + size)


def callable_tools(names: Sequence[str], tools: dict[str, Tool]) -> list[str]:
    """Those of `names` whose calls and results can be written."""
    return [name for name in names if tools[name].result is not None or name in _BUILT_IN]
