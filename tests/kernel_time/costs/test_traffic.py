"""What programs move together, against the bursts under every address written out."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
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
    Separable,
    Tile,
    access_of,
    first_body,
    loop_dim,
)
from kernbench.dtypes import float16
from kernbench.hardware import load_machine
from kernbench.kernel_time import Conditions, ThreadBlock, build_waves, schedule_kernel
from tests.kernel_time.kernel_traces import ROW, access, machine_with, trace_of
from tests.tiers import examples

BURST, PES = 64, 32
"""Of ahbm, whose cache takes what these launches move."""
GROUPS = PES


def channels_last(
    pictures: int, pixels: int, width: int, *, reads: bool, writes: bool
) -> tuple[KernelTrace, np.ndarray]:
    """Return programs that each move ``width`` channels of all pixels of a picture.

    The groups of a pixel follow each other. Also returns all addresses, by program.
    """
    pitch = GROUPS * width * float16.itemsize
    programs = np.arange(pictures * GROUPS)
    start = programs // GROUPS * pixels * pitch + programs % GROUPS * width * float16.itemsize
    down, across = pitch * np.arange(pixels), float16.itemsize * np.arange(width)
    shape, everywhere = (pixels, width), Predicate((pixels, width))
    tile = Tile(0, shape, float16)
    read, write = (access(param, shape, float16, P=start, R=down, C=across) for param in range(2))
    body: tuple[Command, ...] = (
        *([DmaRead(tile, read, everywhere, None, UNKNOWN_LINE)] if reads else []),
        *([DmaWrite(write, tile, everywhere, UNKNOWN_LINE)] if writes else []),
    )
    result = start[:, None, None] + down[:, None] + across
    return trace_of((programs.tolist(), body)), result.reshape(len(programs), -1)


def bytes_in_bursts(addresses: np.ndarray) -> int:
    """Return the size of all bursts that hold an element at one of the addresses."""
    return BURST * len(np.unique(addresses // BURST))


sizes = given(
    pictures=st.integers(1, 3),
    pixels=st.integers(1, 9),
    # At most a burst: from there on a program has whole bursts of its own.
    width=st.integers(1, BURST // float16.itemsize),
)


@examples(40)
@sizes
def test_programs_of_a_wave_load_a_burst_once_that_each_uses_a_part_of(
    pictures: int, pixels: int, width: int
) -> None:
    trace, addresses = channels_last(pictures, pixels, width, reads=True, writes=False)
    # A program per group of channels: all bytes, and no burst twice.
    assert bytes_in_bursts(addresses) == pictures * pixels * GROUPS * width * float16.itemsize
    assert schedule_kernel(trace, machine_with(), 0).hbm_bytes == bytes_in_bursts(addresses)


@examples(40)
@sizes
def test_a_written_back_cache_gathers_what_programs_store_of_a_burst(
    pictures: int, pixels: int, width: int
) -> None:
    trace, addresses = channels_last(pictures, pixels, width, reads=False, writes=True)
    through, back = (
        schedule_kernel(trace, machine_with(cache__write_back=flag), 0).hbm_bytes
        for flag in (False, True)
    )
    assert back == bytes_in_bursts(addresses)
    assert through == sum(BURST * pixels for _ in addresses)


def test_each_program_asks_the_cache_for_its_bursts() -> None:
    """Neighbours share what HBM moves, and none of what crosses the cache."""
    slow = {"cube__hbm_bandwidth_gbps": 1e6, "cache__bandwidth_gbps": 100, "front_end_us": 0}
    machine = machine_with(**slow, cube__hbm_latency_ns=0, cache__latency_ns=0)
    narrow, wide = (
        schedule_kernel(channels_last(8, 4096, number, reads=True, writes=False)[0], machine, 0)
        for number in (2, 32)
    )
    assert wide.hbm_bytes == 16 * narrow.hbm_bytes
    # What HBM brings crosses it twice: once in, which neighbours share, and once out.
    bursts_ps = 8 * GROUPS * 4096 * BURST * 1000 // 100
    assert wide.duration_ps == pytest.approx(2 * bursts_ps, rel=0.02)
    assert narrow.duration_ps == pytest.approx((1 + 1 / 16) * bursts_ps, rel=0.02)


@examples(40)
@given(
    programs=st.integers(1, PES),
    elements=st.sampled_from([32, 64, 256]),
    shifts=st.lists(st.integers(0, 300), min_size=1, max_size=4),
    every=st.integers(1, 3),
    is_looped=st.booleans(),
)
def test_loads_of_the_same_bursts_move_them_once(
    programs: int, elements: int, shifts: list[int], every: int, is_looped: bool
) -> None:
    """Neighbours of each element, of which a mask may hold one in two or three."""
    at = float16.itemsize * elements * np.arange(programs)
    across = float16.itemsize * np.arange(elements)
    body: list[Command] = []
    for slot, shift in enumerate(shifts):
        held = np.arange(elements) % every == 0
        mask = Predicate((elements,), {(ROW,): held} if every > 1 else {})
        terms = {"P": at + float16.itemsize * shift, "R": across}
        source = access(0, (elements,), float16, **terms)
        body.append(DmaRead(Tile(slot, (elements,), float16), source, mask, None, UNKNOWN_LINE))
    if is_looped:
        body = [Loop(0, 3, tuple(body), (), 1, UNKNOWN_LINE)]
    template = schedule_kernel(trace_of((list(range(programs)), tuple(body))), machine_with(), 0)
    by_load = [
        np.unique((at[:, None] + float16.itemsize * shift + across[::every]) // BURST)
        for shift in shifts
    ]
    once = len(np.unique(np.concatenate(by_load)))
    alone = [
        schedule_kernel(trace_of((list(range(programs)), (item,))), machine_with(), 0).hbm_bytes
        for item in (body[0].body if isinstance(body[0], Loop) else body)
    ]
    expected = sum(alone) * once / sum(map(len, by_load)) * (3 if is_looped else 1)
    assert template.hbm_bytes == pytest.approx(expected, rel=1e-5, abs=1)
    if not any(shift * float16.itemsize % BURST for shift in shifts) and not is_looped:
        # Tiles that begin with a burst: what is moved is what lies under all of them.
        assert template.hbm_bytes == BURST * once


@pytest.mark.parametrize("capacity_mib", [1, 64])
def test_a_later_loop_finds_what_programs_of_a_wave_have_left_in_the_cache(
    capacity_mib: int,
) -> None:
    """A norm of long rows reads them for their sum, and again for its results."""
    rows, blocks, width = 4 * PES, 32, 2048
    row_bytes = float16.itemsize * blocks * width
    body: list[Command] = []
    for loop in range(2):
        terms: dict[tuple[int, ...], np.ndarray] = {
            (PROGRAM,): row_bytes * np.arange(rows),
            (loop_dim(loop),): float16.itemsize * width * np.arange(blocks),
            (ROW,): float16.itemsize * np.arange(width),
        }
        source = Access(0, Separable((width,), 0, terms), float16)
        load = DmaRead(
            Tile(loop, (width,), float16), source, Predicate((width,)), None, UNKNOWN_LINE
        )
        body.append(Loop(loop, blocks, (load,), (), 2, UNKNOWN_LINE))
    machine = machine_with(cache__capacity_mib=capacity_mib)
    hbm_bytes = schedule_kernel(trace_of((list(range(rows)), tuple(body))), machine, 0).hbm_bytes
    # A wave of 32 rows is 4 MiB.
    assert hbm_bytes == rows * row_bytes * (1 if capacity_mib > 4 else 2)


def test_schedules_keep_at_most_a_number_for_each_program() -> None:
    machine = load_machine("rtx-4090", 1)
    trace, _ = channels_last(64, 3, 2, reads=True, writes=True)
    conditions = Conditions(
        block=ThreadBlock(num_warps=1, registers=32, shared_bytes=0, architecture=89)
    )
    waves = build_waves(trace, machine.sip, conditions)
    for group in waves.groups:
        for site in group.plan.sites:
            assert isinstance(site.command, DmaRead | DmaWrite)
            dims = access_of(site.command).offset.dims
            assert dims == tuple(dim for dim in dims if dim != PROGRAM)
        assert group.segments.first_program.size < trace.num_programs // 32
    # What waits in the device's queue differs in its front end alone.
    queued = replace(conditions, queued=True)
    assert build_waves(trace, machine.sip, queued) is waves


def test_loops_keep_their_terms_in_schedules() -> None:
    steps, tile = 8 * np.arange(4), Tile(0, (4,), float16)
    inside = access(0, (4,), float16, P=64 * np.arange(8), K=steps, R=2 * np.arange(4))
    read = DmaRead(tile, inside, Predicate((4,)), None, UNKNOWN_LINE)
    loop = Loop(0, 4, (read,), (), 1, UNKNOWN_LINE)
    (command,) = first_body(trace_of((list(range(8)), (loop,))).groups[0])
    assert isinstance(command, Loop)
    (kept,) = command.body
    assert isinstance(kept, DmaRead)
    assert set(kept.source.offset.terms) == {(loop_dim(0),), (ROW,)}
    assert np.array_equal(kept.source.offset.terms[loop_dim(0),], steps)
