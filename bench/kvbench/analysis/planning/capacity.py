"""How much memory there is for KV, how many sessions fit into it, and how many tokens of prefixes it can keep."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import msgspec

from kvbench.analysis.models import ModelBytes, Part, bytes_model, catalogue
from kvbench.analysis.models.layouts import allocated
from kvbench.analysis.models.numbers import plain
from kvbench.analysis.plan import KvMemory, sessions_per_rank
from kvbench.analysis.planning.fields import Memory, Profile
from kvbench.analysis.planning.profile import amount
from kvbench.analysis.planning.source import Source
from kvbench.errors import KvbenchError, UsageError

_REPLAYED = "deepseek_v41"
"""The architecture whose idle sessions keep no window: it is computed again when they go on."""


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """What a session holds on one rank. layouts: an engine's own bytes a token, by its name. given: which figures are
    the user's. idle_keeps_f: a session that waits keeps its fixed bytes too."""

    model: ModelBytes
    ranks: int
    given: tuple[str, ...]
    layouts: tuple[tuple[str, Fraction], ...]
    layouts_remark: str | None
    replay_tokens: int

    @property
    def per_token(self) -> Fraction:
        return self.model.bytes_per_token

    @property
    def per_session(self) -> Fraction:
        return self.model.bytes_per_session

    @property
    def idle_keeps_f(self) -> bool:
        return self.per_session > 0 and not self.model.model_type.startswith(_REPLAYED)

    def idle(self, tokens: int) -> Fraction:
        """Bytes of a session of `tokens` tokens that waits, or lies in a slower tier."""
        return self.model.at(tokens) if self.idle_keeps_f else self.per_token * tokens


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Memory for KV on one rank, in bytes, and what it was derived from where it was."""

    kv: int
    terms: tuple[tuple[str, int], ...]


def rank_of(profile: Profile, source: Source) -> Rank | None:
    """None where the profile names no model and no bytes. Raises what its config or its split is refused for."""
    asked = profile.model
    if asked.name is None and asked.bytes_per_token is None:
        return None
    if asked.name is None:
        assert asked.bytes_per_token is not None
        assert asked.bytes_per_session is not None
        parts = _given_parts(Fraction(asked.bytes_per_token), Fraction(asked.bytes_per_session))
        model = ModelBytes(
            name=profile.name or "given",
            model_type="",
            architecture="not named",
            cache_dtype="not named",
            parts=parts,
            steps=(),
            fields={},
            assumed=(),
        )
        return Rank(
            model=model,
            ranks=1,
            given=("bytes_per_token", "bytes_per_session"),
            layouts=(),
            layouts_remark=None,
            replay_tokens=0,
        )
    whole = _model(profile, source)
    try:
        rank = whole.per_rank(asked.tensor_parallel)
    except UsageError as error:
        raise source.wrong("model.tensor_parallel", error.message.removeprefix("--tp "), error.hint) from None
    layouts, remark = allocated(whole)
    share = rank.bytes_per_token / whole.bytes_per_token if whole.bytes_per_token else Fraction(0)
    given = tuple(name for name in ("bytes_per_token", "bytes_per_session") if getattr(asked, name) is not None)
    if asked.bytes_per_token is not None:
        layouts, remark = (), None
        fixed = tuple(part for part in rank.parts if part.kind != "token")
        rank = msgspec.structs.replace(rank, parts=(*_given_parts(Fraction(asked.bytes_per_token), None), *fixed))
    if asked.bytes_per_session is not None:
        growing = tuple(part for part in rank.parts if part.kind == "token")
        rank = msgspec.structs.replace(rank, parts=(*growing, *_given_parts(None, Fraction(asked.bytes_per_session))))
    window = max((part.window for part in whole.parts if part.kind == "window"), default=0)
    return Rank(
        model=rank,
        ranks=asked.tensor_parallel,
        given=given,
        layouts=tuple((f"{each.engine}, {each.layout}", each.bytes_per_token * share) for each in layouts),
        layouts_remark=remark,
        replay_tokens=window if whole.model_type.startswith(_REPLAYED) else 0,
    )


def _model(profile: Profile, source: Source) -> ModelBytes:
    name = profile.model.name
    assert name is not None
    try:
        path = name if name in catalogue() else source.beside("model.name", name)
        return bytes_model(path, profile.model.dtype)
    except UsageError as error:
        raise source.wrong("model.dtype", error.message, error.hint) from None
    except KvbenchError as error:
        raise source.wrong("model.name", error.message, error.hint) from None


def _given_parts(per_token: Fraction | None, per_session: Fraction | None) -> tuple[Part, ...]:
    parts = []
    if per_token is not None:
        parts.append(Part(label="given", kind="token", layers=1, size=per_token))
    if per_session is not None:
        parts.append(Part(label="given", kind="state", layers=1, size=per_session))
    return tuple(parts)


def held(memory: Memory, source: Source) -> Held | None:
    """None where the profile says nothing of memory. Raises what no memory is left for."""
    if memory.kv is not None:
        return Held(kv=amount(source, "memory.kv", memory.kv), terms=())
    if memory.hbm is None:
        return None
    hbm = amount(source, "memory.hbm", memory.hbm)
    assert memory.weights is not None
    if isinstance(memory.weights, dict):
        weights = [
            (f"weights, {name}", amount(source, f"memory.weights.{name}", each, least=0))
            for name, each in memory.weights.items()
        ]
    else:
        weights = [("weights", amount(source, "memory.weights", memory.weights, least=0))]
    assert memory.activations is not None
    assert memory.reserve is not None
    activations = amount(source, "memory.activations", memory.activations, least=0)
    reserve = amount(source, "memory.reserve", memory.reserve, least=0)
    whole = KvMemory(hbm=hbm, weights=sum(size for _, size in weights), activations=activations, reserve=reserve)
    try:
        kv = whole.kv
    except UsageError as error:
        raise source.wrong("memory.hbm", error.message) from None
    return Held(kv=kv, terms=(("HBM", hbm), *weights, ("activations", activations), ("reserve", reserve)))


def sessions(kv: int, rank: Rank, tokens: int, shared_tokens: int, what: str) -> dict[str, Any]:
    """How many running sessions of `tokens` tokens fit: by the architecture (or given bytes), and by engines' pages."""
    model = rank.model
    shared = model.bytes_per_token * shared_tokens
    growing = tuple(part for part in model.parts if part.kind == "token")
    return {
        "what": what,
        "tokens": tokens,
        "shared_tokens": shared_tokens,
        "shared_bytes": plain(shared),
        "bytes_each": plain(model.at(tokens) - shared),
        "per_rank": sessions_per_rank(kv, model, tokens, shared_tokens),
        "per_rank_without_fixed_bytes": (
            sessions_per_rank(kv, msgspec.structs.replace(model, parts=growing), tokens, shared_tokens)
            if growing and rank.per_session and shared_tokens < tokens
            else None
        ),
        "by_layout": [
            {
                "layout": name,
                "bytes_per_token": plain(per_token),
                "per_rank": sessions_per_rank(kv, _with_pages(model, per_token), tokens, shared_tokens),
            }
            for name, per_token in rank.layouts
            if per_token != model.bytes_per_token
        ],
    }


def _with_pages(model: ModelBytes, per_token: Fraction) -> ModelBytes:
    fixed = tuple(part for part in model.parts if part.kind != "token")
    return msgspec.structs.replace(model, parts=(*_given_parts(per_token, None), *fixed))


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """How many tokens of prefixes a tier keeps. per_token: bytes that one counts, fixed bytes in it where idle sessions
    keep them. held: bytes that running sessions hold besides."""

    name: str
    size: int
    held: Fraction
    per_token: Fraction
    tokens: int


def room(name: str, size: int, rank: Rank, mean_context: Fraction, running: int) -> Room:
    """Idle sessions that keep their fixed bytes: F is laid on their tokens, F / n each, n the mean context. Otherwise
    the `running` sessions hold it, and the rest is for prefixes."""
    if rank.idle_keeps_f:
        per_token, fixed = rank.per_token + rank.per_session / mean_context, Fraction(0)
    else:
        per_token, fixed = rank.per_token, rank.per_session * running
    tokens = max(0, int((size - fixed) / per_token))
    return Room(name=name, size=size, held=fixed, per_token=per_token, tokens=tokens)
