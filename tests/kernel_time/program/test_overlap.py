"""Loads that are under way together, against servers that take them one after the other."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.commands import UNKNOWN_LINE, Loop, loop_dim
from kernbench.kernel_time.program.overlap import Load, Needs, Overlapped, overlapped

ISSUE_PS = 7
LOOPS = tuple(Loop(number, count, (), (), 1, UNKNOWN_LINE) for number, count in ((3, 2), (1, 3)))
DIMS = {loop_dim(loop.loop_id): loop.trip_count for loop in LOOPS}
NEEDS = st.tuples(*[st.integers(0, 50)] * 4)


@st.composite
def loads(draw: st.DrawFn) -> list[Load]:
    found = []
    for _ in range(draw(st.integers(1, 4))):
        dims = tuple(dim for dim in DIMS if draw(st.booleans()))
        shape = tuple(DIMS[dim] for dim in dims)
        count = int(np.prod(shape, dtype=int))
        needs = draw(st.lists(NEEDS, min_size=count, max_size=count))
        found.append(Load.of(dims, shape, needs))
    return found


def at(load: Load, iteration: dict[int, int]) -> Needs:
    place = 0
    for dim, length in zip(load.dims, load.shape, strict=True):
        place = place * length + iteration[dim]
    return load.needs[place]


def cost_at(taken: Overlapped, iteration: dict[int, int]) -> int:
    cost: Any = taken.occupancy
    for loop_id in taken.varies:
        cost = cost[iteration[loop_dim(loop_id)]]
    assert isinstance(cost, int)
    return cost


@pytest.mark.adr("0081-D1")
@given(loads())
def test_a_load_is_there_when_every_resource_has_served_it_and_those_before(
    asked: list[Load],
) -> None:
    taken = overlapped(asked, LOOPS, ISSUE_PS)
    busy = [0] * len(asked)
    for place in np.ndindex(*DIMS.values()):
        iteration = dict(zip(DIMS, place, strict=True))
        free = [0, 0, 0, 0]
        end = 0
        for number, (load, each) in enumerate(zip(asked, taken, strict=True)):
            free = [a + b for a, b in zip(free, at(load, iteration), strict=True)]
            cost = cost_at(each, iteration)
            assert cost == ISSUE_PS + max(free) - end
            end = max(free)
            busy[number] += cost
    assert busy == [each.busy_ps(6, ISSUE_PS) for each in taken]


@given(loads(), st.integers(0, 3), st.data())
def test_a_faster_resource_makes_no_load_come_later(
    asked: list[Load], resource: int, data: st.DataObject
) -> None:
    percent = data.draw(st.integers(0, 100))

    def faster(needs: Needs) -> Needs:
        return tuple(  # type: ignore[return-value]  # as long as it was
            each * percent // 100 if place == resource else each for place, each in enumerate(needs)
        )

    less = [Load(load.dims, load.shape, tuple(map(faster, load.needs))) for load in asked]
    before, after = (overlapped(each, LOOPS, ISSUE_PS) for each in (asked, less))
    for place in np.ndindex(*DIMS.values()):
        iteration = dict(zip(DIMS, place, strict=True))
        ends = [np.cumsum([cost_at(each, iteration) for each in part]) for part in (after, before)]
        assert (ends[0] <= ends[1]).all()


def test_a_loop_without_iterations_costs_nothing() -> None:
    (taken,) = overlapped([Load.of((4,), (0,), [])], LOOPS, ISSUE_PS)
    assert taken.busy_ps(0, ISSUE_PS) == 0
