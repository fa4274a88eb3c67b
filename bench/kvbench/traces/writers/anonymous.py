"""What is left of a turn once nothing in it names anybody: structure, times, lengths, ids and counts.

Names become numbers: sessions s1, s2 ... by their trees' place in the file, sub-agents s1.1, s1.2 ..., models m1, m2
... Of usage only counts under names that are known survive, and of unknown fields none but two lengths and a flag.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvbench.model import Recorded, Session, Tree, Turn, TurnRef

USAGE_COUNTS = frozenset(
    {
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
        "input_tokens",
        "output_tokens",
        "cached_tokens",
        "reasoning_tokens",
        "text_tokens",
        "audio_tokens",
        "image_tokens",
        "cache_write_tokens",
        "created_cache_tokens",
        "accepted_prediction_tokens",
        "rejected_prediction_tokens",
        "prompt_cache_hit_tokens",
        "prompt_cache_miss_tokens",
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
        "ephemeral_5m_input_tokens",
        "ephemeral_1h_input_tokens",
    }
)
USAGE_OBJECTS = frozenset(
    {
        "prompt_tokens_details",
        "completion_tokens_details",
        "input_tokens_details",
        "output_tokens_details",
        "cache_creation",
    }
)
_EXTRA: dict[str, type] = {"streamed": bool, "tool_tokens": int, "system_tokens": int}


class Anonymous:
    """Strips trees. models: all names in the trace; with keep_models False turns name none."""

    def __init__(self, models: Iterable[str], *, keep_models: bool) -> None:
        self.usage_fields = 0
        """Left out of usage objects, counted; unknown fields of turns in extra_fields."""
        self.extra_fields = 0
        self.keeps_models = keep_models
        self._models = {name: f"m{number}" for number, name in enumerate(models, 1)} if keep_models else {}

    @property
    def about(self) -> str:
        count = len(self._models)
        models = f", models m1 to m{count}" if count > 1 else ", model m1" if count else ""
        return f"sessions s1, s2 ... in the order of the file, sub-agents s1.1 ...{models}"

    def tree(self, tree: Tree, number: int) -> Tree:
        """The tree, `number` (from 0) in the file. Its turns have hash ids already."""
        root = f"s{number + 1}"
        names = {session.session_id: f"{root}.{at}" if at else root for at, session in enumerate(tree.sessions)}
        sessions = tuple(
            Session(
                session_id=names[session.session_id], turns=tuple(self._turn(turn, names) for turn in session.turns)
            )
            for session in tree.sessions
        )
        return Tree(root_id=root, start_s=tree.start_s, sessions=sessions)

    def _turn(self, turn: Turn, names: dict[str, str]) -> Turn:
        # By what is kept, not by what is left out: a field that Turn gains is then left out until it is thought of.
        return Turn(
            session_id=names[turn.session_id],
            turn=turn.turn,
            line=turn.line,
            parent=None if turn.parent is None else TurnRef(names[turn.parent.session_id], turn.parent.turn),
            after=tuple(names[other] for other in turn.after),
            start_s=turn.start_s,
            delay_s=turn.delay_s,
            input_tokens=turn.input_tokens,
            output_tokens=turn.output_tokens,
            hash_ids=turn.hash_ids,
            keep_blocks=turn.keep_blocks,
            model=self._models.get(turn.model) if turn.model is not None else None,
            recorded=None if turn.recorded is None else self._recorded(turn.recorded),
            extra=self._extra(turn.extra),
        )

    def _recorded(self, recorded: Recorded) -> Recorded:
        usage = None if recorded.usage is None else self._counts(recorded.usage)
        return Recorded(
            at_s=recorded.at_s,
            ttft_s=recorded.ttft_s,
            e2e_s=recorded.e2e_s,
            cached_tokens=recorded.cached_tokens,
            usage=usage or None,
        )

    def _counts(self, usage: dict[str, Any]) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for name, value in usage.items():
            if name in USAGE_COUNTS and _is_count(value):
                kept[name] = value
            elif name in USAGE_OBJECTS and isinstance(value, dict):
                kept[name] = self._counts(value)
            else:
                self.usage_fields += 1
        return kept

    def _extra(self, extra: dict[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in extra.items() if type(value) is _EXTRA.get(name)}
        self.extra_fields += len(extra) - len(kept)
        return kept


def _is_count(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
