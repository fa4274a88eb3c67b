"""Prompts of turns that have no text, only the ids of their blocks: as token ids where the endpoint takes those, else
as the text of one user message, at exactly the trace's length.

A tail that has no id of its own (hash ids of whole blocks only) is the beginning of the block that the session's next
turn puts there, where that turn keeps all the blocks: what grew was shared below the size of a block, too. Else it is
nobody's but the turn's own.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol

import msgspec

from kvbench.errors import RefusedError
from kvbench.model import Message, Record, Turn, Warning
from kvbench.traces.native import TraceFile
from kvbench.traces.text import BlockText, Palette, candidates_text, check_trial, palette_of, read_candidates, trial
from kvbench.traces.tokenizers import Tokenizer, load_tokenizer

SALT_TOKENS = 8
"""How many tokens of a prompt a salt takes the place of, where the endpoint has no field for it: 2^48 salts or more."""

MOST_TEMPLATE_TOKENS = 512
"""A difference above this is no chat template around one message, but another tokenizer."""

_BLOCK, _TAIL, _SALT = "block", "tail", "salt"


class Source(Protocol):
    """What is asked of an endpoint before the first turn."""

    async def takes_token_ids(self) -> bool:
        """Whether /completions is there and takes a prompt of token ids."""

    async def tokenize_text(self, text: str) -> list[int] | None:
        """The ids of a text alone, no special tokens added; None where the server does not tell."""

    async def tokenize(self, messages: Sequence[Message]) -> list[int] | None:
        """The ids of a rendered chat; None where the server does not tell."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What the endpoint's profile says. tokenizer: see `load_tokenizer`; prompts: token ids, text, or what fits."""

    tokenizer: str | None = None
    prompts: str = "auto"


class HashPrompts:
    """How one run makes its prompts from hash ids; shared by all sessions.

    template_tokens: what the chat template adds to the text of one user message; None until an answer's usage told.
    Token ids have no template.
    """

    def __init__(
        self, blocks: BlockText, block_size: int, *, as_ids: bool, tokenizer: str, template_tokens: int | None
    ) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self.as_ids = as_ids
        self.tokenizer = tokenizer
        self.template_tokens = template_tokens
        self.template_from_usage = template_tokens is None
        self._lengths: dict[str, int] = {}

    def learn(self, text_tokens: int | None, record: Record) -> None:
        """The first answer that reports its prompt's length tells what the chat template adds."""
        reported = record.usage.input_tokens
        if text_tokens is None or not self.template_from_usage:
            return
        if self.template_tokens is None and reported is not None:
            added = reported - text_tokens
            self.template_tokens = added if 0 <= added <= MOST_TEMPLATE_TOKENS else 0
        if text_tokens == record.wanted_input_tokens and self.template_tokens != 0:
            self._lengths[record.request_id] = text_tokens

    def sent_tokens(self, request_id: str) -> int | None:
        """How long the text of this request was made before anything was known of the template; None for those made
        after. To make the same prompt again."""
        return self._lengths.get(request_id)

    def described(self) -> dict[str, object]:
        """For run.json."""
        return {
            "as": "token ids" if self.as_ids else "text",
            "tokenizer": self.tokenizer,
            "words": len(self.blocks.palette.ids),
            "template_tokens": self.template_tokens,
            "template_tokens_from": "usage" if self.template_from_usage else "tokenizer",
        }


async def hash_prompts(
    trace: TraceFile, source: Source, choice: Choice, *, live: bool
) -> tuple[HashPrompts | None, list[Warning]]:
    """The way to make this trace's prompts; None where all of its turns have text.

    RefusedError where no tokenizer is known, or where live history would need token ids and the endpoint takes none;
    ConfigError for a tokenizer that cannot make blocks.
    """
    size = trace.header.block_size
    if size is None or not trace.has_hash_ids:
        return None, []
    as_ids = choice.prompts == "ids" or (choice.prompts == "auto" and await source.takes_token_ids())
    if live and not as_ids:
        raise RefusedError(
            "live history of a trace with hash ids needs an endpoint that takes token ids and returns those it "
            "generated: text that comes back would have other ids",
            hint="leave --history live out, or replay on a vLLM server",
        )
    tokenizer = load_tokenizer(choice.tokenizer) if choice.tokenizer is not None else None
    if tokenizer is not None:
        palette, name = palette_of(tokenizer.encode, f"tokenizer {tokenizer.name}"), tokenizer.name
    else:
        palette, name = await _server_palette(source, as_ids), "the server's /tokenize"
    blocks = BlockText(palette, tokenizer.encode if tokenizer is not None and not as_ids else None)
    template, warnings = (0, []) if as_ids else await _template_tokens(source, blocks, tokenizer)
    made = HashPrompts(blocks, size, as_ids=as_ids, tokenizer=name, template_tokens=template)
    return made, warnings


async def _server_palette(source: Source, as_ids: bool) -> Palette:
    ids = await source.tokenize_text(candidates_text())
    if ids is None:
        raise RefusedError(
            "the trace has no text, only hash ids, and nothing is known to count tokens with: the endpoint "
            + ("has no /tokenize" if as_ids else "takes no token ids and has no /tokenize")
            + ", and no tokenizer is named",
            hint='name the model\'s own in an endpoint TOML: tokenizer = "PATH/tokenizer.json", "deepseek" or '
            '"tiktoken:PATH"',
        )
    palette = read_candidates(ids, "the server's /tokenize")
    text, expected = trial(palette)
    check_trial(expected, await source.tokenize_text(text) or [], "the server's /tokenize")
    return palette


async def _template_tokens(
    source: Source, blocks: BlockText, tokenizer: Tokenizer | None
) -> tuple[int | None, list[Warning]]:
    """What the server's template adds to one user message, from two lengths; None where the server does not tell."""
    added: list[int] = []
    for length in (SALT_TOKENS + 1, 200):
        text = blocks.join(_with_salt(blocks, blocks.ids(_TAIL, "template", length), "", lead=True))
        ids = await source.tokenize([{"role": "user", "content": text}])
        if ids is None:
            return None, []
        added.append(len(ids) - length)
    if added[0] == added[1]:
        return added[1], []
    whose = "the server's own" if tokenizer is None else f"the profile's tokenizer {tokenizer.name}"
    return added[1], [
        Warning(
            code="template_tokens_vary",
            message=f"the server adds {added[0]} tokens to a short message and {added[1]} to a longer one, under "
            f"{whose}: prompt lengths will not be exact",
            advice="name the model's own tokenizer in the endpoint TOML",
        )
    ]


class HashedSession:
    """The contents of one session's prompts; feed it the session's turns in order.

    Memory is one prompt's ids (4 bytes each), and a name for each turn's tail.
    """

    def __init__(self, how: HashPrompts, turns: Sequence[Turn]) -> None:
        self._how = how
        self._tails = _tail_blocks(turns, how.block_size)
        self._ids: array[int] = array("I")
        self._input_tokens = 0
        self._checked = 0

    def next(self, turn: Turn, block_ids: Sequence[int], kept_blocks: int, output_ids: Sequence[int] | None) -> None:
        """Go on to `turn`, whose prompt is `block_ids`; the first `kept_blocks` of them are the previous prompt's.

        output_ids: what the model generated for the previous prompt (live history). Where the turn keeps all of that
        prompt's whole blocks, they follow the prompt, as far as they fit; what comes then is the trace's again.
        """
        size, blocks = self._how.block_size, self._how.blocks
        assert turn.input_tokens is not None
        wanted = turn.input_tokens
        whole_before = self._input_tokens // size
        ids = self._ids
        if output_ids is not None and self._input_tokens and kept_blocks >= whole_before:
            ids.extend(output_ids)
        else:
            del ids[min(kept_blocks, whole_before) * size :]
        del ids[wanted:]
        self._checked = min(self._checked, len(ids))
        number, start = divmod(len(ids), size)
        choices = []
        while number * size + start < wanted:
            name = (_BLOCK, block_ids[number]) if number < len(block_ids) else self._tails[turn.turn]
            choices.append(blocks.choice(*name, min(size, wanted - number * size))[start:])
            number, start = number + 1, 0
        ids.extend(blocks.chosen(b"".join(choices)))
        self._input_tokens = wanted

    def token_ids(self, salt: str | None) -> list[int]:
        """The prompt as token ids. A salt takes the place of the first ones."""
        return _with_salt(self._how.blocks, self._ids, salt, lead=False).tolist()

    def text(self, salt: str | None, length: int | None = None) -> tuple[str, int]:
        """The prompt as text for one user message, and its number of tokens without the chat template's: `length`, or
        what is left of the turn's.

        Each part is checked by encoding it once. The first word is the same in all prompts: a template that strips
        the space before it then changes all counts alike, by what it was measured to change.
        """
        blocks = self._how.blocks
        if length is None:
            length = max(1, self._input_tokens - (self._how.template_tokens or 0))
        ids = _with_salt(blocks, self._ids[:length], salt, lead=True)
        blocks.check(ids[self._checked :])
        self._checked = length
        return blocks.join(ids), length


def _with_salt(blocks: BlockText, ids: array[int], salt: str | None, *, lead: bool) -> array[int]:
    head = array("I", blocks.palette.ids[:1] if lead else ())
    if salt is not None:
        head.extend(blocks.ids(_SALT, salt, SALT_TOKENS))
    head = head[: len(ids)]
    return head + ids[len(head) :]


def _tail_blocks(turns: Sequence[Turn], size: int) -> list[tuple[str, int | str]]:
    """Scope and id of what fills each turn's prompt after its last block id."""
    counts: list[int] = []
    for turn in turns:
        counts.append((turn.keep_blocks or 0) + len(turn.hash_ids or ()))
    tails: list[tuple[str, int | str]] = []
    for i in range(len(turns) - 1, -1, -1):
        turn = turns[i]
        own: tuple[str, int | str] = (_TAIL, f"{turn.session_id}\0{turn.turn}")
        following = turns[i + 1] if i + 1 < len(turns) else None
        if following is not None and following.keep_blocks == counts[i]:
            if following.hash_ids:
                own = (_BLOCK, following.hash_ids[0])
            elif (following.input_tokens or 0) > counts[i] * size:
                own = tails[-1]
        tails.append(own)
    tails.reverse()
    return tails
