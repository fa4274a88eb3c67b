"""What a recipe may say, as types. docs/synth.md describes every field; unknown ones are refused (load.py)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from kvbench.traces.synth.dice import Amount, Amounts

_Count = Annotated[int, Meta(ge=0)]
_Positive = Annotated[int, Meta(ge=1)]
_Number = Annotated[float, Meta(ge=0)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Name = Annotated[str, Meta(min_length=1)]
_Text = Annotated[tuple[str, ...], Meta(min_length=1)]

Range = tuple[_Count, _Count]
"""Whole numbers from .. to, both included, each equally often."""


# --------------------------------------------------------------------------------------------- family "agents": text


class LogNormal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokens: a log-normal draw, cut to the range."""

    median: _Positive
    sigma: _Number
    range: tuple[_Positive, _Positive]


class LogNormalSeconds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    median_s: Annotated[float, Meta(gt=0)]
    sigma: _Number
    range_s: tuple[_Number, _Number]


class Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many sessions, how long, when. Numbers of roots count from 1 and repeat after `roots` where more are made."""

    roots: _Positive
    agent: _Name
    """Prompt of the root sessions."""
    starts_within_s: _Number
    turns: Range
    turns_with_fan_out: Range | None = None
    human_turns: Range
    human_from: _Positive = 3
    """First turn at which a person may answer."""
    output_tokens: _Positive | None = None
    """Of one root session, about; None: what the draws come to."""
    output_tokens_with_fan_out: _Positive | None = None
    output_tokens_quiet: _Positive | None = None
    quiet: tuple[_Positive, ...] = ()
    compacted: _Count = 0
    parallel_calls: _Share = 0.15
    """Chance that a turn calls two tools."""
    ends_within_s: _Number | None = None
    """A person's pauses are shortened (of quiet roots: made longer) so that a root ends by then."""
    output_token_s: _Number = 0.0
    """What an output token takes, in that sum and where a request's time stands in its prompt."""


class Pauses(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tool: LogNormalSeconds
    human: LogNormalSeconds
    spawn_s: tuple[_Number, _Number] = (0.2, 0.6)
    """From the answer that calls sub-agents to their first requests."""


class Lengths(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokens at 4 characters each."""

    output: LogNormal
    tool_result: LogNormal
    task: Range
    follow_up: _Positive = 40
    report: Range = (120, 220)
    child_output: _Positive = 90
    context_tokens: _Positive


class FanOut(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer of `turn` calls sub-agents; the turn after it waits for all of them. root None: every root."""

    root: _Positive | None = None
    turn: _Count
    children: Range
    child_turns: Range
    agent: _Name


class Hostile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What keeps prefixes from being found again. session: another one in each session; turn: in each request."""

    timestamp: Literal["session", "turn"] | None = None
    """The time of the request is the system prompt's first line."""
    tool_order: Literal["session", "turn"] | None = None
    """Tool schemas are in another order."""


class Prompt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    system: _Name
    tools: tuple[_Name, ...] = ()


class Tool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """result: which of `results` its answers are made of; a tool without one, and not built in, is never called."""

    description: str
    parameters: dict[str, Any]
    arguments: dict[str, Any] = {}
    """Texts are templates."""
    result: _Name | None = None


class Text(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Templates, a list a kind. spawn opens the answer that calls sub-agents."""

    tasks: _Text
    follow_ups: _Text
    thoughts: _Text
    closings: _Text
    questions: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    summary: tuple[str, ...] = ()
    spawn: str = ""
    spawn_tool: str = "spawn_agent"
    paths: _Text
    """What <path> stands for in a session: these, filled once when it begins."""
    topic: tuple[str, ...]
    """Words that a session keeps to half of the time."""


class AgentsRecipe(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="family", tag="agents"
):
    """Sessions with text: agents that call tools, wait for them and for people, and hand work to sub-agents."""

    name: _Name
    about: str = ""
    seed: int = 0
    shape: Shape
    pauses: Pauses
    lengths: Lengths
    fan_out: tuple[FanOut, ...] = ()
    hostile: Hostile = Hostile()
    prompts: dict[str, Prompt]
    tools: dict[str, Tool] = {}
    words: dict[str, _Text]
    text: Text
    results: dict[str, _Text] = {}


# ---------------------------------------------------------------------------------------- family "blocks": hash ids


class Shared(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prompt that sessions begin with, `weight` times as often as one of weight 1."""

    name: _Name
    tokens: Amount
    weight: _Number = 1.0


class Begin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a prompt begins with, and what follows that nobody has sent.

    with: nothing; prompt (one of `prompts`); previous (the session's previous turn); session (an earlier one);
    parent; sibling (another sub-agent of the tree); root or sub_agent (the `lag`-th last session of the kind, other
    trees' only). blocks: how many leading blocks, all if left out. dropped_blocks: all but these, of the previous turn.
    whole: chance that it is all of the other session's prompt, of one that is about `blocks` long.
    The prompt is so long: new_tokens behind what it begins with, or length_share of the previous turn's length.
    """

    with_: Literal["nothing", "prompt", "previous", "session", "parent", "sibling", "root", "sub_agent"] = (
        msgspec.field(name="with")
    )
    weight: _Number = 1.0
    prompt: _Name | None = None
    lag: Amount = 1.0
    blocks: Amount | None = None
    whole: _Share = 0.0
    dropped_blocks: Amount | None = None
    new_tokens: Amount | None = None
    length_share: Amount | None = None


class Keep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Chance that a turn's rank (of growth, output, pause) stays near that of the turn before."""

    growth: _Share = 0.0
    output: _Share = 0.0
    pause: _Share = 0.0


class Chance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the turn before has at least so many tokens."""

    from_tokens: _Count
    chance: _Share


class Cut(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A turn that does not just add to the one before: compaction, an edited history, another branch."""

    chance: Annotated[tuple[Chance, ...], Meta(min_length=1)]
    begins: Annotated[tuple[Begin, ...], Meta(min_length=1)]


class Spawn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sub-agents called by the answer of a turn. joined: share that the next turn waits for."""

    chance: Amounts
    children: Amount
    joined: _Share = 1.0
    delay_s: Amount = 0.0


class Kind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How sessions of a kind are. Growth: tokens of a prompt more than the one before has."""

    turns: Amount
    begins: Annotated[tuple[Begin, ...], Meta(min_length=1)]
    growth_tokens: Amounts
    output_tokens: Amounts | None = None
    """None: left to the model."""
    pause_s: Amounts
    keep: Keep = Keep()
    cuts: tuple[Cut, ...] = ()
    """The first one that its chance hits."""
    spawn: Spawn | None = None


class BlocksRecipe(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="family", tag="blocks"
):
    """Sessions without text: lengths, and which blocks are the same. partial_tail: a last, partial block has an id."""

    name: _Name
    about: str = ""
    seed: int = 0
    roots: _Positive
    block_size: _Positive = 64
    partial_tail: bool = False
    gap_s: Amount
    """From one root's start to the next one's."""
    max_input_tokens: _Positive | None = None
    """A session ends before a prompt would be longer."""
    max_depth: _Positive = 2
    """1: roots call nobody; 2: sub-agents do not; ..."""
    prompts: tuple[Shared, ...] = ()
    root: Kind
    sub_agent: Kind | None = None


Recipe = AgentsRecipe | BlocksRecipe
