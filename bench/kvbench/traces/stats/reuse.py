"""What a prefix cache could do with a trace: the ceiling, and which pieces of prompts several sessions share."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import msgspec
import numpy as np

from kvbench.traces.curve.dominance import Ints
from kvbench.traces.curve.traffic import Traffic, TrafficReader

TOP = 5


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """Hits of an unbounded cache: all blocks but those seen for the first time. None: nothing to divide by.

    own_token_hit_rate: of all input tokens, those in whole blocks that the session's previous prompt began with too;
    the rest of token_hit_rate is shared with other sessions, or with earlier prompts. eligible_hit_rate: hit tokens /
    (input + output of the session's previous turn), over turns whose previous turn has a length for its answer: the
    most that a run's eligible hit rate can be.
    """

    blocks: int
    hit_blocks: int
    block_hit_rate: float | None
    input_tokens: int
    hit_tokens: int
    token_hit_rate: float | None
    own_token_hit_rate: float | None
    eligible_hit_rate: float | None


class SharedPiece(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks that the same sessions have: distinct, from `depth_blocks` of a prompt on. sent_blocks: over all requests,
    share: of all blocks sent. session_id: the first that sends it."""

    depth_blocks: int
    blocks: int
    tokens: int
    sessions: int
    requests: int
    sent_blocks: int
    share: float
    session_id: str


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """What at least two sessions have. top: the pieces with the most blocks sent; they do not overlap."""

    pieces: int
    blocks: int
    sent_blocks: int
    share: float | None
    top: tuple[SharedPiece, ...]


@dataclass
class Turns:
    """Beside the requests of a TrafficReader, in the order of reading: kept blocks, and the session's previous turn."""

    kept: array[int]
    before_input: array[int]
    before_output: array[int]
    """-1 where there is no previous turn, or its answer has no length."""
    sessions: array[int]
    """Number of each request's session."""
    names: list[str]
    """Of the sessions."""


def ceiling(traffic: Traffic, turns: Turns, by_time: Ints) -> Ceiling:
    """by_time: where each of the traffic's requests stands in the order of reading."""
    runs, size, tokens = traffic.runs, traffic.blocking.block_size, traffic.input_tokens
    hit_blocks = np.bincount(runs.request, runs.blocks, traffic.requests).astype(np.int64)
    hit_tokens = np.minimum(hit_blocks * size, tokens)
    own = np.minimum(np.array(turns.kept)[by_time] * size, tokens)
    output = np.array(turns.before_output)[by_time]
    told = output >= 0
    eligible = int((np.array(turns.before_input)[by_time][told] + output[told]).sum())
    blocks, total = int(runs.depth.sum()), int(tokens.sum())
    return Ceiling(
        blocks=blocks,
        hit_blocks=int(hit_blocks.sum()),
        block_hit_rate=_share(int(hit_blocks.sum()), blocks),
        input_tokens=total,
        hit_tokens=int(hit_tokens.sum()),
        token_hit_rate=_share(int(hit_tokens.sum()), total),
        own_token_hit_rate=_share(int(own.sum()), total),
        eligible_hit_rate=_share(int(hit_tokens[told].sum()), eligible),
    )


def sharing(reader: TrafficReader, turns: Turns, block_size: int) -> Sharing:
    """Cuts the reader's paths where requests end, so that each edge is passed whole: cut() comes before, not after."""
    paths = reader.paths
    ends = [paths.cut_at(*end) for end in zip(reader.nodes, reader.depths, strict=True)]
    count = len(paths.parent)
    parent, length = paths.parent.tolist(), (np.array(paths.end) - np.array(paths.start)).tolist()
    sessions, seen, first = [0] * count, [-1] * count, [0] * count
    passes = np.bincount(ends, minlength=count).tolist()
    for session, node in sorted(zip(turns.sessions, ends, strict=True)):
        while node and seen[node] != session:
            if not sessions[node]:
                first[node] = session
            seen[node] = session
            sessions[node] += 1
            node = parent[node]
    top_down = (np.argsort(np.array(paths.start)[1:], kind="stable") + 1).tolist()
    for node in reversed(top_down):
        passes[parent[node]] += passes[node]
    total = int(np.array(reader.depths).sum())
    # a node's sessions are among its parent's: where they are as many, they are the same
    piece = list(range(count))
    blocks, sent = [0] * count, [0] * count
    for node in top_down:
        if sessions[node] < 2:
            continue
        if parent[node] and sessions[parent[node]] == sessions[node]:
            piece[node] = piece[parent[node]]
        blocks[piece[node]] += length[node]
        sent[piece[node]] += length[node] * passes[node]
    found = sorted((node for node in range(1, count) if blocks[node]), key=lambda node: -sent[node])
    return Sharing(
        pieces=len(found),
        blocks=sum(blocks),
        sent_blocks=sum(sent),
        share=_share(sum(sent), total),
        top=tuple(
            SharedPiece(
                depth_blocks=paths.start[node],
                blocks=blocks[node],
                tokens=blocks[node] * block_size,
                sessions=sessions[node],
                requests=passes[node],
                sent_blocks=sent[node],
                share=sent[node] / total,
                session_id=turns.names[first[node]],
            )
            for node in found[:TOP]
        ),
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
