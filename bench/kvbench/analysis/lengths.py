"""How exactly prompts that were made from hash ids have the lengths of the trace."""

from __future__ import annotations

from typing import Any

import pandas as pd

from kvbench.model import PromptLengths


def prompt_lengths(ok: pd.DataFrame, prompts: dict[str, Any]) -> PromptLengths | None:
    """Over the turns that were made to a length and report one; None where there are none. `prompts`: run.json's."""
    made = ok[ok["wanted_input_tokens"].notna() & ok["input_tokens"].notna()]
    if made.empty:
        return None
    difference = (made["input_tokens"] - made["wanted_input_tokens"]).abs()
    as_text = prompts.get("as") == "text"
    return PromptLengths(
        turns=len(made),
        exact_turns=int((difference == 0).sum()),
        wanted=int(made["wanted_input_tokens"].sum()),
        got=int(made["input_tokens"].sum()),
        max_difference=int(difference.max()),
        sent_as=prompts.get("as"),
        tokenizer=prompts.get("tokenizer"),
        template_tokens=prompts.get("template_tokens") if as_text else None,
    )
