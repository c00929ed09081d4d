"""Kernels that are timed a few commands at a time, held to the schedule of whole launches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.commands import (
    UNKNOWN_LINE,
    Atomic,
    Command,
    DmaRead,
    DmaWrite,
    KernelTrace,
    Loop,
    Predicate,
    Splat,
    Tile,
)
from kernbench.dtypes import float16
from kernbench.hardware import load_machine
from kernbench.kernel_time import Conditions, StrandCosts, TimedStrands, schedule_kernel
from kernbench.links import Network
from tests.kernel_time.kernel_traces import access, gemm_trace
from tests.tiers import examples

AHBM = load_machine("ahbm", 4)


def strands_on(start_ps: int = 0, network: Network | None = None) -> TimedStrands:
    costs = StrandCosts(AHBM.sip, Conditions())
    return TimedStrands(AHBM, 0, network or Network(AHBM), costs, start_ps)


def run_whole(trace: KernelTrace, parts: list[tuple[Command, ...]]) -> int:
    """Return when a launch of one group has ended that is timed part by part."""
    strands = strands_on()
    (group,) = trace.groups
    ids = group.program_ids
    strands.active = len(ids)
    strand = strands.begin(ids, np.arange(len(ids)), 0)
    for part in parts:
        strands.run(strand, part, trace.num_slots)
    return strand.end_ps


@pytest.mark.adr("0032-D2")
@examples(20)
@given(
    k=st.integers(1, 600),
    block=st.sampled_from([(16, 16, 16), (32, 64, 32), (64, 64, 64)]),
    tiles=st.sampled_from([(1, 1), (2, 3), (4, 8)]),
)
def test_in_parts_a_kernel_takes_as_long_as_in_one_piece(
    k: int, block: tuple[int, int, int], tiles: tuple[int, int]
) -> None:
    """All programs of one wave alike: the loop, then the rest of the text, command by command."""
    trace = gemm_trace(tiles[0] * block[0], tiles[1] * block[1], k, block)
    (group,) = trace.groups
    whole_ps = schedule_kernel(trace, AHBM, 0).duration_ps
    assert run_whole(trace, [group.body]) == whole_ps
    assert run_whole(trace, [(item,) for item in group.body]) == whole_ps


SIZE = 1 << 14


def read_of(param: int, slot: int, size: int = SIZE, **options: Any) -> DmaRead:
    source = access(param, (size,), float16, R=np.arange(size) * 2)
    tile = Tile(slot, (size,), float16)
    return DmaRead(tile, source, Predicate((size,)), None, UNKNOWN_LINE, **options)


def write_of(param: int, size: int = SIZE) -> DmaWrite:
    dest = access(param, (size,), float16, R=np.arange(size) * 2)
    return DmaWrite(dest, Splat(0.0, (size,), float16), Predicate((size,)), UNKNOWN_LINE)


def atomic_of(param: int, order: str) -> Atomic:
    where = access(param, (), float16)
    one = Splat(1.0, (), float16)
    return Atomic(
        None,
        "fadd",
        where,
        one,
        None,
        Predicate(()),
        UNKNOWN_LINE,
        order=order,  # type: ignore[arg-type]
    )


def one_program(strands: TimedStrands) -> Any:
    strands.active += 1
    return strands.begin(np.zeros(1, np.int64), np.zeros(1, np.int64), 0)


def start(strands: TimedStrands, strand: Any, command: Any) -> Any:
    issue = strands.issue(strand, command, 4)
    return strands.start(strand, issue, strands.earliest_ps(strand, issue))


@pytest.mark.adr("0032-D4")
def test_loads_from_two_neighbours_travel_at_the_same_time() -> None:
    strands = strands_on()
    strands.peers = {0: (1, 1), 1: (3, 3)}
    strand = one_program(strands)
    first, second = (start(strands, strand, read_of(param, param)) for param in (0, 1))
    wire_ps = AHBM.links[0].transfer_ps(2 * SIZE)
    # The port passes the second request on when the bytes of the first have a place to go.
    assert second.done_ps - first.done_ps < wire_ps / 2


@pytest.mark.adr("0032-D4")
def test_loads_over_one_link_follow_each_other() -> None:
    strands = strands_on()
    strands.peers = {0: (1, 1)}
    strand = one_program(strands)
    first, second = (start(strands, strand, read_of(0, slot)) for slot in (0, 1))
    assert second.done_ps - first.done_ps == AHBM.links[0].transfer_ps(2 * SIZE)


@pytest.mark.adr("0032-D4")
@pytest.mark.parametrize("order", ["relaxed", "release"])
def test_a_release_waits_until_what_was_written_is_there(order: str) -> None:
    strands = strands_on()
    strands.peers = {0: (1, 1), 1: (2, 2)}
    strand = one_program(strands)
    strands.begin_operation(strand)
    stored = start(strands, strand, write_of(1))
    strands.begin_operation(strand)
    atomic = atomic_of(0, order)
    issue = strands.issue(strand, atomic, 4)
    begins_ps = strands.earliest_ps(strand, issue)
    assert (begins_ps >= stored.done_ps) == (order == "release")


@pytest.mark.adr("0032-D4")
def test_an_acquire_holds_up_what_follows() -> None:
    ends = {}
    for order in ("relaxed", "acquire"):
        strands = strands_on()
        strands.peers = {0: (1, 1)}
        strand = one_program(strands)
        strands.begin_operation(strand)
        done_ps = start(strands, strand, atomic_of(0, order)).done_ps
        strands.end_operation(strand)
        ends[order] = strand.floor_ps >= done_ps
    assert ends == {"relaxed": False, "acquire": True}


@pytest.mark.adr("0032-D4")
def test_loads_of_a_loop_run_ahead_over_the_link() -> None:
    """With stages the loads of later iterations are on their way while one is worked on."""
    times = {}
    for stages in (1, 3):
        strands = strands_on()
        strands.peers = {0: (1, 1)}
        strand = one_program(strands)
        loop = Loop(0, 8, (read_of(0, 0, 256), write_of(1, 256)), (), stages, UNKNOWN_LINE)
        steps = strands.far_loops(strand, loop, 4)
        issued = list(steps)
        assert issued == sorted(issued)
        assert len(issued) == 8
        times[stages] = strand.end_ps
    assert times[3] < times[1] / 2


def test_programs_of_two_strands_take_turns_on_a_pe() -> None:
    alone, shared = strands_on(), strands_on()
    end_ps = []
    for strands, count in ((alone, 1), (shared, 2)):
        parts = [one_program(strands) for _ in range(count)]
        for strand in parts:
            start(strands, strand, read_of(0, 0))
        end_ps.append(max(strand.end_ps for strand in parts))
    assert end_ps[1] > end_ps[0]
