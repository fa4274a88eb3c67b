"""A trace as a prefix cache sees it: requests in trace time, each a chain of block ids.

Turns with hash ids keep the trace's own blocks. Turns with text are rendered (tool schemas, then the messages), cut
into tokens by a named tokenizer, and each whole block is hashed together with the block before it. Both are linear:
along a session a request says how many leading blocks it has in common with the one before (`kept`), and what follows.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from kvbench.errors import UsageError
from kvbench.model import Session, Tree, Turn
from kvbench.traces.content_blocks import CHARS_PER_TOKEN, ContentBlocks, ContentRule
from kvbench.traces.native import TraceFile
from kvbench.traces.timeline import TimedTurn, recorded_timeline, timeline
from kvbench.traces.tokenizers import Tokenizer

DEFAULT_BLOCK_SIZE = 64
"""Tokens a block, for traces with text, where none is asked for."""


Times = Literal["replay", "recorded"]
"""Whose times order the requests: a replay's, or the source's own where it dates every turn of a tree."""


class BlockRequest(NamedTuple):
    """One turn. Its chain of blocks is the first `kept` of the session's previous turn's, then `new_ids`, of which the
    first is another than the previous turn has there.

    A block id stands for the whole prefix up to its end, if the trace keeps to that (the field's formats say so);
    ids of text are negative. A last block that is not full has an id where the trace gives it one: then
    (kept + len(new_ids)) * block_size > input_tokens. input_tokens: of turns with text, what was rendered.
    start_s, end_s: trace time, see timeline.py.
    """

    root_id: str
    session_id: str
    turn: int
    sub_agent: bool
    model: str | None
    start_s: float
    end_s: float
    input_tokens: int
    output_tokens: int | None
    kept: int
    new_ids: Sequence[int]


class Blocking(msgspec.Struct, frozen=True, kw_only=True):
    """How a trace is cut into blocks. tokens: what counts them, in words."""

    block_size: int
    tokens: str


def what_counts(tokenizer: Tokenizer | None, *, hashed: bool, text: bool) -> str:
    """What the lengths of a trace come from, in words, where turns are hashed, or have text."""
    said = ["the trace's own lengths and hash ids"] if hashed else []
    if text:
        said.append(
            f"estimated at {CHARS_PER_TOKEN} characters a token, without the chat template"
            if tokenizer is None
            else f"tokenizer {tokenizer.name}, without the chat template"
        )
    return "; ".join(said)


class BlockedTrace:
    """An open trace, cut into blocks.

    block_size: tokens a block, for turns with text (default 64); hash ids have the trace's own, and another one is a
    UsageError. tokenizer: for turns with text; None estimates 4 characters a token.
    """

    def __init__(
        self,
        trace: TraceFile,
        *,
        block_size: int | None = None,
        tokenizer: Tokenizer | None = None,
        times: Times = "replay",
    ) -> None:
        own = trace.header.block_size if trace.has_hash_ids else None
        if own is not None and block_size not in (None, own):
            raise UsageError(
                f"block size {block_size}, and the hash ids of {trace.path} stand for {own} tokens each",
                hint=f"leave --block-size out, or give {own}",
            )
        self.trace = trace
        self.block_size = own or block_size or DEFAULT_BLOCK_SIZE
        self.hashed_turns = 0
        """Turns read so far that have hash ids."""
        self.text_turns = 0
        self.recorded_trees = 0
        """Trees read so far by `requests` that the source's own times order."""
        self.text_said_tokens = self.text_rendered_tokens = 0
        """Of the turns read so far that have text and say their length: what they say, and what was rendered."""
        self._times = times
        self._tokenizer = tokenizer
        self.text_rule = ContentRule(self.block_size, tokenizer, trace.prefixes)

    @property
    def other_parts(self) -> int:
        """Parts of messages read so far that are not text: each stands as one token."""
        return self.text_rule.other_parts

    def text_doubt(self) -> str | None:
        """A sentence where what was rendered is not what the turns say they sent, by more than a tenth."""
        said, rendered = self.text_said_tokens, self.text_rendered_tokens
        if abs(rendered - said) <= 0.1 * said:
            return None
        return (
            f"the turns with text say they have {said:,} input tokens, and what the trace has of them comes to "
            f"{rendered:,} ({rendered / said * 100:.0f}%): blocks and hits are of the latter; what is not in the trace "
            "(a system prompt, tool schemas, the chat template) or is counted otherwise is not in them"
        )

    def blocking(self) -> Blocking:
        """What was done to the turns read so far."""
        hashed = self.hashed_turns > 0 or not self.text_turns
        tokens = what_counts(self._tokenizer, hashed=hashed, text=self.text_turns > 0)
        return Blocking(block_size=self.block_size, tokens=tokens)

    def requests(self, trees: Iterable[Tree] | None = None) -> Iterator[BlockRequest]:
        """Tree by tree in file order, each in order of time; one tree in memory at a time.

        In trace time as a whole: sort by start_s, stably. trees: the trace's, where somebody else reads them too.
        """
        for tree in self.trace.trees() if trees is None else trees:
            yield from self.tree(tree)

    def in_order(self) -> Iterator[tuple[BlockRequest, list[int]]]:
        """Requests in the order of trace time (ties: file order), each with its whole chain of ids.

        Reads every tree twice: for its times, then when it starts; trees that have started and not ended are in memory.
        A chain is the caller's own, and a copy: where `kept` and `new_ids` will do, they are cheaper.
        """
        starts, trees = array("d"), array("I")
        for i, tree in enumerate(self.trace.trees()):
            for timed in self._timed(tree):
                starts.append(timed.start_s)
                trees.append(i)
        live: dict[int, Iterator[tuple[BlockRequest, list[int]]]] = {}
        left = dict[int, int]()
        for at in sorted(range(len(starts)), key=starts.__getitem__):
            i = trees[at]
            if i not in live:
                live[i] = self._chains(self.trace.read_tree(i))
                left[i] = self.trace.tree_entries[i].turns
            yield next(live[i])
            left[i] -= 1
            if not left[i]:
                del live[i], left[i]

    def _chains(self, tree: Tree) -> Iterator[tuple[BlockRequest, list[int]]]:
        chains: dict[str, list[int]] = {}
        for request in self.tree(tree):
            chain = chains.setdefault(request.session_id, [])
            del chain[request.kept :]
            chain.extend(request.new_ids)
            yield request, chain.copy()

    def _timed(self, tree: Tree) -> list[TimedTurn]:
        recorded = recorded_timeline(tree) if self._times == "recorded" else None
        self.recorded_trees += recorded is not None or len(tree.sessions) == len(tree.sessions[0].turns) == 1
        return timeline(tree) if recorded is None else recorded

    def tree(self, tree: Tree) -> Iterator[BlockRequest]:
        """The requests of one tree of the trace, in order of time."""
        cutters = [_Cutter(session, self) for session in tree.sessions]
        for start_s, number, at, end_s in self._timed(tree):
            session = tree.sessions[number]
            turn = session.turns[at]
            kept, new_ids, tokens = cutters[number].next(turn)
            yield BlockRequest(
                tree.root_id,
                session.session_id,
                at,
                number > 0,
                cutters[number].model,
                start_s,
                end_s,
                tokens,
                turn.output_tokens,
                kept,
                new_ids,
            )


class _Cutter:
    """The blocks of one session's turns, in order."""

    def __init__(self, session: Session, blocked: BlockedTrace) -> None:
        self.model: str | None = None
        self._blocked = blocked
        self._chain: list[int] = []
        self._text = ContentBlocks(blocked.text_rule) if session.turns[0].hash_ids is None else None

    def next(self, turn: Turn) -> tuple[int, Sequence[int], int]:
        """(kept blocks, ids after them, tokens of the prompt)"""
        if turn.model is not None:
            self.model = turn.model
        if self._text is not None:
            blocked = self._blocked
            blocked.text_turns += 1
            cut = self._text.next(turn)
            if turn.input_tokens is not None:
                blocked.text_said_tokens += turn.input_tokens
                blocked.text_rendered_tokens += cut[2]
            return cut
        assert turn.hash_ids is not None
        assert turn.input_tokens is not None
        self._blocked.hashed_turns += 1
        kept = min(turn.keep_blocks or 0, len(self._chain))
        # A turn may name blocks again that it could have kept: it has them in common with the one before all the same.
        same = _same(self._chain, kept, turn.hash_ids)
        new_ids = turn.hash_ids[same:] if same else turn.hash_ids
        kept += same
        del self._chain[kept:]
        self._chain.extend(new_ids)
        return kept, new_ids, turn.input_tokens


def _same(chain: list[int], start: int, ids: Sequence[int]) -> int:
    """How many of the leading ids stand in the chain from start on."""
    length = min(len(chain) - start, len(ids))
    if length <= 0 or chain[start] != ids[0]:
        return 0
    return next((i for i in range(1, length) if chain[start + i] != ids[i]), length)
