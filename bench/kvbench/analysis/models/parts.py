"""What a session holds, as parts: `bytes(n) = F + m * n`, and how a part is shared out over tensor-parallel ranks.

m is in bytes per token, F in bytes per session. A part that grows with every token belongs to m; a part that grows up
to a window and then stays, or that is there from the first token, belongs to F.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import msgspec

from kvbench.analysis.models.numbers import text
from kvbench.errors import UsageError


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one kind of layer, all its layers together, on a single copy of the model.

    kind token: `size` bytes for each token. kind window: `size` bytes for each of the last `window` tokens.
    kind state: `size` bytes for each session. units: into how many equal shares ranks can take it (KV heads, state
    heads); None: every rank holds all of it.
    """

    label: str
    kind: Literal["token", "window", "state"]
    layers: int
    size: Fraction
    window: int = 0
    units: int | None = None
    units_field: str = ""

    @property
    def per_token(self) -> Fraction:
        return self.size if self.kind == "token" else Fraction(0)

    @property
    def per_session(self) -> Fraction:
        """In full: a window's as if it were filled."""
        if self.kind == "token":
            return Fraction(0)
        return self.size * self.window if self.kind == "window" else self.size

    def at(self, tokens: int) -> Fraction:
        """Bytes held by a session of `tokens` tokens; a window holds no more than there are."""
        if self.kind == "token":
            return self.size * tokens
        return self.size * min(tokens, self.window) if self.kind == "window" else self.size

    def rank_share(self, ranks: int) -> Fraction:
        """What share of the part one of `ranks` holds: 1 where it cannot be split.

        Fewer units than ranks: each rank holds one whole unit, so that the ranks together hold copies. Raises
        UsageError where the split is not even.
        """
        units = self.units
        if units is None:
            return Fraction(1)
        if units % ranks and ranks % units:
            raise UsageError(
                f"--tp {ranks} does not split {self.units_field} {units} evenly",
                hint=f"allowed: a number that divides {units}, or a multiple of {units}",
            )
        return Fraction(1, min(units, ranks))


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a derivation. value None: a remark."""

    text: str
    value: Fraction | None = None
    unit: Literal["B/token", "B/session", "B"] = "B"


class ModelBytes(msgspec.Struct, frozen=True, kw_only=True):
    """What an architecture implies for the KV cache, at one cache dtype.

    bytes_per_token (m) and bytes_per_session (F, windows filled) are exact, on a single copy of the model: for ranks
    under tensor parallelism use per_rank().
    """

    name: str
    model_type: str
    architecture: str
    cache_dtype: str
    parts: tuple[Part, ...]
    steps: tuple[Step, ...]
    fields: dict[str, object]
    """What was read of the config, by field name."""
    assumed: tuple[str, ...]
    """What the config does not say, and what was taken instead."""
    attention_heads: int | None = None

    @property
    def bytes_per_token(self) -> Fraction:
        return sum((part.per_token for part in self.parts), Fraction(0))

    @property
    def bytes_per_session(self) -> Fraction:
        return sum((part.per_session for part in self.parts), Fraction(0))

    def at(self, tokens: int) -> Fraction:
        """Bytes of a session of `tokens` tokens: F + m * tokens once every window is filled, less before."""
        return sum((part.at(tokens) for part in self.parts), Fraction(0))

    def per_rank(self, ranks: int) -> ModelBytes:
        """The same for one of `ranks` tensor-parallel ranks. Raises UsageError where a split is not even."""
        if ranks < 1:
            raise UsageError(f"--tp {ranks} is not allowed: 1 or more")
        heads = self.attention_heads
        if heads is not None and heads % ranks:
            raise UsageError(
                f"--tp {ranks} does not split num_attention_heads {heads} evenly",
                hint=f"allowed: a number that divides {heads}",
            )
        parts = tuple(
            msgspec.structs.replace(part, size=part.size * part.rank_share(ranks), units=None) for part in self.parts
        )
        return msgspec.structs.replace(self, parts=parts)


class Draft:
    """Collects parts and the lines that explain them."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.steps: list[Step] = []

    def say(self, line: str, value: Fraction | None = None) -> None:
        self.steps.append(Step(text=line, value=value))

    def add(self, part: Part, line: str) -> None:
        """A part with no layers is left out; `line` ends before the result, which is added to it."""
        if not part.layers:
            return
        self.parts.append(part)
        if part.kind == "token":
            step = Step(text=f"{line} = {text(part.size)} B/token", value=part.size, unit="B/token")
        else:
            total = part.per_session
            step = Step(text=f"{line} = {text(total)} B/session", value=total, unit="B/session")
        self.steps.append(step)
