"""Programs that differ in trip counts: those put on a line against the run of each."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernbench.commands import (
    PROGRAM,
    UNKNOWN_LINE,
    Access,
    DmaRead,
    DmaWrite,
    KernelTrace,
    Loop,
    Math,
    MathClass,
    Predicate,
    ProgramGroup,
    Separable,
    SourceLine,
    Tile,
    axis_dim,
    by_path,
    loop_dim,
)
from kernbench.dtypes import float16, float32
from kernbench.hardware import load_machine
from kernbench.kernel_time import Conditions, schedule_kernel
from kernbench.kernel_time.costs.command_costs import ProgramCosts
from kernbench.kernel_time.launch.paces import Paces, PeTiming
from kernbench.kernel_time.program.pipeline import SiteTimes
from kernbench.kernel_time.program.queues import Cost, Queue
from kernbench.kernel_time.program.timed_plan import LoopNode, Node, ProgramPlan
from tests.kernel_time.kernel_traces import trace_of
from tests.kernel_time.program.test_pipeline import RandomProgram
from tests.tiers import examples

GPU = load_machine("a100-sxm-80g")
AHBM = load_machine("ahbm")


class EvenProgram(RandomProgram):
    """A random program whose commands cost the same in every iteration."""

    def table(self, loops: dict[int, int], chosen: tuple[int, ...]) -> Cost:
        return super().table(loops, ())

    def paces(self, timing: PeTiming) -> Paces:
        queues: dict[int, Queue] = {}
        _queues(self.plan.nodes, queues)
        sites = tuple(SimpleNamespace(index=i, queue=queues[i]) for i in range(len(self.costs)))
        plan = ProgramPlan(self.plan.nodes, cast(Any, sites), self.num_slots)
        times = SiteTimes(tuple(self.costs), ((),) * len(self.costs), tuple(self.latency))
        return Paces(plan, times, timing)

    def program(self, trips: dict[int, int]) -> tuple[dict[int, int], ProgramCosts]:
        """Return trip counts with the costs that a program of them has."""
        runs: dict[int, int] = {}
        _runs(self.plan.nodes, trips, 1, runs)
        busy = tuple(cast(int, cost) * runs[site] for site, cost in enumerate(self.costs))
        return trips, cast(ProgramCosts, SimpleNamespace(busy_ps=busy))


def _queues(nodes: tuple[Node, ...], queues: dict[int, Queue]) -> None:
    for node in nodes:
        if isinstance(node, LoopNode):
            _queues(node.body, queues)
        else:
            queues[node.site] = node.queue


def _runs(
    nodes: tuple[Node, ...], trips: dict[int, int], count: int, numbers: dict[int, int]
) -> None:
    for node in nodes:
        if isinstance(node, LoopNode):
            _runs(node.body, trips, count * trips.get(node.loop_id, node.trip_count), numbers)
        else:
            numbers[node.site] = count


@examples(10)
@given(
    seed=st.integers(0, 1 << 32),
    paths=st.integers(1, 40),
    resident=st.integers(1, 3),
    steps=st.lists(st.integers(-3, 4), min_size=12, max_size=12),
)
# The longest path goes around a loop once whose iterations repeat themselves by four.
@example(seed=98022, paths=23, resident=1, steps=[1, -2, *[0] * 10])
# The last paths go around a loop too seldom for it to become steady.
@example(seed=2865588117, paths=26, resident=1, steps=[1, -2, 3, 2, 0, 2, -1, -1, 3, -1, 1, -1])
# So does the last one but eight.
@example(seed=3593748848, paths=36, resident=1, steps=[-1, -3, 1, 0, -2, 1, -3, 1, -2, -1, -1, -3])
def test_programs_put_on_a_line_are_timed_as_their_runs_are(
    seed: int, paths: int, resident: int, steps: list[int]
) -> None:
    program = EvenProgram(seed, max_trip=4)
    loops = [node.loop_id for node in program.plan.nodes if isinstance(node, LoopNode)]
    # From path to path every loop has some more or some fewer iterations.
    shared = dict(zip(loops, steps, strict=False))
    vectors = [
        {
            loop: 1 + (step * path if step >= 0 else -step * (paths - 1 - path))
            for loop, step in shared.items()
        }
        for path in range(paths)
    ]
    paces = program.paces(PeTiming(resident, 100))
    programs = [program.program(trips) for trips in vectors]
    for item, result in zip(programs, paces.of(programs), strict=True):
        run = paces.run(*item)
        assert result.pipeline == run.pipeline
        assert (result.interval_ps is None) == (run.interval_ps is None)
        assert abs((result.interval_ps or 0) - (run.interval_ps or 0)) <= 1


def ragged_launch(
    programs: int, per_path: int, length: int, ragged: bool, shares: bool
) -> KernelTrace:
    """Return loads and math in a loop that program p goes around 1 + p // per_path times."""
    trips = 1 + np.arange(programs) // per_path
    most, dim, axis = int(trips.max()), loop_dim(0), axis_dim(0)
    lane = 2 * np.arange(length)
    moved = 2 * length * np.arange(most)
    base = np.arange(programs) % per_path if shares else np.arange(programs)
    terms: dict[tuple[int, ...], Any] = {(PROGRAM,): base * (1 << 20), (dim,): moved, (axis,): lane}
    mask = Predicate((length,))
    if ragged:
        # Every third iteration of the loop loads half of the tile.
        held = (np.arange(most) % 3 < 2)[:, None] | (np.arange(length) < length // 2)
        mask = Predicate((length,), {(dim, axis): held})
    tile, summed = Tile(0, (length,), float16), Tile(1, (length,), float32)
    offset = Separable((length,), 0, terms)
    load = DmaRead(tile, Access(0, offset, float16), mask, None, UNKNOWN_LINE)
    powers = Math(summed, "math.exp", (tile,), MathClass.TRANSCENDENTAL, UNKNOWN_LINE)
    rows = Separable((length,), 0, {(PROGRAM,): np.arange(programs) * 4096, (axis,): 2 * lane})
    store = DmaWrite(Access(1, rows, float32), summed, Predicate((length,)), UNKNOWN_LINE)
    # By their place in the text, loops of different groups are known to be the same one.
    line = SourceLine("kernel.py", 1)
    body = (Loop(0, most, (load, powers), (), 2, line), store)
    trace = trace_of((list(range(programs)), body))
    return dataclasses.replace(
        trace, groups=(ProgramGroup(np.arange(programs), body, ((0, trips),)),)
    )


@pytest.mark.parametrize("machine", [AHBM, GPU], ids=["ahbm", "a100"])
@examples(8)
@given(
    programs=st.integers(1, 150),
    per_path=st.sampled_from([1, 2, 7, 40]),
    length=st.sampled_from([64, 512, 4096]),
    ragged=st.booleans(),
    shares=st.booleans(),
)
def test_a_group_is_timed_as_its_paths_are(
    machine: Any, programs: int, per_path: int, length: int, ragged: bool, shares: bool
) -> None:
    whole = ragged_launch(programs, per_path, length, ragged, shares)
    apart = by_path(whole)
    assert len(apart.groups) == -(-programs // per_path)
    one, other = (schedule_kernel(item, machine, 0, Conditions()) for item in (whole, apart))
    # An interval may be off by 1 ps, for every program that a PE runs.
    assert one.duration_ps == pytest.approx(other.duration_ps, rel=1e-6, abs=programs)
    assert (one.flops, one.hbm_bytes) == (other.flops, other.hbm_bytes)
    assert one.engine_busy_ps == other.engine_busy_ps
    mine, others = one.make_rows(), other.make_rows()
    for name in ("kind", "program_first", "program_count", "count", "busy_ps", "bytes"):
        by_program = [
            np.lexsort((rows["kind"].astype(str), rows["count"], rows["program_first"]))
            for rows in (mine, others)
        ]
        assert mine[name][by_program[0]].tolist() == others[name][by_program[1]].tolist(), name
