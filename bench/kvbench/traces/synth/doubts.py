"""What is wrong with a recipe whose fields all have their types: names that are not there, ranges that are none."""

from __future__ import annotations

from kvbench.traces.synth.fields import AgentsRecipe, BlocksRecipe, Recipe


def doubts(recipe: Recipe) -> list[tuple[str, str]]:
    """(field, what is wrong with it), of all that the types cannot say."""
    return _agents_doubts(recipe) if isinstance(recipe, AgentsRecipe) else _blocks_doubts(recipe)


def _agents_doubts(recipe: AgentsRecipe) -> list[tuple[str, str]]:
    out = []
    known = f"one of prompts: {', '.join(recipe.prompts)}"
    shape = recipe.shape
    if shape.agent not in recipe.prompts:
        out.append(("shape.agent", known + found(shape.agent)))
    for name, prompt in recipe.prompts.items():
        out += [
            (f"prompts.{name}.tools", f"one of tools: {', '.join(recipe.tools)}{found(tool)}")
            for tool in prompt.tools
            if tool not in recipe.tools
        ]
    for name, tool in recipe.tools.items():
        if tool.result is not None and tool.result not in recipe.results:
            out.append((f"tools.{name}.result", f"one of results: {', '.join(recipe.results)}{found(tool.result)}"))
    ranges = {
        "shape.turns": shape.turns,
        "shape.turns_with_fan_out": shape.turns_with_fan_out,
        "shape.human_turns": shape.human_turns,
        "lengths.task": recipe.lengths.task,
        "lengths.report": recipe.lengths.report,
    }
    out += [(field, "from .. to, in this order") for field, pair in ranges.items() if pair and pair[0] > pair[1]]
    if shape.turns[0] < 1:
        out.append(("shape.turns", "a session has at least 1 turn"))
    turns = shape.turns_with_fan_out or shape.turns
    for number, fan_out in enumerate(recipe.fan_out):
        if fan_out.agent not in recipe.prompts:
            out.append((f"fan_out[{number}].agent", known + found(fan_out.agent)))
        if fan_out.turn + 2 > turns[0]:
            message = f"a turn that has another one after it, which waits: below {turns[0] - 1} with these turns"
            out.append((f"fan_out[{number}].turn", message + found(fan_out.turn)))
        if fan_out.child_turns[0] < 1 or fan_out.child_turns[0] > fan_out.child_turns[1]:
            out.append((f"fan_out[{number}].child_turns", "from 1 or more, to as many or more"))
        if not (recipe.text.questions and recipe.text.findings and recipe.text.spawn):
            out.append(("text", "sub-agents need questions, findings and spawn"))
    if shape.compacted and not recipe.text.summary:
        out.append(("text.summary", "a root that is compacted needs it"))
    return out


def _blocks_doubts(recipe: BlocksRecipe) -> list[tuple[str, str]]:
    out: list[tuple[str, str]] = []
    names = [prompt.name for prompt in recipe.prompts]
    for kind in ("root", "sub_agent"):
        shape = getattr(recipe, kind)
        if shape is None:
            continue
        by_turn = {"growth_tokens": shape.growth_tokens, "output_tokens": shape.output_tokens, "pause_s": shape.pause_s}
        by_turn |= {"spawn.chance": shape.spawn.chance} if shape.spawn else {}
        out += [(f"{kind}.{field}", "an empty list") for field, amounts in by_turn.items() if amounts == ()]
        groups = {f"{kind}.begins": shape.begins}
        groups |= {f"{kind}.cuts[{number}].begins": cut.begins for number, cut in enumerate(shape.cuts)}
        for field, begins in groups.items():
            if sum(begin.weight for begin in begins) <= 0:
                out.append((f"{field}[0].weight", "weights are not all 0"))
            for number, begin in enumerate(begins):
                where = f"{field}[{number}]"
                if begin.prompt is not None and begin.prompt not in names:
                    out.append(
                        (f"{where}.prompt", f"one of prompts: {', '.join(names) or 'none'}{found(begin.prompt)}")
                    )
                if begin.with_ == "prompt" and not names:
                    out.append((f"{where}.with", "there are no prompts to begin with"))
                if kind == "root" and begin.with_ in ("parent", "sibling"):
                    out.append((f"{where}.with", f"a root session has no {begin.with_}"))
                if ".cuts" not in field and begin.with_ in ("previous", "session"):
                    out.append((f"{where}.with", "a first turn has no turn before it"))
                if (begin.new_tokens is None) == (begin.length_share is None):
                    out.append((where, "a prompt has one of new_tokens and length_share"))
                if begin.length_share is not None and ".cuts" not in field:
                    out.append((f"{where}.length_share", "a first prompt has no turn before it"))
                if begin.whole and (begin.with_ not in ("root", "sub_agent") or begin.blocks is None):
                    out.append((f"{where}.whole", "goes with root or sub_agent, and blocks"))
                if begin.dropped_blocks is not None and begin.with_ != "previous":
                    out.append((f"{where}.dropped_blocks", "goes with the previous turn"))
        if shape.spawn is not None and recipe.sub_agent is None:
            out.append((f"{kind}.spawn", "needs [sub_agent]: how the called sessions are"))
    return out


def found(value: object) -> str:
    """The end of a message that says what is allowed."""
    return "" if value is None else f"; found {value!r}"
