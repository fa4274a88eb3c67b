"""From a recipe to a trace: which generator makes it, and in which order its lines stand."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from kvbench.model import SharedPrompt, TraceHeader, Tree
from kvbench.traces.output import Write
from kvbench.traces.synth import agents, blocks
from kvbench.traces.synth.fields import BlocksRecipe, Recipe
from kvbench.traces.synth.hostile import spoiled
from kvbench.traces.write import trace_lines


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """What was made."""

    name: str
    seed: int
    trees: int
    sessions: int
    turns: int


class Synthesis(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be made, tree by tree; the trees can be taken once."""

    header: TraceHeader
    seed: int
    prompts: tuple[SharedPrompt, ...]
    trees: Iterator[Tree]

    def write(self, write: Write) -> Made:
        trees = sessions = turns = 0

        def counted() -> Iterator[Tree]:
            nonlocal trees, sessions, turns
            for tree in self.trees:
                trees += 1
                sessions += len(tree.sessions)
                turns += sum(len(session.turns) for session in tree.sessions)
                yield tree

        for line in trace_lines(self.header, self.prompts, counted()):
            write(line)
        return Made(name=self.header.name, seed=self.seed, trees=trees, sessions=sessions, turns=turns)


def synthesis(recipe: Recipe, name: str, *, seed: int | None = None, sessions: int | None = None) -> Synthesis:
    """The trace of a recipe. `name` is for the header; sessions: root sessions, instead of the recipe's."""
    if seed is not None:
        recipe = msgspec.structs.replace(recipe, seed=seed)
    source = f"recipe {name}, seed {recipe.seed}" + ("" if sessions is None else f", {sessions} root sessions")
    header = TraceHeader(name=recipe.name, source=source)
    if isinstance(recipe, BlocksRecipe):
        header = msgspec.structs.replace(header, block_size=recipe.block_size)
        return Synthesis(
            header=header, seed=recipe.seed, prompts=(), trees=blocks.trees(recipe, sessions or recipe.roots)
        )
    made = agents.trees(recipe, sessions or recipe.shape.roots)
    prompts = {prompt.name: prompt for prompt in agents.shared_prompts(recipe)}
    trees = (spoiled(tree, prompts, recipe) for tree in made)
    named = () if recipe.hostile.timestamp is not None else tuple(prompts.values())
    return Synthesis(header=header, seed=recipe.seed, prompts=named, trees=trees)
