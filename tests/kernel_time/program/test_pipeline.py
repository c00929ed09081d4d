"""The fast schedule of one program against the event-by-event one, and against its own steps."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.kernel_time.program.pipeline import (
    PipelineRun,
    PipelineTimes,
    SiteTimes,
    interval_in_turns_ps,
    interval_ps,
    side_by_side,
)
from kernbench.kernel_time.program.queues import Cost, Queue, QueueStep
from kernbench.kernel_time.program.timed_plan import LoopNode, Node, ProgramPlan
from tests.kernel_time.program.pipeline_reference import run_reference
from tests.tiers import examples


def run_pipeline(plan: ProgramPlan, times: SiteTimes, jump: bool = True) -> PipelineTimes:
    return PipelineRun(plan, times, jump).times()


class RandomProgram:
    """A program of random loads, engine work and stores in random loops, from one seed."""

    def __init__(self, seed: int, max_trip: int) -> None:
        self.random = random.Random(seed)
        self.max_trip = max_trip
        self.num_slots = 0
        self.num_loops = 0
        self.costs: list[Cost] = []
        self.varies: list[tuple[int, ...]] = []
        self.latency: list[int] = []
        nodes = self.body([], {}, 2)
        # Sites carry no command here: the pipeline only counts them.
        sites = tuple(None for _ in self.costs)
        self.plan = ProgramPlan(nodes, sites, self.num_slots)  # type: ignore[arg-type]
        self.times = SiteTimes(tuple(self.costs), tuple(self.varies), tuple(self.latency))

    def slot(self) -> int:
        self.num_slots += 1
        return self.num_slots - 1

    def some(self, slots: list[int]) -> tuple[int, ...]:
        return tuple(self.random.sample(slots, min(len(slots), self.random.randint(0, 2))))

    def table(self, loops: dict[int, int], chosen: tuple[int, ...]) -> Cost:
        if not chosen:
            return self.random.choice([0, 1, 3, 7, 10, 50])
        trip = loops[chosen[0]]
        if self.random.random() < 0.7:  # one odd iteration at the end, as with a ragged K
            usual, last = self.table(loops, chosen[1:]), self.table(loops, chosen[1:])
            return (usual,) * (trip - 1) + (last,) if trip else ()
        return tuple(self.table(loops, chosen[1:]) for _ in range(trip))

    def body(self, known: list[int], loops: dict[int, int], depth: int) -> tuple[Node, ...]:
        known = list(known)
        nodes: list[Node] = []
        for _ in range(self.random.randint(1, 5)):
            if depth and self.random.random() < 0.4:
                node, results = self.loop(known, loops, depth - 1)
                nodes.append(node)
                known += results
                continue
            queue = Queue(self.random.randrange(4))
            reads = self.some(known)
            writes = () if queue is Queue.DMA_OUT else (self.slot(),)
            known += writes
            chosen = tuple(loop for loop in loops if self.random.random() < 0.25)
            nodes.append(QueueStep(len(self.costs), queue, reads, writes))
            self.costs.append(self.table(loops, chosen))
            self.varies.append(chosen)
            self.latency.append(self.random.choice([0, 0, 2, 30]))
        return tuple(nodes)

    def loop(
        self, known: list[int], loops: dict[int, int], depth: int
    ) -> tuple[LoopNode, list[int]]:
        loop_id, trip = self.num_loops, self.random.randint(0, self.max_trip)
        self.num_loops += 1
        count = self.random.randint(0, 2)
        inits = tuple(self.some(known) for _ in range(count))
        args = tuple(self.slot() for _ in range(count))
        first, before = len(self.costs), self.num_slots
        body = self.body([*known, *args], {**loops, loop_id: trip}, depth)
        inside = list(range(before, self.num_slots))
        direct = {slot for node in body if isinstance(node, QueueStep) for slot in node.writes}
        yields = tuple(
            self.some([*(s for s in inside if s in direct), *args]) for _ in range(count)
        )
        results = tuple(self.slot() for _ in range(count))
        node = LoopNode(
            loop_id=loop_id,
            trip_count=trip,
            in_flight=1 if any(isinstance(item, LoopNode) for item in body) else self.stages(),
            body=body,
            sites=range(first, len(self.costs)),
            inits=inits,
            args=args,
            yields=yields,
            results=results,
            invariants=tuple(known),
        )
        return node, list(results)

    def stages(self) -> int:
        return self.random.randint(1, 4)


@pytest.mark.adr("0007-D2")
@examples(120)
@given(seed=st.integers(0, 1 << 32))
def test_the_fast_schedule_equals_the_event_by_event_one(seed: int) -> None:
    program = RandomProgram(seed, max_trip=7)
    assert run_pipeline(program.plan, program.times) == run_reference(program.plan, program.times)


@pytest.mark.adr("0007-D2")
@examples(80)
@given(seed=st.integers(0, 1 << 32))
def test_jumping_over_a_steady_state_equals_stepping_through_it(seed: int) -> None:
    program = RandomProgram(seed, max_trip=25)
    assert run_pipeline(program.plan, program.times) == run_pipeline(
        program.plan, program.times, jump=False
    )


def gemm_loop(
    trip: int, stages: int, load: int, gemm: int, latency: int
) -> tuple[ProgramPlan, SiteTimes]:
    """Two loads and a dot in a loop, then a store: the loop that matters most."""
    body: tuple[Node, ...] = (
        QueueStep(0, Queue.DMA_IN, (), (0,)),
        QueueStep(1, Queue.DMA_IN, (), (1,)),
        QueueStep(2, Queue.GEMM, (0, 1, 2), (3,)),
    )
    loop = LoopNode(0, trip, stages, body, range(3), ((),), (2,), ((3,),), (4,), ())
    plan = ProgramPlan((loop, QueueStep(3, Queue.DMA_OUT, (4,), ())), (None,) * 4, 5)  # type: ignore[arg-type]
    return plan, SiteTimes((load, load, gemm, load), ((),) * 4, (latency, latency, 0, latency))


def run_gemm(trip: int, stages: int, load: int, gemm: int, latency: int) -> PipelineTimes:
    return run_pipeline(*gemm_loop(trip, stages, load, gemm, latency))


def test_one_iteration_by_hand() -> None:
    # loads 0..10 and 10..20, there at 25; dot 25..55; store 55..65, there at 70.
    assert run_gemm(1, 3, 10, 30, 5) == PipelineTimes(70, (0, 10, 25, 55), (15, 25, 55, 70))


def test_without_run_ahead_iterations_follow_each_other() -> None:
    assert run_gemm(100, 1, 10, 30, 5).end_ps == 100 * 55 + 15


def test_with_run_ahead_the_slower_engine_sets_the_pace() -> None:
    assert run_gemm(100, 3, 10, 30, 5).end_ps == 25 + 100 * 30 + 15
    assert run_gemm(100, 3, 20, 30, 5).end_ps == 40 * 100 + 5 + 30 + 25


@pytest.mark.adr("0007-D3")
def test_a_long_latency_is_paid_once_per_num_stages_iterations() -> None:
    # Three iterations in flight, each 1000 ps of latency after its loads: 3 per (20 + 1000 + 30).
    trip = 3 * 1000
    end = run_gemm(trip, 3, 10, 30, 1000).end_ps
    assert abs(end - trip // 3 * 1050) < 2 * 1050


@pytest.mark.adr("0007-D3")
@given(
    trip=st.integers(0, 50),
    stages=st.integers(1, 6),
    load=st.integers(0, 100),
    gemm=st.integers(0, 100),
    latency=st.integers(0, 300),
)
def test_more_stages_are_never_slower(
    trip: int, stages: int, load: int, gemm: int, latency: int
) -> None:
    fewer = run_gemm(trip, stages, load, gemm, latency).end_ps
    assert run_gemm(trip, stages + 1, load, gemm, latency).end_ps <= fewer


def test_a_loop_of_a_billion_iterations_is_found_steady() -> None:
    assert run_gemm(10**9, 3, 10, 30, 5).end_ps == 25 + 10**9 * 30 + 15


@pytest.mark.adr("0007-D7")
@examples(40)
@given(seed=st.integers(0, 1 << 32), count=st.integers(2, 4))
def test_programs_side_by_side_are_timed_as_the_event_by_event_schedule_times_them(
    seed: int, count: int
) -> None:
    program = RandomProgram(seed, max_trip=5)
    turns = side_by_side(program.plan, program.times, count)
    assert run_pipeline(turns.plan, turns.times) == run_reference(turns.plan, turns.times)


@pytest.mark.adr("0007-D7")
@examples(60)
@given(seed=st.integers(0, 1 << 32), count=st.integers(1, 6))
def test_taking_turns_is_no_better_than_full_queues_or_nobody_waiting(
    seed: int, count: int
) -> None:
    program = RandomProgram(seed, max_trip=5)
    alone = run_pipeline(program.plan, program.times)
    interval = interval_in_turns_ps(side_by_side(program.plan, program.times, count))
    assert interval >= alone.end_ps // count
    assert interval_in_turns_ps(side_by_side(program.plan, program.times, 1)) == alone.end_ps


@pytest.mark.adr("0007-D7")
def test_in_turns_a_loop_that_waits_for_its_loads_keeps_other_programs_busy() -> None:
    # Each of 8 iterations: a load of 10 that is there 300 later, then 5 of math.
    body = (QueueStep(0, Queue.DMA_IN, (), (0,)), QueueStep(1, Queue.MATH, (0, 1), (2,)))
    loop = LoopNode(0, 8, 1, body, range(2), ((),), (1,), ((2,),), (3,), ())
    plan = ProgramPlan((loop,), (None,) * 2, 4)  # type: ignore[arg-type]
    times = SiteTimes((10, 5), ((), ()), (300, 0))
    assert run_pipeline(plan, times).end_ps == 8 * 315
    # One behind the other, the next program's first load waits behind the last one of the first.
    assert interval_ps(plan, times, 16) == 7 * 315 + 10
    # In turns the last of 16 loads is there at 160 + 300; its program's math ends 5 later.
    assert interval_in_turns_ps(side_by_side(plan, times, 16)) == -(-8 * 465 // 16)
