"""Traces with text: agents that share prompts, call tools, wait for people, and hand work to sub-agents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from kvbench.model import Message, Session, SharedPrompt, Tree, Turn, TurnRef
from kvbench.traces.synth.dice import Dice
from kvbench.traces.synth.fields import AgentsRecipe, FanOut, LogNormalSeconds
from kvbench.traces.synth.names import letters
from kvbench.traces.synth.writer import Answer, Writer, callable_tools, message_tokens, tokens_of

_MS = 3  # Trace times are written to the millisecond.


def shared_prompts(recipe: AgentsRecipe) -> list[SharedPrompt]:
    return [_prompt(recipe, name) for name in recipe.prompts]


def trees(recipe: AgentsRecipe, roots: int) -> Iterator[Tree]:
    """In order of their start. More roots than the recipe has arrive at the recipe's rate."""
    return (_Root(recipe, number).build() for number in range(1, roots + 1))


def _prompt(recipe: AgentsRecipe, name: str) -> SharedPrompt:
    prompt = recipe.prompts[name]
    tools = []
    for tool in prompt.tools:
        described = recipe.tools[tool]
        function = {"name": tool, "description": described.description, "parameters": described.parameters}
        tools.append({"type": "function", "function": function})
    messages = ({"role": "system", "content": prompt.system.strip()},)
    return SharedPrompt(name=name, messages=messages, tools=tuple(tools))


class _Agent:
    """One session being written: its turns, the size of its context, and the answer its last turn gives."""

    def __init__(self, recipe: AgentsRecipe, session_id: str, prefix: str) -> None:
        self.recipe = recipe
        self.session_id = session_id
        self.prefix = prefix
        self.dice = Dice(f"{recipe.seed}/{session_id}")
        self.writer = Writer(recipe, self.dice, session_id)
        self.turns: list[Turn] = []
        self.context_tokens = tokens_of(len(recipe.prompts[prefix].system))
        self.tools = callable_tools(recipe.prompts[prefix].tools, recipe.tools)
        self.answer: Answer | None = None

    def output_tokens(self) -> int:
        wanted = self.recipe.lengths.output
        return round(self.dice.log_normal(wanted.median, wanted.sigma, *wanted.range))

    def result_tokens(self) -> int:
        wanted = self.recipe.lengths.tool_result
        room = self.recipe.lengths.context_tokens - self.context_tokens
        drawn = round(self.dice.log_normal(wanted.median, wanted.sigma, *wanted.range))
        return max(wanted.range[0], min(room // 3, drawn))

    def pause_s(self, wanted: LogNormalSeconds) -> float:
        return round(self.dice.log_normal(wanted.median_s, wanted.sigma, *wanted.range_s), _MS)

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
    """A root session with its sub-agents. `number` counts from 1; `place` is the same, again and again from 1 to the
    recipe's number of roots."""

    def __init__(self, recipe: AgentsRecipe, number: int) -> None:
        self.recipe = recipe
        self.number = number
        self.place = (number - 1) % recipe.shape.roots + 1
        self.fan_outs = {fan_out.turn: fan_out for fan_out in recipe.fan_out if fan_out.root in (None, self.place)}
        self.agent = _Agent(recipe, f"s{number:02d}", recipe.shape.agent)
        self.children: list[Session] = []

    def build(self) -> Tree:
        recipe, shape, agent, dice = self.recipe, self.recipe.shape, self.agent, self.agent.dice
        step = shape.starts_within_s / shape.roots
        start_s = 0.0 if self.number == 1 else round(step * (self.number - 1 + dice.uniform(-0.4, 0.4)), _MS)
        count = dice.integer(*(shape.turns_with_fan_out or shape.turns if self.fan_outs else shape.turns))
        human = self._human_turns(count)
        budget = self._output_budget()
        added = [agent.writer.user("tasks", dice.integer(*recipe.lengths.task))]
        fields: dict[str, Any] = {"start_s": start_s}
        results: list[Message]
        for turn in range(count):
            wanted = agent.output_tokens()
            if budget is not None:
                room = budget - sum(past.output_tokens or 0 for past in agent.turns)
                wanted = max(20, min(wanted, 2 * room // (count - turn)))
            next_is_human = turn + 1 in human
            fan_out = self.fan_outs.get(turn)
            if fan_out is not None:
                questions = [agent.writer.question() for _ in range(self._children(fan_out))]
                answer, results = agent.writer.spawn(questions), []
            elif turn == count - 1 or next_is_human or not agent.tools:
                answer = agent.writer.closing(wanted)
                results = [agent.writer.user("follow_ups", recipe.lengths.follow_up)]
            else:
                sizes = [agent.result_tokens() for _ in range(2 if dice.chance(shape.parallel_calls) else 1)]
                answer, results = agent.writer.tool_turn(agent.tools, wanted, sizes)
            agent.take_turn(added, answer, **fields)
            fields = {"delay_s": agent.pause_s(recipe.pauses.human if next_is_human else recipe.pauses.tool)}
            if fan_out is not None:
                called = self._explore(fan_out, questions, answer)
                results = [message for _, message in called]
                fields = {
                    "delay_s": agent.pause_s(recipe.pauses.tool),
                    "after": tuple(child.session_id for child, _ in called),
                }
            added = [*agent.said(), *results]
            if self.place == shape.compacted and turn == count // 2 and not next_is_human:
                added = [agent.writer.summary(), *added]
                fields |= {"replace": True, "prefix": agent.prefix}
                agent.context_tokens = tokens_of(len(recipe.prompts[agent.prefix].system))
        session = self._fitted(agent.session(), start_s, human)
        return Tree(root_id=agent.session_id, start_s=start_s, sessions=(session, *self.children))

    @property
    def _quiet(self) -> bool:
        return self.place in self.recipe.shape.quiet

    def _output_budget(self) -> int | None:
        shape = self.recipe.shape
        if self.fan_outs:
            return shape.output_tokens_with_fan_out or shape.output_tokens
        return (shape.output_tokens_quiet if self._quiet else None) or shape.output_tokens

    def _human_turns(self, count: int) -> set[int]:
        first = min(self.recipe.shape.human_from, count - 1)
        if first < 1:
            return set()
        dice = self.agent.dice
        human = {dice.integer(first, count - 1) for _ in range(dice.integer(*self.recipe.shape.human_turns))}
        return human - {turn + more for turn in self.fan_outs for more in (0, 1)}

    def _children(self, fan_out: FanOut) -> int:
        fewest, most = fan_out.children
        return fewest if fewest == most else self.agent.dice.integer(fewest, most)

    def _explore(self, fan_out: FanOut, questions: list[str], spawned: Answer) -> list[tuple[Session, Message]]:
        """Write the sub-agents of a turn; their reports are the results of the calls that started them."""
        lengths, pauses = self.recipe.lengths, self.recipe.pauses
        called: list[tuple[Session, Message]] = []
        for question, call in zip(questions, spawned.message["tool_calls"], strict=True):
            child = _Agent(self.recipe, f"{self.agent.session_id}.{letters(len(self.children))}", fan_out.agent)
            count = child.dice.integer(*fan_out.child_turns)
            added: list[Message] = [{"role": "user", "content": question}]
            fields: dict[str, Any] = {
                "parent": TurnRef(self.agent.session_id, fan_out.turn),
                "delay_s": round(child.dice.uniform(*pauses.spawn_s), _MS),
            }
            for number in range(count):
                found: list[Message]
                if number == count - 1 or not child.tools:
                    answer, found = child.writer.report(child.dice.integer(*lengths.report)), []
                else:
                    wanted = min(child.output_tokens(), lengths.child_output)
                    answer, found = child.writer.tool_turn(child.tools, wanted, [child.result_tokens()])
                child.take_turn(added, answer, **fields)
                fields = {"delay_s": child.pause_s(pauses.tool)}
                added = [*child.said(), *found]
            self.children.append(child.session())
            report = added[0]["content"]
            called.append((self.children[-1], {"role": "tool", "tool_call_id": call["id"], "content": report}))
        return called

    def _length_s(self, turns: Sequence[Turn]) -> float:
        """Pauses and the time allowed for answers, in trace time."""
        token_s = self.recipe.shape.output_token_s
        return sum(turn.delay_s + token_s * (turn.output_tokens or 0) for turn in turns)

    def _fitted(self, session: Session, start_s: float, human: set[int]) -> Session:
        """Shorten a person's pauses so that the session ends in time, answers included; a quiet one ends just then."""
        ends_within_s = self.recipe.shape.ends_within_s
        if ends_within_s is None:
            return session
        # More roots than the recipe has start later, and end as much later.
        ends_within_s += self.recipe.shape.starts_within_s * ((self.number - self.place) // self.recipe.shape.roots)
        path = [*session.turns, *max((child.turns for child in self.children), key=self._length_s, default=())]
        waits = self._length_s(path)
        by_hand = sum(turn.delay_s for turn in session.turns if turn.turn in human)
        room = ends_within_s - start_s - (waits - by_hand)
        if not by_hand or (by_hand <= room and not self._quiet):
            return session
        factor = max(room, 0.0) / by_hand
        turns = (
            msgspec.structs.replace(turn, delay_s=round(turn.delay_s * factor, _MS)) if turn.turn in human else turn
            for turn in session.turns
        )
        return Session(session_id=session.session_id, turns=tuple(turns))
