"""A trace whose turns have ids of blocks in the place of texts; the rest of each turn as it was."""

from __future__ import annotations

import msgspec

from kvbench.model import Session, Tree, Turn
from kvbench.traces.blocks import BlockedTrace
from kvbench.traces.writers.ids import BlockIds


class HashedTrees:
    """The trees of a blocked trace, hashed as they are read.

    A turn with text gets the ids of its whole blocks and its length as it was counted; ids the trace has go through
    `ids` too. Tool schemas are in the hashes of texts, and are not kept beside ids.
    """

    def __init__(self, blocked: BlockedTrace, ids: BlockIds) -> None:
        self.empty_prompts = 0
        """Turns whose messages have no text: a prompt has a token at least."""
        self._blocked = blocked
        self._ids = ids

    def tree(self, i: int) -> Tree:
        """Tree i of the trace."""
        tree = self._blocked.trace.read_tree(i)
        size = self._blocked.block_size
        turns = {session.session_id: list(session.turns) for session in tree.sessions}
        for request in self._blocked.tree(tree):
            turn = turns[request.session_id][request.turn]
            tokens = request.input_tokens
            if turn.hash_ids is not None:
                new = self._ids.trace(request.new_ids)
            else:
                new = self._ids.text(request.new_ids)
                self.empty_prompts += not tokens
                # An estimate rounds up: where that would fill a block, there is no id for it.
                tokens = min(tokens, (request.kept + len(new) + 1) * size - 1)
                if not tokens:
                    tokens, new = 1, (self._ids.fresh(),) if size == 1 else ()
            turns[request.session_id][request.turn] = _hashed(turn, tokens, request.kept, new)
        sessions = tuple(Session(session_id=name, turns=tuple(done)) for name, done in turns.items())
        return Tree(root_id=tree.root_id, start_s=tree.start_s, sessions=sessions)


def _hashed(turn: Turn, tokens: int, kept: int, new: tuple[int, ...]) -> Turn:
    return msgspec.structs.replace(
        turn,
        input_tokens=tokens,
        keep_blocks=kept or None,
        hash_ids=new,
        messages=None,
        append=None,
        tools=None,
        prefix=None,
    )
