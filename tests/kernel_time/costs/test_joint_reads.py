"""What programs of different trip counts read together, against sets of addresses."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernbench.commands import (
    PROGRAM,
    UNKNOWN_LINE,
    Access,
    Command,
    DmaRead,
    DmaWrite,
    KernelTrace,
    Loop,
    Predicate,
    ProgramGroup,
    Separable,
    SourceLine,
    Splat,
    Tile,
    axis_dim,
    by_path,
    loop_dim,
)
from kernbench.dtypes import float16
from kernbench.kernel_ir import evaluate
from kernbench.kernel_time import Conditions, schedule_kernel
from kernbench.kernel_time.costs.joint_reads import read_together, trips_differ
from tests.kernel_ir.cases import kernel
from tests.kernel_time.kernel_traces import gemm_trace, machine_with, only_gemm, trace_of
from tests.tiers import examples

ITEM = float16.itemsize
LINE = SourceLine("kernel.py", 7)


@dataclass(frozen=True)
class Site:
    """A load of ``rows`` rows of ``width`` elements, ``stride`` elements apart."""

    rows: int
    width: int
    stride: int
    starts: tuple[int, ...]
    """By program, in elements."""
    step: int
    """From one iteration to the next; 0 for a load that is in no loop."""

    def load(self, programs: np.ndarray, loop: int, most: int) -> DmaRead:
        terms: dict[tuple[int, ...], Any] = {
            (PROGRAM,): ITEM * np.array(self.starts)[programs],
            (axis_dim(0),): ITEM * self.stride * np.arange(self.rows),
            (axis_dim(1),): ITEM * np.arange(self.width),
        }
        if self.step:
            terms[(loop_dim(loop),)] = ITEM * self.step * np.arange(most)
        shape = (self.rows, self.width)
        access = Access(0, Separable(shape, 0, terms), float16)
        return DmaRead(Tile(0, shape, float16), access, Predicate(shape), None, UNKNOWN_LINE)

    def elements(self, program: int, trips: int) -> set[int]:
        return {
            self.starts[program] + self.step * k + self.stride * row + column
            for k in range(trips if self.step else 1)
            for row in range(self.rows)
            for column in range(self.width)
        }


def launch(trips: list[int], inside: list[Site], after: list[Site]) -> KernelTrace:
    """Return loads in a loop that programs go around so often, and loads after it."""
    groups = []
    for loop, programs in enumerate(
        (np.flatnonzero(np.array(trips) > 0), np.flatnonzero(np.array(trips) == 0))
    ):
        if not len(programs):
            continue
        counts = np.array(trips)[programs]
        body: tuple[Command, ...] = tuple(item.load(programs, loop, 1) for item in after)
        if counts.any():
            most = int(counts.max())
            loads = tuple(item.load(programs, loop, most) for item in inside)
            body = (Loop(loop, most, loads, (), 2, LINE), *body)
            groups.append(ProgramGroup(programs, body, ((loop, counts),)))
        else:
            groups.append(ProgramGroup(programs, body))
    return dataclasses.replace(trace_of((list(range(len(trips))), ())), groups=tuple(groups))


@st.composite
def launches(draw: st.DrawFn) -> tuple[list[int], list[Site], list[Site]]:
    trips = draw(st.lists(st.integers(0, 5), min_size=2, max_size=12))
    width = draw(st.integers(1, 3))
    stride = draw(st.sampled_from([width, 6 * width + 1]))
    rows = draw(st.integers(2, 4))
    by_rows = draw(st.booleans())
    step = draw(st.sampled_from([1, -1])) * (rows * stride if by_rows else width)

    def site(rows: int, step: int) -> Site:
        starts = draw(st.lists(st.integers(0, 8), min_size=len(trips), max_size=len(trips)))
        # Far from 0, as a tensor does not begin before itself.
        first = 40 * stride + (6 * width if step < 0 and not by_rows else 0)
        return Site(rows, width, stride, tuple(first + start * stride for start in starts), step)

    inside = [site(rows, step) for _ in range(draw(st.integers(1, 2)))]
    after = [site(2 * rows, 0) for _ in range(draw(st.integers(0, 1)))]
    return trips, inside, after


def overlap_in_part(boxes: list[set[int]], stride: int) -> bool:
    """Return whether some boxes share a part of their columns, and some a part of their rows.

    Rows begin where no box has a part of two; if it is nowhere, they do.
    """
    origins = 0
    for origin in range(stride):
        places = [[divmod(item - origin, stride) for item in box] for box in boxes]
        rows, columns = ([{place[side] for place in box} for box in places] for side in (0, 1))
        if any(
            len(down) * len(across) > len(box)
            for down, across, box in zip(rows, columns, boxes, strict=True)
        ):
            continue
        origins += 1
        if all(
            any(one & other and one != other for one, other in itertools.combinations(sides, 2))
            for sides in (rows, columns)
        ):
            return True
    return not origins


@examples(150)
@given(shape=launches(), num_pes=st.integers(1, 6))
# The last elements of a loop's rows are the first ones of the rows that are read after it.
@example(
    shape=([0, 1], [Site(2, 2, 13, (532, 532), -2)], [Site(4, 2, 13, (520, 520), 0)]), num_pes=1
)
# Rows that go on after a multiple of their distance, which is where others begin.
@example(
    shape=([1, 1, 2], [Site(2, 4, 25, (1024,) * 3, 4), Site(2, 4, 25, (1026,) * 3, 4)], []),
    num_pes=2,
)
def test_a_wave_reads_the_union_of_the_bytes_that_its_programs_read(
    shape: tuple[list[int], list[Site], list[Site]], num_pes: int
) -> None:
    trips, inside, after = shape
    trace = launch(*shape)
    if not any(trips):
        assert read_together(trace, num_pes, 0) is None
        return
    boxes = []
    waves: dict[int, set[int]] = {}
    for program, count in enumerate(trips):
        for item in [*(inside if count else []), *after]:
            elements = item.elements(program, count)
            boxes.append(elements)
            waves.setdefault(program // num_pes, set()).update(elements)
    apart = sum(map(len, boxes))
    whole = set().union(*waves.values())
    for room, expected in (
        (0, sum(map(len, waves.values()))),
        (ITEM * len(whole), len(whole)),
    ):
        together = read_together(trace, num_pes, room)
        assert together is not None
        if not together.shares:
            assert overlap_in_part(boxes, inside[0].stride)
            continue
        (share,) = set(together.shares.values())
        assert Fraction(*share) == Fraction(expected, apart)
        kept = room and len(whole) < apart
        assert together.room == (0 if kept else room)


def causal_attention(heads: int, blocks: int, split: bool) -> KernelTrace:
    """Return loads of keys 0 to b for block b: those before it in a loop, its own after that.

    ``split``: each number of iterations is a group of its own.
    """
    rows, width = 16, 32
    block = np.arange(heads * blocks) % blocks
    tile = rows * width
    first = tuple((np.arange(heads * blocks) - block).tolist())
    before = Site(rows, width, width, tuple(tile * item for item in first), tile)
    own = Site(rows, width, width, tuple(tile * index for index in range(heads * blocks)), 0)
    trace = launch(block.tolist(), [before], [own])
    return by_path(trace) if split else trace


@pytest.mark.parametrize("split", [False, True], ids=["whole", "by path"])
@pytest.mark.parametrize("blocks", [3, 8, 11])
def test_the_keys_of_a_causal_head_come_from_hbm_once_per_wave(blocks: int, split: bool) -> None:
    heads, num_pes, tile_bytes = 12, 8, 16 * 32 * ITEM
    machine = machine_with(
        num_cubes=1,
        pes_per_cube=num_pes,
        cache={
            "capacity_mib": 40,
            "bandwidth_gbps": 1000,
            "latency_ns": 100,
            # Nothing stays from one wave to the next.
            "retained_share": 1e-9,
        },
    )
    programs = range(heads * blocks)
    waves = [programs[start : start + num_pes] for start in programs[::num_pes]]
    tiles = sum(len({key for p in wave for key in range(p - p % blocks, p + 1)}) for wave in waves)
    kernel = schedule_kernel(causal_attention(heads, blocks, split), machine, 0, Conditions())
    assert kernel.hbm_bytes == tiles * tile_bytes
    # Without a cache nothing is shared.
    alone = schedule_kernel(
        causal_attention(heads, blocks, split), machine_with(cache=None), 0, Conditions()
    )
    assert alone.hbm_bytes == heads * blocks * (blocks + 1) // 2 * tile_bytes


def only_load(trace: KernelTrace) -> tuple[ProgramGroup, Loop, DmaRead]:
    """Return the one load of a launch, its loop and its group."""
    (group,) = trace.groups
    (loop,) = group.body
    assert isinstance(loop, Loop)
    (load,) = loop.body
    assert isinstance(load, DmaRead)
    return group, loop, load


def test_reads_that_are_no_boxes_and_launches_of_one_length_are_counted_as_ever() -> None:
    one_length = [gemm_trace(256, 256, 256), trace_of(([0, 2], only_gemm(64, 64, 64)), ([1], ()))]
    for trace in one_length:
        assert not trips_differ(trace)
        assert read_together(trace, 4, 1 << 20) is None
    trace = launch([1, 2, 3, 4], [Site(4, 8, 8, (0, 0, 0, 0), 32)], [])
    group, loop, load = only_load(trace)
    together = read_together(trace, 4, 0)
    assert together is not None
    assert together.shares == {load: Fraction(4, 1 + 2 + 3 + 4).as_integer_ratio()}
    offset = load.source.offset
    uneven = {**offset.terms, (loop_dim(0),): np.array([0, 1, 5, 2]) * 64}
    other = dataclasses.replace(load.source, offset=Separable(offset.shape, 0, uneven))
    body = (dataclasses.replace(loop, body=(dataclasses.replace(load, source=other),)),)
    changed = dataclasses.replace(trace, groups=(dataclasses.replace(group, body=body),))
    together = read_together(changed, 4, 1 << 20)
    assert together is not None
    assert (together.shares, together.room) == ({}, 1 << 20)


def test_programs_that_a_mask_switches_off_read_nothing() -> None:
    trace = launch([1, 2, 3, 4], [Site(4, 8, 8, (0, 0, 0, 0), 32)], [])
    group, loop, load = only_load(trace)
    shape = load.dst.shape
    mask = Predicate(shape, {(PROGRAM,): np.array([True, True, True, False])})
    store = DmaWrite(load.source, Splat(0.0, shape, float16), mask, UNKNOWN_LINE)
    body = (dataclasses.replace(loop, body=(dataclasses.replace(load, mask=mask), store)),)
    masked = dataclasses.replace(trace, groups=(dataclasses.replace(group, body=body),))
    together = read_together(masked, 4, 0)
    assert together is not None
    assert list(together.shares.values()) == [Fraction(3, 1 + 2 + 3).as_integer_ratio()]


def test_the_iterations_of_a_loop_that_is_cut_are_held_against_each_other() -> None:
    body = """\
    %one = arith.constant 1 : i32
    %zero = arith.constant 0 : i32
    %three = arith.constant 3 : i32
    %six = arith.constant 6 : i32
    %program = tt.get_program_id x : i32
    %first = arith.muli %program, %three : i32
    scf.for %i = %zero to %six step %one : i32 {
      %place = arith.addi %first, %i : i32
      %tile = arith.divsi %place, %three : i32
      %at = tt.addptr %x, %tile : !tt.ptr<f32>, i32
      %value = tt.load %at : !tt.ptr<f32>
      %is_first = arith.cmpi eq, %i, %zero : i32
      scf.if %is_first {
        tt.store %x, %value : !tt.ptr<f32>
      }
    }"""
    trace = evaluate(kernel(body), (8, 1, 1), {}, num_warps=4, num_stages=1)
    together = read_together(trace, 4, 0)
    assert together is not None
    # Of 48 reads, four programs at a time read four elements in each of six turns.
    assert set(together.shares.values()) == {Fraction(48, 48).as_integer_ratio()}
