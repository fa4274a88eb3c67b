"""Weighted inversions: for each point in time, the weight of the earlier points whose key is greater.

Rank the keys. A pair (earlier i, greater rank than j) lies either in two different blocks of ranks or in one. Of the
first kind, those in different blocks of time too are counted by a table of block against block, summed along both
sides; those in one block of time are the same question again, asked of that block with the blocks of ranks as keys.
The second kind is the same question asked of each block of ranks. Blocks of 4,096 are cut once more, into blocks of
64, and those are compared pair by pair. All of it is numpy over arrays: a sort, and about 64 steps a point.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_Small = NDArray[np.int32]
_Weights = NDArray[Any]
"""int32 or int64."""

_ROWS = 128
"""Blocks solved at a time: what they need stays near the processor."""

_PAIRS = 4096
"""Small blocks compared at a time."""


def earlier_greater(keys: Ints, weights: Ints, *, or_equal: bool = False) -> Ints:
    """Sum of weights[i] over i < j with keys[i] > keys[j] (or_equal: >=), for each j. int64, the shape of keys.

    keys: 0 <= key < 2^31; weights: >= 0. At most 2^31 points. Memory: about 60 bytes a point.
    """
    n = len(keys)
    if n == 0:
        return np.zeros(0, np.int64)
    size = 4096 if n <= 1 << 25 else 16384
    blocks = -(-n // size)
    padded = blocks * size
    positions = np.arange(n, dtype=np.int64)
    tied = n - 1 - positions if or_equal else positions
    by_key = np.sort(keys << 32 | tied) & 0xFFFFFFFF
    if or_equal:
        by_key = n - 1 - by_key
    # points of no weight, after all others in time and before them in rank, make the blocks whole
    order = np.concatenate((np.arange(n, padded), by_key)).astype(np.int32)
    del by_key, tied, positions
    rank = np.empty(padded, np.int32)
    rank[order] = np.arange(padded, dtype=np.int32)
    narrow = int(weights.max()) < 1 << 24  # sums over a small block then fit 32 bits
    weight: _Weights = np.zeros(padded, np.int32) if narrow else np.zeros(padded, np.int64)
    weight[:n] = weights
    total = np.zeros(padded, np.int64)
    _across(rank.reshape(blocks, size), weight.reshape(blocks, size), total)
    by_rank = order.reshape(blocks, size)
    for at in range(0, blocks, _ROWS):
        rows = slice(at, at + _ROWS)
        cells = slice(at * size, (at + _ROWS) * size)
        # in one block of time: which block of ranks is the key
        keyed = rank[cells].reshape(-1, size) // size
        total[cells] += _rows(_dense(keyed), weight[cells].reshape(-1, size)).reshape(-1)
        # in one block of ranks: its points in order of time
        times = np.sort(by_rank[rows], axis=1)
        inner = rank[times] % size
        total[times.reshape(-1)] += _rows(inner, weight[times]).reshape(-1)
    return total[:n]


def _across(rank: _Small, weight: _Weights, total: Ints) -> None:
    """Add the pairs that lie in different blocks of time and of ranks. rank, weight: (blocks, size)."""
    blocks, size = rank.shape
    cell = (rank // size + np.arange(blocks, dtype=np.int64)[:, None] * blocks).reshape(-1)
    total += _greater_before(_sums(cell, weight, blocks * blocks), 1, blocks)[cell]


def _sums(cell: Ints, weight: _Weights, cells: int) -> Ints:
    """Weight in each cell; floats hold these sums exactly up to 2^53."""
    return np.asarray(np.bincount(cell, weight.reshape(-1), cells).astype(np.int64))


def _greater_before(cells: Ints, tables: int, side: int) -> Ints:
    """Tables of (time, rank): the sums over the cells of earlier rows and greater columns, flat."""
    table = cells.reshape(tables, side, side)
    table = np.cumsum(table, axis=1) - table
    table = np.cumsum(table[:, :, ::-1], axis=2)[:, :, ::-1] - table
    return np.asarray(table.reshape(-1))


def _rows(rank: _Small, weight: _Weights) -> Ints:
    """The same question for each row by itself: rank is a permutation of 0 .. size - 1. Shape (rows, size)."""
    rows, size = rank.shape
    small = 1 << (size.bit_length() // 2)
    parts = size // small
    keyed = rank // small
    cell = (keyed.reshape(-1, small) + np.arange(rows * parts, dtype=np.int64)[:, None] * parts).reshape(-1)
    tables = _sums(cell, weight, rows * parts * parts)
    total: Ints = _greater_before(tables, rows, parts)[cell].reshape(rows, size)
    total += _pairs(keyed.reshape(-1, small), weight.reshape(-1, small)).reshape(rows, size)
    by_rank = np.empty((rows, size), np.int32)
    np.put_along_axis(by_rank, rank.astype(np.int64), np.arange(size, dtype=np.int32)[None, :], axis=1)
    times = np.sort(by_rank.reshape(-1, small), axis=1).reshape(rows, size).astype(np.int64)
    inner = np.take_along_axis(rank, times, axis=1).reshape(-1, small) % small
    found = _pairs(inner, np.take_along_axis(weight, times, axis=1).reshape(-1, small))
    add = np.empty((rows, size), np.int64)
    np.put_along_axis(add, times, found.reshape(rows, size), axis=1)
    total += add
    return total


def _dense(keys: _Small) -> _Small:
    """Ranks within each row; of equal keys the earlier has the smaller rank, so that it is not counted."""
    rows, size = keys.shape
    order = np.sort(keys.astype(np.int64) << 16 | np.arange(size), axis=1) & 0xFFFF
    rank = np.empty((rows, size), np.int32)
    np.put_along_axis(rank, order, np.arange(size, dtype=np.int32)[None, :], axis=1)
    return rank


def _pairs(keys: _Small, weight: _Weights) -> Ints:
    """Every pair of each row. keys: (rows, up to 128 columns), below 256."""
    rows, size = keys.shape
    total = np.empty((rows, size), np.int64)
    for at in range(0, rows, _PAIRS):
        key = np.ascontiguousarray(keys[at : at + _PAIRS].T.astype(np.uint8))
        weighs = np.ascontiguousarray(weight[at : at + _PAIRS].T)
        greater, kept, sums = np.empty(key.shape, bool), np.empty_like(weighs), np.zeros_like(weighs)
        for j in range(1, size):
            np.greater(key[:j], key[j], out=greater[:j])
            np.multiply(weighs[:j], greater[:j], out=kept[:j])
            np.add.reduce(kept[:j], axis=0, out=sums[j])
        total[at : at + _PAIRS] = sums.T
    return total
