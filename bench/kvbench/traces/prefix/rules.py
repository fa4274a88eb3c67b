"""The hit rules as data: what a stored prefix is worth to a prompt, and how a rule is named."""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass

FAR_NS = 1 << 62

STEPS_MINIMUM_TOKENS = 1024
STEPS_TOKENS = 128
REPLAY_TOKENS = 128
"""DeepSeek-V4.1's sliding window: what a hit recomputes."""
MARKS = 4
LOOK_BACK_BLOCKS = 20
UNIT_TOKENS_FINE = 64
UNIT_TOKENS_COARSE = 128
UNIT_BUILD_S = 10.0
UNIT_LIFETIME_S = 300.0


@dataclass(frozen=True)
class Sent:
    """A request as the expectation sees it. `ids` are the prompt's token ids (array of uint32).

    first_token_ns: when its whole prompt was surely computed; None = never (it failed before that).
    output_tokens: generated tokens, all but the last of which it may leave in the cache. output_ids: their ids in
    order, where the server gave them.
    """

    key: str
    session_id: str
    salt: str
    ids: array[int]
    sent_ns: int
    first_token_ns: int | None
    end_ns: int | None
    output_tokens: int = 0
    output_ids: array[int] | None = None

    @property
    def decided_ns(self) -> int:
        """From when on no further request can change what this one found: its first token, or else its end."""
        if self.first_token_ns is not None:
            return self.first_token_ns
        return self.end_ns if self.end_ns is not None else FAR_NS

    @property
    def computed_ns(self) -> int:
        """When its whole prompt was surely computed; FAR_NS = never."""
        return self.first_token_ns if self.first_token_ns is not None else FAR_NS

    @property
    def released_ns(self) -> int:
        return self.end_ns if self.end_ns is not None else FAR_NS


@dataclass(frozen=True)
class BlockRule:
    """Hits come in whole blocks of `block_size` tokens and leave at least one token to compute: a prompt of p tokens
    that shares m with what is stored reports floor(min(m, p - 1) / block) * block. capacity_tokens None = not known.

    replay_tokens is vLLM's bounded replay for DeepSeek-V4.1 (pull request 56227, in 0.32.0): a hit's last window of
    128 tokens is computed again, yet counts as cached in the usage; only a hit no longer than that window is not
    taken and reports 0. 0 = no replay.
    """

    block_size: int
    capacity_tokens: int | None = None
    replay_tokens: int = 0

    @property
    def name(self) -> str:
        return f"block {self.block_size}" + (f" with replay {self.replay_tokens}" if self.replay_tokens else "")

    def floor_tokens(self, match_tokens: int, prompt_tokens: int) -> int:
        hit = max(0, min(match_tokens, prompt_tokens - 1)) // self.block_size * self.block_size
        return hit if hit > self.replay_tokens else 0

    ceiling_tokens = floor_tokens


@dataclass(frozen=True)
class StepsRule:
    """OpenAI's: no hit below 1,024 tokens, above it steps of 128. Whether a prompt's last token may be part of a hit
    is not documented: the floor says no, the ceiling yes. Routing and lifetime are best effort, which no floor here
    allows for: a turn below its floor says that one of them failed."""

    minimum_tokens: int = STEPS_MINIMUM_TOKENS
    block_size: int = STEPS_TOKENS
    capacity_tokens: None = None

    @property
    def name(self) -> str:
        return f"steps {self.minimum_tokens} + {self.block_size}"

    def floor_tokens(self, match_tokens: int, prompt_tokens: int) -> int:
        return self.ceiling_tokens(min(match_tokens, prompt_tokens - 1), prompt_tokens)

    def ceiling_tokens(self, match_tokens: int, prompt_tokens: int) -> int:
        hit = max(0, min(match_tokens, prompt_tokens)) // self.block_size * self.block_size
        return hit if hit >= self.minimum_tokens else 0


@dataclass(frozen=True)
class UnitsRule:
    """DeepSeek's: a prompt hits the longest stored unit that it begins with, whole. Units end where a prompt ended,
    where an output ended, where two requests were found to part, and every `interval_tokens` (documented, but of
    unpublished size: None leaves those out, and a hit above the ceiling may then be one).

    granularity_tokens: hits are multiples of it. 64 was documented in August 2024, every hit seen from V4 on is a
    multiple of 128: None takes 128 for the floor and 64 for the ceiling. A unit may be stored in full or only up to
    its last whole multiple: the floor asks a prompt to begin with all of it, the ceiling with that part.
    build_s: a unit is surely there this long after its last token was computed ("takes seconds" is documented, the
    number is assumed), possibly at once. lifetime_s: it is surely still there this long after its last use; after
    "a few hours to a few days" it is documented to go, but best effort, so minutes are assumed; that a use prolongs
    it is assumed too. No last-token rule is published: the floor leaves a token to compute, the ceiling does not.
    """

    granularity_tokens: int | None = None
    build_s: float = UNIT_BUILD_S
    lifetime_s: float = UNIT_LIFETIME_S
    interval_tokens: int | None = None

    @property
    def coarse_tokens(self) -> int:
        return self.granularity_tokens if self.granularity_tokens is not None else UNIT_TOKENS_COARSE

    @property
    def fine_tokens(self) -> int:
        return self.granularity_tokens if self.granularity_tokens is not None else UNIT_TOKENS_FINE

    @property
    def name(self) -> str:
        grain = (
            f"{self.fine_tokens}"
            if self.granularity_tokens is not None
            else f"{self.fine_tokens}..{UNIT_TOKENS_COARSE}"
        )
        interval = f", every {self.interval_tokens}" if self.interval_tokens is not None else ""
        return f"units {grain}{interval}, built in {self.build_s:g} s, kept {self.lifetime_s:g} s"

    def floor_tokens(self, match_tokens: int, prompt_tokens: int) -> int:
        return max(0, min(match_tokens, prompt_tokens - 1)) // self.coarse_tokens * self.coarse_tokens

    def ceiling_tokens(self, match_tokens: int, prompt_tokens: int) -> int:
        return max(0, min(match_tokens, prompt_tokens)) // self.fine_tokens * self.fine_tokens


@dataclass(frozen=True)
class BreakpointsRule:
    """Anthropic's explicit cache_control: a request caches the prefix up to each of its marks, 4 at most, and finds
    what ends at a mark or up to look_back blocks from it, the marked one counted (the ceiling takes one more, as
    whether it counts is told both ways). Nothing is cached without a mark. Kept 5 minutes or an hour, as the mark says.
    minimum_tokens: shorter prefixes are not cached; None: 512 to 4,096 by model, and not needed, as only lengths that
    were reported as cached are relied on.
    """

    marks: int = MARKS
    look_back: int = LOOK_BACK_BLOCKS
    minimum_tokens: int | None = None

    @property
    def name(self) -> str:
        least = "" if self.minimum_tokens is None else f", at least {self.minimum_tokens}"
        return f"breakpoints, look-back {self.look_back}{least} (lengths by usage)"


Rule = BlockRule | StepsRule | UnitsRule
"""Of hits that are expected on token ids."""

_NAMED = re.compile(r"(?:block|units) (?P<fine>\d+)(?:\.\.(?P<coarse>\d+))?|steps \d+ \+ (?P<step>\d+)")


def granules_of(name: str) -> tuple[int, int] | None:
    """(finest, coarsest) steps in tokens that the hits of the rule of this name can have; None: it says none."""
    found = _NAMED.match(name)
    if found is None:
        return None
    fine = int(found["step"] or found["fine"])
    return fine, int(found["coarse"] or fine)
