"""What usage says beyond what there was, where the preset has it wrong on purpose."""

from __future__ import annotations

from kvbench.sim.account import Account
from kvbench.sim.api import Plan
from kvbench.sim.parameters import Preset
from kvbench.sim.tokenizer import TOKEN_BYTES


def misreport(plan: Plan, account: Account, preset: Preset) -> tuple[str, ...]:
    """Draw the faults of a request and set in its plan what they add; those that it has."""
    faults = account.draw_faults()
    prompt_tokens = len(plan.prompt) // TOKEN_BYTES
    if "overrun" in faults and not plan.output.stops:
        room = preset.max_model_len - prompt_tokens - plan.output.length_tokens
        plan.output.extend(min(room, account.overcount_tokens(plan.output.length_tokens)))
    if "output_overcount" in faults:
        plan.overcount_tokens = account.overcount_tokens(plan.output.length_tokens)
    if "input_overcount" in faults or ("stream_overcount" in faults and plan.stream):
        plan.input_overcount_tokens = account.overcount_tokens(prompt_tokens)
    rounded = -(prompt_tokens + plan.input_overcount_tokens) % preset.usage_granularity_tokens
    if rounded:
        plan.input_overcount_tokens += rounded
        faults = (*faults, "rounded_up")
    return faults
