"""Cut each request into runs of blocks that were last touched together, in order of time.

The tree of paths is laid out in heavy paths (from every node the branch with the most requests goes on). A request is
then a beginning of one heavy path, below it a beginning of the next, and so on, at most log2(requests) of them. On a
heavy path what was touched last is a staircase: the deeper, the longer ago. A request takes the steps it covers (its
runs) and leaves one of its own, so the whole is linear in runs.
"""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from kvbench.traces.curve.dominance import Ints
from kvbench.traces.curve.hits import Runs
from kvbench.traces.curve.paths import PathTree


def cut(tree: PathTree, nodes: NDArray[np.int32], depths: Ints) -> Runs:
    """Runs of the chains that end at (nodes, depths), which are in order of time."""
    resolved = np.fromiter(map(tree.resolved, nodes.tolist(), depths.tolist()), np.int64, len(nodes))
    heavy, above, begins = _heavy_paths(tree, resolved)
    request, previous, blocks = array("q"), array("q"), array("q")
    # steps of each heavy path, the shallowest last: who touched them, and how deep they go
    touched_by: list[list[int]] = [[] for _ in above]
    ends: list[list[int]] = [[] for _ in above]
    found: list[tuple[int, int]] = []
    for now, (path, depth) in enumerate(zip(heavy[resolved].tolist(), depths.tolist(), strict=True)):
        found.clear()
        while depth:
            who, to = touched_by[path], ends[path]
            begin = at = begins[path]
            steps = len(found)
            while to and to[-1] <= depth:
                end = to.pop()
                found.append((who.pop(), end - at))
                at = end
            if to and at < depth:
                found.append((who[-1], depth - at))
            found[steps:] = found[: steps - 1 if steps else None : -1]
            who.append(now)
            to.append(depth)
            depth, path = begin, above[path]
        last = -1
        for who_touched, count in found:
            if who_touched == last:  # one step on both sides of where a heavy path begins
                blocks[-1] += count
                continue
            request.append(now)
            previous.append(who_touched)
            blocks.append(count)
            last = who_touched
    return Runs(_ints(request), _ints(previous), _ints(blocks), np.asarray(depths, np.int64))


def _heavy_paths(tree: PathTree, ends: Ints) -> tuple[Ints, list[int], list[int]]:
    """(heavy path of each node, and of each heavy path the one it branches off and the depth at which it begins)"""
    parent = tree.parent.tolist()
    start = np.array(tree.start)
    size = np.bincount(ends, minlength=len(parent)).tolist()
    # an edge is never empty, so a parent begins above its children; only the root and its children begin together
    top_down = np.argsort(start[1:], kind="stable") + 1
    order = top_down.tolist()
    for node in reversed(order):
        size[parent[node]] += size[node]
    heaviest = [-1] * len(parent)
    for node in order:
        up = parent[node]
        if heaviest[up] < 0 or size[node] > size[heaviest[up]]:
            heaviest[up] = node
    path = [0] * len(parent)
    above, begins = [0], [0]
    begin = start.tolist()
    for node in order:
        up = parent[node]
        if heaviest[up] == node:
            path[node] = path[up]
        else:
            path[node] = len(above)
            above.append(path[up])
            begins.append(begin[node])
    return np.array(path, np.int64), above, begins


def _ints(values: array[int]) -> Ints:
    return np.frombuffer(values, np.int64) if values else np.zeros(0, np.int64)
