"""When blocks begin on multiprocessors."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import example, given
from hypothesis import strategies as st

from kernbench import RuntimeContext
from kernbench.kernel_time.launch import multiprocessors, residency
from kernbench.kernel_time.launch.multiprocessors import BlockTimes, place_in_order
from kernbench.kernel_time.launch.residency import place_blocks


def one_by_one(
    kinds: list[int], block_times: BlockTimes, num_pes: int, room: int
) -> tuple[list[int], list[int], int]:
    """Return when and where blocks begin, and when the last one ends (docs/model/kernels.md).

    Where a block needs nothing of a resource, it does not wait for it (docs/model/kernels.md).
    """
    free, running = [0] * num_pes, [[0] * room for _ in range(num_pes)]
    served = [0] * block_times.shared_ps.shape[1]
    starts, pes, ends = [], [], [0]
    for kind in kinds:
        pe = min(range(num_pes), key=lambda item: (free[item], item))
        start = free[pe]
        end = start + int(block_times.duration_ps[kind])
        for index, entry in enumerate(block_times.shared_ps[kind].tolist()):
            served[index] = max(served[index], start) + entry
            end = max(end, served[index]) if entry else end
        running[pe] = [*running[pe][1:], end]
        free[pe] = max(start + int(block_times.own_ps[kind]), running[pe][0])
        starts.append(start)
        pes.append(pe)
        ends.append(end)
    return starts, pes, max(ends)


def times(own: int, shared: list[int], duration: int) -> BlockTimes:
    return BlockTimes(np.array([own]), np.array([shared]), np.array([duration]))


# By hand: four multiprocessors, room for three blocks on each, which need 10 ps of an engine there
# and take 100 ps: all of the first twelve begin within 20 ps, the next as the first end.
@pytest.mark.adr("0136-D5")
@pytest.mark.parametrize(
    ("blocks", "shared", "expected"),
    [
        (4, [0, 0], 100), (8, [0, 0], 110), (12, [0, 0], 120), (16, [0, 0], 200),
        # HBM serves sixteen of them in 16 * 20 ps, whoever waits; the cache meanwhile.
        (16, [20, 5], 320), (16, [20, 20], 320),
    ],
)  # fmt: skip
def test_all_blocks_that_fit_begin_together(blocks: int, shared: list[int], expected: int) -> None:
    owner = np.zeros(blocks, dtype=np.int64)
    placed = place_blocks(owner, times(10, shared, 100), num_pes=4, room=3)
    assert placed.makespan_ps == expected
    assert placed.first_start_ps.tolist() == [0]


# HBM serves the first of two blocks for 100 ps; what is between them ends at once and makes room.
@pytest.mark.parametrize("num_blocks", [3, 96])
def test_blocks_without_work_wait_for_nothing(num_blocks: int) -> None:
    owner = np.ones(num_blocks, dtype=np.int64)
    owner[[0, 2]] = 0
    block_times = BlockTimes(np.array([0, 0]), np.array([[100, 0], [0, 0]]), np.array([10, 0]))
    placed = place_blocks(owner, block_times, num_pes=2, room=1)
    assert placed.last_start_ps[0] == 0
    assert placed.makespan_ps == 200


@given(
    runs=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 12)), min_size=1, max_size=6),
    numbers=st.lists(st.tuples(*(st.integers(0, 50),) * 4), min_size=3, max_size=3),
    num_pes=st.integers(1, 5),
    room=st.integers(1, 4),
    few=st.sampled_from([0, 1 << 10]),
)
# A multiprocessor that began later has room again before the last one that was idle begins.
@example(
    runs=[(0, 3), (1, 1), (0, 1), (0, 1), (0, 3), (1, 4)],
    numbers=[(1, 0, 0, 1), (0, 0, 0, 1), (0, 0, 0, 0)],
    num_pes=4,
    room=2,
    few=0,
)
def test_runs_of_blocks_are_placed_as_single_ones(
    runs: list[tuple[int, int]], numbers: list[tuple[int, ...]], num_pes: int, room: int, few: int
) -> None:
    block_times = BlockTimes(
        own_ps=np.array([1 + own for own, *_ in numbers]),
        shared_ps=np.array([shared for *_, one, two in numbers for shared in [(one, two)]]),
        duration_ps=np.array([1 + own + more for own, more, *_ in numbers]),
    )
    kinds = [value for value, count in runs for _ in range(count)]
    expected = one_by_one(kinds, block_times, num_pes, room)
    with patch.object(multiprocessors, "_FEW_BLOCKS", few):
        starts, pes, makespan_ps = place_in_order(np.array(kinds), block_times, num_pes, room)
    assert (starts.tolist(), pes.tolist(), makespan_ps) == expected


@given(
    pattern=st.lists(st.integers(0, 2), min_size=1, max_size=7),
    times_of=st.lists(st.tuples(*(st.integers(0, 50),) * 4), min_size=3, max_size=3),
    sizes=st.tuples(st.integers(100, 2000), st.integers(0, 200)),
    num_pes=st.integers(1, 9),
    room=st.integers(1, 4),
)
def test_blocks_that_repeat_are_placed_as_single_ones(
    pattern: list[int],
    times_of: list[tuple[int, ...]],
    sizes: tuple[int, int],
    num_pes: int,
    room: int,
) -> None:
    block_times = BlockTimes(
        own_ps=np.array([1 + own for own, *_ in times_of]),
        shared_ps=np.array([two for *_, one, other in times_of for two in [(one, other)]]),
        duration_ps=np.array([1 + own + more for own, more, *_ in times_of]),
    )
    first, then = sizes
    # A pattern, and another that does not go on where it ends.
    kinds = np.concatenate((np.resize(pattern, first), np.resize(pattern[::-1], then)))
    expected = one_by_one(kinds.tolist(), block_times, num_pes, room)
    starts, pes, makespan_ps = place_in_order(kinds, block_times, num_pes, room)
    assert (starts.tolist(), pes.tolist(), makespan_ps) == expected


def test_what_repeats_is_placed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven kinds in turn that memory holds up, on eleven multiprocessors with three blocks each.

    Each begins as the thirty-third before it ends, so all is as it was after 7 x 33 blocks.
    """
    kind = np.arange(7)
    block_times = BlockTimes(
        np.full(7, 2), np.stack((10 + kind % 3, np.ones_like(kind)), axis=1), 50 + kind
    )
    batches: list[int] = []
    place = multiprocessors.Multiprocessors.place

    def counted(self: Any, *args: Any) -> int:
        batches.append(place(self, *args))
        return batches[-1]

    monkeypatch.setattr(multiprocessors.Multiprocessors, "place", counted)
    count = 1_000_003
    starts, _, makespan_ps = place_in_order(np.resize(np.arange(7), count), block_times, 11, 3)
    assert sum(batches) < 16 * 7 * 33
    expected, _, until = one_by_one(np.resize(np.arange(7), 5_000).tolist(), block_times, 11, 3)
    assert starts[:5_000].tolist() == expected
    assert (np.diff(starts) >= 0).all()
    assert makespan_ps > until * (count // 5_000) * 0.99


@given(values=st.lists(st.integers(0, 2), min_size=1, max_size=6), room=st.integers(1, 4))
def test_waves_of_equal_blocks_are_placed_as_single_ones(values: list[int], room: int) -> None:
    """Blocks that take no memory time: else those of a wave end one after another."""
    own, num_pes = np.array([7, 9, 4]), 5
    block_times = BlockTimes(own, np.zeros((3, 2), dtype=np.int64), own + 11)
    owners = np.repeat(values, num_pes).tolist()
    _, _, makespan_ps = one_by_one(owners, block_times, num_pes, room)
    in_step = residency._in_step(values, [num_pes] * len(values), block_times, num_pes, room)
    assert in_step.makespan_ps == makespan_ps


@given(
    owners=st.lists(st.integers(-1, 3), min_size=1, max_size=60),
    kinds=st.lists(st.integers(0, 1), min_size=4, max_size=4),
    room=st.integers(1, 3),
)
def test_segments_that_take_equally_long_are_placed_together(
    owners: list[int], kinds: list[int], room: int
) -> None:
    """Blocks of different segments follow each other, and each segment has its own first one."""
    own, shared, duration = np.array([7, 9]), np.array([[2, 3], [4, 1]]), np.array([20, 40])
    block_times = BlockTimes(own[kinds], shared[kinds], duration[kinds])
    # A block of none: else equal ones may be placed in step.
    placed = place_blocks(np.array([*owners, -1]), block_times, num_pes=3, room=room)
    present = [owner for owner in owners if owner >= 0]
    starts, pes, makespan_ps = one_by_one(present, block_times, 3, room)
    assert placed.makespan_ps == makespan_ps
    by_segment: dict[int, list[int]] = {}
    for block, item in enumerate(present):
        by_segment.setdefault(item, []).append(block)
    for name, blocks in by_segment.items():
        assert placed.first_start_ps[name] == starts[blocks[0]]
        assert placed.last_start_ps[name] == starts[blocks[-1]]
        assert placed.first_pe[name] == pes[blocks[0]]


@triton.jit
def small_products(a, b, out, K, M: tl.constexpr, B: tl.constexpr):
    m, k = tl.arange(0, M), tl.arange(0, B)
    row = tl.program_id(0) * M
    total = tl.zeros((M, M), tl.float32)
    for at in range(0, K, B):
        x = tl.load(a + (row + m)[:, None] * K + at + k[None, :])
        total = tl.dot(x, tl.load(b + (at + k)[:, None] * M + m[None, :]), total)
    tl.store(out + (row + m)[:, None] * M + m[None, :], total)


@pytest.mark.adr("0136-D5")
def test_twice_as_many_blocks_take_as_long_where_latency_decides() -> None:
    def time_ms(blocks: int) -> float:
        with RuntimeContext(machine="h100-sxm", data=False) as torch:
            a = torch.empty(blocks * 16, 4096, dtype=torch.float16)
            b = torch.empty(4096, 16, dtype=torch.float16)
            out = torch.empty(blocks * 16, 16)
            value: Any = triton.testing.do_bench(
                lambda: small_products[(blocks,)](a, b, out, 4096, 16, 64, num_warps=1)
            )
            return float(value)

    # 132 multiprocessors hold two each at the same time; of 65 they hold no more than 32.
    one, two = time_ms(132), time_ms(264)
    assert two < 1.2 * one
    assert time_ms(132 * 65) > 3 * one
