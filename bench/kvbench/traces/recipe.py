"""Make a workload of coding agents from a recipe (workloads/coding-agent.toml): the same bytes every time.

    python -m kvbench.traces.recipe RECIPE.toml TRACE.jsonl

A recipe gives the shape (sessions, turns, pauses, lengths, fan-outs), the shared prompts and the text's templates.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvbench.errors import InputError
from kvbench.model import Message, Session, SharedPrompt, TraceHeader, Tree, Turn, TurnRef
from kvbench.traces.recipe_text import Answer, Dice, Writer, message_tokens, tokens_of
from kvbench.traces.write import trace_lines

_MS = 3  # Trace times are written to the millisecond.


def build(recipe: dict[str, Any]) -> tuple[TraceHeader, list[SharedPrompt], list[Tree]]:
    """The trace of a recipe: header, shared prompts, trees in order of their start."""
    header = TraceHeader(name=recipe["name"], source=f"recipe coding-agent, seed {recipe['seed']}")
    prompts = [_prompt(recipe, name) for name in recipe["prompts"]]
    fan_outs = {fan_out["root"]: fan_out for fan_out in recipe["fan_out"]}
    trees = [_Root(recipe, number, fan_outs.get(number)).build() for number in range(1, recipe["shape"]["roots"] + 1)]
    return header, prompts, trees


def build_file(recipe_path: Path) -> bytes:
    """The trace's bytes. Raises InputError if the recipe cannot be read."""
    try:
        recipe = tomllib.loads(recipe_path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"cannot be used as a recipe: {error}", path=recipe_path) from None
    return b"".join(trace_lines(*build(recipe)))


def _prompt(recipe: dict[str, Any], name: str) -> SharedPrompt:
    prompt = recipe["prompts"][name]
    tools = tuple({"type": "function", "function": {"name": tool, **recipe["tools"][tool]}} for tool in prompt["tools"])
    return SharedPrompt(name=name, messages=({"role": "system", "content": prompt["system"].strip()},), tools=tools)


class _Agent:
    """One session being written: its turns, the size of its context, and the answer its last turn gives."""

    def __init__(self, recipe: dict[str, Any], session_id: str, prefix: str) -> None:
        self.recipe = recipe
        self.session_id = session_id
        self.prefix = prefix
        self.dice = Dice(f"{recipe['seed']}/{session_id}")
        self.writer = Writer(recipe, self.dice, session_id)
        self.turns: list[Turn] = []
        self.context_tokens = tokens_of(len(recipe["prompts"][prefix]["system"]))
        self.tools = [tool for tool in recipe["prompts"][prefix]["tools"] if tool not in ("spawn_agent", "write_file")]
        self.answer: Answer | None = None

    def output_tokens(self) -> int:
        wanted = self.recipe["lengths"]["output"]
        return round(self.dice.log_normal(wanted["median"], wanted["sigma"], *wanted["range"]))

    def result_tokens(self) -> int:
        wanted = self.recipe["lengths"]["tool_result"]
        low, high = wanted["range"]
        room: int = self.recipe["lengths"]["context_tokens"] - self.context_tokens
        drawn = round(self.dice.log_normal(wanted["median"], wanted["sigma"], low, high))
        return max(int(low), min(room // 3, drawn))

    def pause_s(self, kind: str) -> float:
        wanted = self.recipe["pauses"][kind]
        return round(self.dice.log_normal(wanted["median_s"], wanted["sigma"], *wanted["range_s"]), _MS)

    def take_turn(self, added: list[Message], answer: Answer, **fields: Any) -> None:
        """Add a turn whose recorded answer is `answer`; it opens the next turn's messages."""
        number = len(self.turns)
        if number == 0:
            fields["prefix"] = self.prefix
        content: dict[str, Any] = {"messages" if fields.pop("replace", False) else "append": tuple(added)}
        self.context_tokens += sum(map(message_tokens, added))
        turn = Turn(session_id=self.session_id, turn=number, line=0, output_tokens=answer.tokens, **content, **fields)
        self.turns.append(turn)
        self.answer = answer

    def said(self) -> list[Message]:
        return [self.answer.message] if self.answer is not None else []

    def session(self) -> Session:
        return Session(session_id=self.session_id, turns=tuple(self.turns))


class _Root:
    """A root session with its sub-agents."""

    def __init__(self, recipe: dict[str, Any], number: int, fan_out: dict[str, Any] | None) -> None:
        self.recipe = recipe
        self.number = number
        self.fan_out = fan_out
        self.agent = _Agent(recipe, f"s{number:02d}", "coder")
        self.children: list[Session] = []

    def build(self) -> Tree:
        shape, agent, dice = self.recipe["shape"], self.agent, self.agent.dice
        step = shape["starts_within_s"] / shape["roots"]
        start_s = 0.0 if self.number == 1 else round(step * (self.number - 1 + dice.uniform(-0.4, 0.4)), _MS)
        count = dice.integer(*shape["turns_with_fan_out" if self.fan_out else "turns"])
        human = self._human_turns(count)
        budget = self._output_budget()
        added = [agent.writer.user("tasks", dice.integer(*self.recipe["lengths"]["task"]))]
        fields: dict[str, Any] = {"start_s": start_s}
        results: list[Message]
        for turn in range(count):
            room = budget - sum(past.output_tokens or 0 for past in agent.turns)
            wanted = max(20, min(agent.output_tokens(), 2 * room // (count - turn)))
            next_is_human = turn + 1 in human
            if self.fan_out and turn == self.fan_out["turn"]:
                questions = [agent.writer.question() for _ in range(self.fan_out["children"])]
                answer, results = agent.writer.spawn(questions), []
            elif turn == count - 1 or next_is_human:
                answer = agent.writer.closing(wanted)
                results = [agent.writer.user("follow_ups", 40)]
            else:
                sizes = [agent.result_tokens() for _ in range(2 if dice.chance(0.15) else 1)]
                answer, results = agent.writer.tool_turn(agent.tools, wanted, sizes)
            agent.take_turn(added, answer, **fields)
            fields = {"delay_s": agent.pause_s("human" if next_is_human else "tool")}
            if self.fan_out and turn == self.fan_out["turn"]:
                results = self._explore(questions, turn, answer)
                fields = {"delay_s": agent.pause_s("tool"), "after": tuple(child.session_id for child in self.children)}
            added = [*agent.said(), *results]
            if self.number == shape["compacted"] and turn == count // 2 and not next_is_human:
                added = [agent.writer.summary(), *added]
                fields |= {"replace": True, "prefix": agent.prefix}
                agent.context_tokens = tokens_of(len(self.recipe["prompts"][agent.prefix]["system"]))
        session = self._fitted(agent.session(), start_s, human)
        return Tree(root_id=agent.session_id, start_s=start_s, sessions=(session, *self.children))

    @property
    def _quiet(self) -> bool:
        return self.number in self.recipe["shape"]["quiet"]

    def _output_budget(self) -> int:
        kind = "_with_fan_out" if self.fan_out else "_quiet" if self._quiet else ""
        return int(self.recipe["shape"][f"output_tokens{kind}"])

    def _human_turns(self, count: int) -> set[int]:
        low, high = self.recipe["shape"]["human_turns"]
        return {
            self.agent.dice.integer(3, count - 1) for _ in range(self.agent.dice.integer(low, high))
        } - self._joins()

    def _joins(self) -> set[int]:
        return {self.fan_out["turn"], self.fan_out["turn"] + 1} if self.fan_out else set()

    def _explore(self, questions: list[str], turn: int, spawned: Answer) -> list[Message]:
        """Write the sub-agents of `turn`; their reports are the results of the calls that started them."""
        assert self.fan_out is not None
        results: list[Message] = []
        for question, call in zip(questions, spawned.message["tool_calls"], strict=True):
            child = _Agent(self.recipe, f"{self.agent.session_id}.{chr(ord('a') + len(self.children))}", "explorer")
            count = child.dice.integer(*self.fan_out["child_turns"])
            added: list[Message] = [{"role": "user", "content": question}]
            fields: dict[str, Any] = {
                "parent": TurnRef(self.agent.session_id, turn),
                "delay_s": round(child.dice.uniform(0.2, 0.6), _MS),
            }
            for number in range(count):
                found: list[Message]
                if number == count - 1:
                    answer, found = child.writer.report(child.dice.integer(120, 220)), []
                else:
                    wanted = min(child.output_tokens(), 90)
                    answer, found = child.writer.tool_turn(child.tools, wanted, [child.result_tokens()])
                child.take_turn(added, answer, **fields)
                fields = {"delay_s": child.pause_s("tool")}
                added = [*child.said(), *found]
            self.children.append(child.session())
            report = added[0]["content"]
            results.append({"role": "tool", "tool_call_id": call["id"], "content": report})
        return results

    def _length_s(self, turns: Sequence[Turn]) -> float:
        """Pauses and the time allowed for answers, in trace time."""
        token_s: float = self.recipe["shape"]["output_token_s"]
        return sum(turn.delay_s + token_s * (turn.output_tokens or 0) for turn in turns)

    def _fitted(self, session: Session, start_s: float, human: set[int]) -> Session:
        """Shorten a person's pauses so that the session ends in time, answers included; a quiet one ends just then."""
        path = [*session.turns, *max((child.turns for child in self.children), key=self._length_s, default=())]
        waits = self._length_s(path)
        by_hand = sum(turn.delay_s for turn in session.turns if turn.turn in human)
        room = self.recipe["shape"]["ends_within_s"] - start_s - (waits - by_hand)
        if by_hand <= room and not self._quiet:
            return session
        factor = max(room, 0.0) / by_hand
        turns = (
            msgspec.structs.replace(turn, delay_s=round(turn.delay_s * factor, _MS)) if turn.turn in human else turn
            for turn in session.turns
        )
        return Session(session_id=session.session_id, turns=tuple(turns))


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        Path(arguments[1]).write_bytes(build_file(Path(arguments[0])))
    except InputError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
