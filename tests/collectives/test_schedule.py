from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.collectives import Schedule, Step, build
from kernbench.errors import InternalError


@given(n=st.integers(1, 40), size=st.integers(0, 200), itemsize=st.sampled_from([1, 2, 4, 8]))
def test_chunks_cover_the_buffer_and_differ_by_one_element_at_most(
    n: int, size: int, itemsize: int
) -> None:
    schedule = build("all_reduce", "ring", n, size, itemsize)
    sizes = schedule.chunk_bytes()
    assert len(sizes) == schedule.num_chunks == n
    assert sizes.sum() == schedule.size_bytes == size * itemsize
    assert sizes.max() - sizes.min() <= itemsize


@pytest.mark.adr("0008-D1")
def test_a_plan_can_be_printed_before_anything_moves() -> None:
    text = build("broadcast", "ring", 3, 300_000, 1, root=2).describe()
    assert text.splitlines() == [
        "broadcast by ring: 3 ranks, 300000 elements of 1 bytes in chunks of 100000 100000 100000, "
        "4 steps",
        "step 0  copy    2->0 chunk 0",
        "step 1  copy    2->0 chunk 1, 0->1 chunk 0",
        "step 2  copy    2->0 chunk 2, 0->1 chunk 1",
        "step 3  copy    0->1 chunk 2",
    ]


def test_a_long_plan_is_printed_up_to_a_limit() -> None:
    lines = build("all_reduce", "ring", 20, 41, 4).describe(max_steps=2).splitlines()
    assert "chunks of 2 to 3" in lines[0]
    assert lines[-1] == "... and 36 more steps"
    assert len(lines) == 4


def one_step(**changes: object) -> Schedule:
    """Return a plan of one step, 0->1 and 1->2 of three ranks, with changed arrays."""
    arrays = {"src": [0, 1], "dst": [1, 2], "chunk": [0, 1]}
    changed = [np.array(changes.get(name, value), np.int32) for name, value in arrays.items()]
    step = Step(changed[0], changed[1], changed[2], reduce=False)
    plan = build("all_reduce", "ring", 3, 9, 4)
    return dataclasses.replace(plan, steps=(step,))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"src": [0, 3]}, r"a source outside 0\.\.2"),
        ({"dst": [-1, 2]}, r"a target outside 0\.\.2"),
        ({"chunk": [0, 3]}, r"a chunk outside 0\.\.2"),
        ({"chunk": [0]}, "a chunk outside"),
        ({"dst": [0, 2]}, "to itself"),
        ({"src": [0, 0]}, "send or receive twice"),
        ({"dst": [2, 2]}, "send or receive twice"),
    ],
)
def test_a_plan_that_breaks_a_rule_fails_its_check(
    changes: dict[str, object], message: str
) -> None:
    sound, broken = one_step(), one_step(**changes)
    sound.check()
    with pytest.raises(InternalError, match=message):
        broken.check()


def test_bounds_that_do_not_cut_the_buffer_fail_the_check() -> None:
    plan = build("all_reduce", "ring", 3, 9, 4)
    with pytest.raises(InternalError, match="do not cut 9 elements"):
        dataclasses.replace(plan, chunk_bounds=np.array([0, 4, 3, 9])).check()
