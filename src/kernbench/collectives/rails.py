"""Trees over rails: chains inside every node, and two trees across the nodes at each place.

What ranks at one place of their nodes send each other stays on the network interfaces of that
place. A chain inside a node ends where its part leaves the node; the ranks of a place add up what
comes from the nodes below in their trees, and hand the sum down again.

Source of the form: NCCL, src/graph/trees.cc and src/graph/connect.cc, where a channel is a rail.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kernbench.collectives.plan import Plan, Request, even_bounds, in_one_round, shared_index
from kernbench.collectives.schedule import Step

Nodes = npt.NDArray[np.int64]

_TREES = 2


def all_reduce(asked: Request) -> Plan:
    """Return chains in the nodes, trees up, trees down, and chains back.

    Each rank's place has a part of the tensor, and each of the two trees half of that.
    """
    size = asked.ranks_per_node
    num_nodes = asked.num_ranks // size
    up, down = _across(size, num_nodes)
    inward = _chains(size, num_nodes, first=-1, reduce=True)
    outward = _chains(size, num_nodes, first=0, reduce=False)
    return even_bounds(asked.num_elements, _TREES * size), (*inward, *up, *down, *outward)


def _chains(size: int, num_nodes: int, first: int, reduce: bool) -> tuple[Step, ...]:
    """Return ``L - 1`` steps: place p hands on the part of place ``p + first - s``."""
    node, place = np.divmod(np.arange(size * num_nodes), size)
    src, dst = shared_index(node * size + place), shared_index(node * size + (place + 1) % size)
    return tuple(
        Step(src, dst, shared_index((place + first - number) % size * _TREES), reduce, span=_TREES)
        for number in range(size - 1)
    )


def _across(size: int, num_nodes: int) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """Return the rounds up both trees of every place, and those down."""
    trees = [parents(num_nodes, second) for second in (False, True)]
    depths = [_depths(tree) for tree in trees]
    deepest = max(int(depth.max()) for depth in depths)
    up: list[Step] = []
    down: list[Step] = []
    for depth in range(deepest, 0, -1):
        edges: list[tuple[int, Nodes, Nodes]] = []
        for number, (tree, depth_of) in enumerate(zip(trees, depths, strict=True)):
            nodes = np.flatnonzero(depth_of == depth)
            # A parent takes from one child at a time: the first ones, then the second ones.
            _, firsts = np.unique(tree[nodes], return_index=True)
            others = np.delete(np.arange(len(nodes)), firsts)
            edges += [(number, nodes[part], tree[nodes[part]]) for part in (firsts, others)]
        edges = [edge for edge in edges if len(edge[1])]
        up += in_one_round(_steps(size, *edge, reduce=True) for edge in edges)
        down[:0] = in_one_round(
            _steps(size, number, above, below, reduce=False) for number, below, above in edges
        )
    return tuple(up), tuple(down)


def _steps(size: int, tree: int, src: Nodes, dst: Nodes, reduce: bool) -> Step:
    """Return the transfers from nodes to nodes at all places at once, in one of the trees."""
    place = np.tile(np.arange(size), len(src))
    src, dst = np.repeat(src, size) * size + place, np.repeat(dst, size) * size + place
    chunk = place * _TREES + tree
    return Step(shared_index(src), shared_index(dst), shared_index(chunk), reduce)


def parents(num_nodes: int, second: bool) -> Nodes:
    """Return the parent of every node in one of two binary trees, -1 for the root.

    Nodes inside of the first tree are leaves of the second.

    Source: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast,
    reduction and scan", Parallel Computing 35(12), 2009.

    >>> parents(6, False).tolist(), parents(6, True).tolist()
    ([-1, 2, 4, 2, 0, 4], [1, 5, 3, 1, 3, -1])
    """
    nodes = np.arange(num_nodes)
    bit = nodes & -nodes
    above = (nodes ^ bit) | (bit << 1)
    result = np.where(above >= num_nodes, nodes ^ bit, above)
    result[0] = -1
    if not second:
        return result
    if num_nodes % 2:
        # Moved on by one node.
        moved = np.roll(result, 1)
        return np.where(moved < 0, -1, (moved + 1) % num_nodes)
    mirrored = result[::-1]
    return np.where(mirrored < 0, -1, num_nodes - 1 - mirrored)


def _depths(tree: Nodes) -> Nodes:
    """Return how far below the root every node is."""
    depth, at = np.zeros_like(tree), tree.copy()
    while (at >= 0).any():
        depth += at >= 0
        at = np.where(at >= 0, tree[at], -1)
    return depth
