"""What an audit of token counts holds against reported usage, and what it says."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

CheckVerdict = Literal["confirmed", "disputed", "cannot tell", "not verifiable", "not reported"]


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """The exact tokens of one request, written as an event beside its record. None: nothing could count them.

    text_tokens: of what was sent, without the template's. prompt_tokens: with them, as the server tells. local_tokens:
    the text by the profile's tokenizer, where the server's was asked too. output_tokens: of all that came, the visible
    reasoning (reasoning_tokens) among it. output_by: "ids" (the server gave the generated ids) or "text" (encoded
    again). repeated: the text that came is the one asked for.
    """

    request: str
    text_kind: str = ""
    text_tokens: int | None = None
    prompt_tokens: int | None = None
    local_tokens: int | None = None
    max_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    output_by: Literal["ids", "text"] | None = None
    repeated: bool | None = None


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that reported counts must satisfy, and whether they do.

    n: requests (or pairs of them) it rests on. detectable: the smallest fault that could not have been missed, in
    detectable_unit; None: there is no such bound. excess: what is too much, in excess_unit, where that is known. money:
    what the excess costs by a price book. evidence: the requests that differ most.
    """

    name: str
    verdict: CheckVerdict
    says: str
    n: int
    detectable: float | None = None
    detectable_unit: str | None = None
    excess: float | None = None
    excess_unit: str | None = None
    money: dict[str, Any] | None = None
    evidence: tuple[dict[str, Any], ...] = ()
