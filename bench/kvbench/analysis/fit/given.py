"""What a fit is told besides its runs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvbench.errors import UsageError
from kvbench.prices.pricing import PriceList


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """None: not known. chunk_tokens: of a prefill step (vLLM's max_num_batched_tokens). replay_tokens: of each hit,
    computed again. tier_bytes_per_s: of the tier below HBM; hbm_bytes_per_s: of all accelerators that share a step.
    prices: what tokens too many are put in money by; None: the bundled books."""

    chunk_tokens: int | None = None
    replay_tokens: int | None = None
    tier_bytes_per_s: float | None = None
    hbm_bytes_per_s: float | None = None
    prices: PriceList | None = None

    def check(self) -> Given:
        """UsageError for what is not above 0."""
        for option, value, least in (
            ("--chunk-tokens", self.chunk_tokens, 1),
            ("--replay-tokens", self.replay_tokens, 0),
            ("--tier-bandwidth", self.tier_bytes_per_s, 1),
            ("--hbm-bandwidth", self.hbm_bytes_per_s, 1),
        ):
            if value is not None and not least <= value < 1e18:
                raise UsageError(f"{option} {value:g}: must be {least} or more")
        return self


NOTHING_GIVEN = Given()


def replay_of(notes: Sequence[str]) -> bool:
    """Whether a granularity probe's notes say that each hit is replayed in part."""
    return any("bounded replay" in note for note in notes)
