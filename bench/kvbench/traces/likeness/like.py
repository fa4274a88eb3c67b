"""A trace that is like another one: measured, fitted, made, and measured again."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvbench.traces.blocks import BlockedTrace
from kvbench.traces.likeness.distance import Likeness, likeness
from kvbench.traces.likeness.fit import fitted
from kvbench.traces.likeness.sample import Sample, sample
from kvbench.traces.native import TraceFile, open_trace
from kvbench.traces.output import Write
from kvbench.traces.synth.fields import BlocksRecipe
from kvbench.traces.synth.recipe import Made, synthesis


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace is like, and a recipe of it."""

    name: str
    sample: Sample
    recipe: BlocksRecipe

    def write(self, write: Write, *, seed: int | None, sessions: int | None) -> Made:
        return synthesis(self.recipe, f"fitted to {self.name}", seed=seed, sessions=sessions).write(write)

    def compared(self, result: Path) -> Likeness:
        """How close the trace in `result` is to the source."""
        with open_trace(result) as trace:
            return likeness(self.sample, sample(BlockedTrace(trace)))


def fit(trace: TraceFile, *, block_size: int | None = None) -> Fitted:
    """Measure an open trace, of text or of hash ids. block_size: for text."""
    name = trace.header.name or trace.path.stem
    measured = sample(BlockedTrace(trace, block_size=block_size))
    counts = {"tree": trace.tree_count, "session": trace.session_count, "turn": trace.turn_count}
    about = f"{name}: " + ", ".join(f"{n} {noun}" + ("" if n == 1 else "s") for noun, n in counts.items())
    return Fitted(name=name, sample=measured, recipe=fitted(measured, f"like-{name}", about))
