"""Expected prefix-cache hits on token ids, as an interval [floor, ceiling] per request."""

from kvbench.traces.prefix.blocks import BlockRule, HitModel, Sent, chain_hashes

__all__ = ["BlockRule", "HitModel", "Sent", "chain_hashes"]
