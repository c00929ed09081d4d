"""Trees over rails: what crosses nodes stays on its place, and every node sends its share."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernbench.collectives import build
from kernbench.collectives.rails import parents


@given(num_nodes=st.integers(2, 200))
def test_both_trees_span_all_nodes_and_share_their_inner_ones(num_nodes: int) -> None:
    inner = []
    for second in (False, True):
        tree = parents(num_nodes, second)
        assert np.count_nonzero(tree < 0) == 1
        at = np.arange(num_nodes)
        for _ in range(2 * math.ceil(math.log2(num_nodes)) + 1):
            at = np.where(at >= 0, tree[at], -1)
        assert (at < 0).all(), "every node leads to the root, in logarithmic steps"
        children = np.bincount(tree[tree >= 0], minlength=num_nodes)
        assert children.max() <= 2
        inner.append(children > 1)
    assert not (inner[0] & inner[1]).any(), "what has two children in one is a leaf of the other"


@given(size=st.sampled_from([2, 4, 8]), num_nodes=st.integers(2, 40))
def test_ranks_send_to_other_nodes_on_their_own_place_only(size: int, num_nodes: int) -> None:
    n = size * num_nodes
    schedule = build("all_reduce", "rail_tree", n, 2 * size * 100, 4, ranks_per_node=size)
    schedule.check()
    sent = np.zeros(n)
    for step in schedule:
        crosses = step.src // size != step.dst // size
        assert (step.src[crosses] % size == step.dst[crosses] % size).all()
        np.add.at(sent, step.src[crosses], schedule.step_bytes(step)[crosses])
    # Up and down each tree: twice its half for all but two nodes, whatever their number.
    assert sent.reshape(num_nodes, size).sum() == 2 * (num_nodes - 1) * schedule.size_bytes
    depth = math.ceil(math.log2(num_nodes))
    rounds = sum(not step.concurrent for step in schedule)
    assert 2 * (size - 1) < rounds <= 2 * (size - 1) + 2 * (depth + 1)
