"""What agents do that makes a prefix cache useless: the time in the system prompt, tool schemas in changing order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from kvbench.model import Message, Recorded, Session, SharedPrompt, Tree, Turn
from kvbench.traces.context import Context, ContextBuilder
from kvbench.traces.synth.dice import Dice
from kvbench.traces.synth.fields import AgentsRecipe, Hostile
from kvbench.traces.timeline import timeline

_START = datetime(2026, 3, 2, 9, tzinfo=UTC)
"""Trace time 0, in the prompts: a Monday morning."""


def spoiled(tree: Tree, prompts: Mapping[str, SharedPrompt], recipe: AgentsRecipe) -> Tree:
    """The same tree, with its prompts as the recipe's `hostile` says; one that needs no change is returned as it is."""
    hostile = recipe.hostile
    if hostile.timestamp is None and hostile.tool_order is None:
        return tree
    starts: list[dict[int, float]] = [{} for _ in tree.sessions]
    for timed in timeline(_answered(tree, recipe.shape.output_token_s)):
        starts[timed.session][timed.turn] = timed.start_s
    sessions = tuple(
        Session(
            session_id=session.session_id, turns=tuple(_turns(session, prompts, hostile, recipe.seed, starts[number]))
        )
        for number, session in enumerate(tree.sessions)
    )
    return Tree(root_id=tree.root_id, start_s=tree.start_s, sessions=sessions)


def _answered(tree: Tree, output_token_s: float) -> Tree:
    """The tree as if its answers had taken their time: requests of one second would have one time in their prompts."""
    sessions = []
    for session in tree.sessions:
        turns = tuple(
            msgspec.structs.replace(turn, recorded=Recorded(e2e_s=output_token_s * (turn.output_tokens or 0)))
            for turn in session.turns
        )
        sessions.append(Session(session_id=session.session_id, turns=turns))
    return msgspec.structs.replace(tree, sessions=tuple(sessions))


def _turns(
    session: Session, prompts: Mapping[str, SharedPrompt], hostile: Hostile, seed: int, starts: dict[int, float]
) -> Iterator[Turn]:
    dice = Dice(f"{seed}/{session.session_id}/hostile")
    builder = ContextBuilder(prompts)
    order: list[Any] | None = None
    for turn in session.turns:
        context = builder.next(turn)
        fields: dict[str, Any] = {}
        begins = turn.prefix is not None
        if hostile.timestamp == "turn":
            fields = {"prefix": None, "append": None, "messages": _stamped(context, starts[turn.turn])}
        elif hostile.timestamp == "session" and begins:
            # the prompt's own messages stand before what the turn brings
            fields = {"prefix": None, "append" if turn.append is not None else "messages": _stamped(context, starts[0])}
        if hostile.tool_order is not None and context.tools and (begins or hostile.tool_order == "turn"):
            if order is None or hostile.tool_order == "turn":
                order = dice.shuffled(context.tools)
            fields["tools"] = tuple(order)
        elif hostile.timestamp is not None and begins and context.tools:
            fields["tools"] = context.tools
        yield msgspec.structs.replace(turn, **fields)


def _stamped(context: Context, at_s: float) -> tuple[Message, ...]:
    assert context.messages
    first, *rest = context.messages
    now = (_START + timedelta(seconds=int(at_s))).strftime("%Y-%m-%dT%H:%M:%SZ")
    return ({**first, "content": f"The current time is {now}.\n\n{first['content']}"}, *rest)
