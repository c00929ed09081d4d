"""Queues of a PE; loads that are under way together, against servers that take them in turns."""

from typing import Any, get_args

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernbench.commands import PE_ENGINES, UNKNOWN_LINE, Engine, Loop, loop_dim
from kernbench.kernel_time.program.queues import (
    Load,
    Needs,
    Overlapped,
    Queue,
    SipQueues,
    overlapped,
    queue_of,
)
from kernbench.kernel_time.program.timed_plan import SiteCommand

ISSUE_PS = 7
LOOPS = tuple(Loop(number, count, (), (), 1, UNKNOWN_LINE) for number, count in ((3, 2), (1, 3)))
DIMS = {loop_dim(loop.loop_id): loop.trip_count for loop in LOOPS}
NEEDS = st.tuples(*[st.integers(0, 50)] * 4)


@st.composite
def loads(draw: st.DrawFn) -> list[Load]:
    result = []
    for _ in range(draw(st.integers(1, 4))):
        dims = tuple(dim for dim in DIMS if draw(st.booleans()))
        shape = tuple(DIMS[dim] for dim in dims)
        count = int(np.prod(shape, dtype=int))
        needs = draw(st.lists(NEEDS, min_size=count, max_size=count))
        result.append(Load.of(dims, shape, needs))
    return result


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
        for number, (load, pair) in enumerate(zip(asked, taken, strict=True)):
            free = [a + b for a, b in zip(free, at(load, iteration), strict=True)]
            cost = cost_at(pair, iteration)
            assert cost == ISSUE_PS + max(free) - end
            end = max(free)
            busy[number] += cost
    assert busy == [item.busy_ps(6, ISSUE_PS) for item in taken]


@given(loads(), st.integers(0, 3), st.data())
def test_a_faster_resource_makes_no_load_come_later(
    asked: list[Load], resource: int, data: st.DataObject
) -> None:
    percent = data.draw(st.integers(0, 100))

    def faster(needs: Needs) -> Needs:
        return tuple(  # type: ignore[return-value]  # as long as it was
            need * percent // 100 if place == resource else need for place, need in enumerate(needs)
        )

    less = [Load(load.dims, load.shape, tuple(map(faster, load.needs))) for load in asked]
    before, after = (overlapped(item, LOOPS, ISSUE_PS) for item in (asked, less))
    for place in np.ndindex(*DIMS.values()):
        iteration = dict(zip(DIMS, place, strict=True))
        ends = [np.cumsum([cost_at(item, iteration) for item in part]) for part in (after, before)]
        assert (ends[0] <= ends[1]).all()


def test_a_loop_without_iterations_costs_nothing() -> None:
    (taken,) = overlapped([Load.of((4,), (0,), [])], LOOPS, ISSUE_PS)
    assert taken.busy_ps(0, ISSUE_PS) == 0


def test_every_command_that_is_timed_is_served_by_one_queue_and_all_queues_serve() -> None:
    queues = {kind.__name__: queue_of(kind.__new__(kind)) for kind in get_args(SiteCommand)}
    assert set(queues.values()) == set(Queue)
    assert [queue.engine for queue in Queue] == list(PE_ENGINES)
    assert [queue.name for queue in Queue] == [engine.name for engine in PE_ENGINES]
    assert queues["DmaRead"].engine is Engine.DMA_IN
    assert queues["DmaWrite"] is queues["Atomic"]


def test_programs_of_a_sip_find_queues_as_programs_before_them_left_them() -> None:
    queues = SipQueues(num_pes=3, begin_ps=10)
    queues.take(Queue.MATH, np.array([0, 2]), 40)
    free_ps = dict.fromkeys(Queue, 99) | {Queue.GEMM: 30, Queue.MATH: 25}
    queues.settle(np.array([1, 2]), {Queue.MATH, Queue.GEMM}, [*free_ps.values()])
    # PE 2 is busy until 40 with what the first programs left there; no other queue was used.
    unused = dict.fromkeys(Queue, 10)
    for pes, math_ps in (([1], 25), ([1, 2], 40)):
        expected = unused | {Queue.GEMM: 30, Queue.MATH: math_ps}
        assert queues.on(np.array(pes)) == [*expected.values()]
    assert queues.free_ps(Queue.MATH, np.array([0, 1])) == 40
