"""What the cache holds, against a list of single bytes in the order of their last use."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.hardware import CacheSpec
from kernbench.kernel_time import (
    CacheContents,
    CacheSteps,
    KernelOperand,
    KernelOperands,
    cached_shares,
    kept_share,
    kernel_operands,
    meet_operands,
)
from tests.kernel_time.kernel_traces import gemm_trace

MIB = 1 << 20


def cache_of(held_bytes: int) -> CacheSpec:
    return CacheSpec(
        capacity_mib=Fraction(held_bytes, MIB), bandwidth_gbps=1, latency_ns=1, retained_share=1
    )


RANGES = st.tuples(st.integers(0, 60), st.integers(1, 30)).map(lambda r: (r[0], r[0] + r[1]))


@pytest.mark.adr("0048-D2")
@given(touches=st.lists(RANGES, max_size=8), asked=RANGES, held=st.integers(1, 80))
def test_shares_lie_between_those_of_the_least_and_the_most_reuse_distance_of_every_byte(
    touches: list[tuple[int, int]], asked: tuple[int, int], held: int
) -> None:
    cache = cache_of(held)
    contents = CacheContents(cache)
    used: dict[int, int] = {}
    for when, (start, end) in enumerate(touches):
        contents.touch(start, end)
        used.update(dict.fromkeys(range(start, end), when))
    low = high = Fraction(0)
    for byte in range(*asked):
        if byte in used:
            newer = sum(when > used[byte] for when in used.values())
            together = sum(when == used[byte] for when in used.values())
            low += kept_share(newer + together, cache)
            high += kept_share(newer + 1, cache)
    length = asked[1] - asked[0]
    assert low / length - Fraction(1, 16) < contents.share(*asked) <= high / length


def test_the_latest_of_many_ranges_are_remembered_where_one_covers_others() -> None:
    contents = CacheContents(cache_of(1 << 20))
    for number in range(40):
        contents.touch(number * 100, number * 100 + 50)
    contents.touch(3800, 3950)
    assert contents.share(3800, 3950) == 1
    assert contents.share(3700, 3750) == 1
    assert contents.share(0, 50) == 0
    for number in range(40):
        contents.touch(number * 100 + 20, number * 100 + 60)
    assert contents.share(3920, 3960) == 1


def test_a_sip_without_a_cache_holds_nothing() -> None:
    contents = CacheContents(None)
    contents.touch(0, 100)
    assert contents.share(0, 100) == 0


@given(sizes=st.lists(st.integers(1, 100), min_size=40, max_size=60))
def test_only_the_latest_ranges_are_remembered(sizes: list[int]) -> None:
    """So a launch costs the same after any number of others."""
    contents = CacheContents(cache_of(10**9))
    start = 0
    for size in sizes:
        contents.touch(start, start + size)
        start += size
    assert contents.share(0, sizes[0]) == 0
    assert contents.share(start - sizes[-1], start) == 1


@pytest.mark.adr("0048-D2")
def test_what_a_kernel_leaves_is_what_its_tiles_touched() -> None:
    """C = A @ B of 128x128 float16, 32 KiB each: the next kernel finds all three."""
    trace = gemm_trace(128, 128, 128)
    operands = kernel_operands(trace)
    # In the order in which they are used: the result last.
    assert [(operand.param, operand.low, operand.high, operand.size) for operand in operands] == [
        (param, 0, 1 << 15, 1 << 15) for param in (0, 1, 2)
    ]
    contents = CacheContents(cache_of(1 << 16))
    addresses = (0, 1 << 20, 2 << 20)
    assert cached_shares(operands, meet_operands(contents, operands, addresses)) == ()
    # C and B are 64 KiB, all that stays for sure; A makes it 96.
    assert contents.share(2 << 20, (2 << 20) + (1 << 15)) == 1
    again = cached_shares(operands, meet_operands(contents, operands, addresses))
    assert again == ((0, Fraction(1, 2)), (1, Fraction(1)))


def test_a_range_of_which_nothing_is_used_stays_as_it_was() -> None:
    kept, touched = (CacheContents(cache_of(1000)) for _ in range(2))
    for contents in (kept, touched):
        contents.touch(0, 600)
        if contents is touched:
            contents.touch(0, 600, 0)
            contents.touch(300, 300)
        contents.touch(1000, 1900)
        assert 0 < contents.share(0, 600) < 1
        contents.touch(100, 200)
    for span in ((0, 600), (100, 200), (1000, 1900)):
        assert kept.share(*span) == touched.share(*span)


KERNELS = (
    KernelOperands(
        [KernelOperand(0, 0, 40, 40, True, True), KernelOperand(1, 5, 30, 9, False, True)]
    ),
    KernelOperands(
        [KernelOperand(1, 0, 20, 20, True, True), KernelOperand(0, 0, 9, 70, True, False)]
    ),
)
STEPS = st.tuples(
    st.sets(st.integers(0, 2), min_size=1).map(sorted),  # by which SIPs
    st.one_of(
        st.tuples(st.none(), RANGES),
        st.tuples(st.sampled_from(KERNELS), st.tuples(st.integers(0, 60), st.integers(0, 60))),
    ),
)


@pytest.mark.adr("0048-D2")
@given(
    steps=st.lists(STEPS, max_size=30), held=st.integers(1, 200), most=st.sampled_from((1, 3, 99))
)
def test_sips_that_share_steps_hold_what_each_would_hold_alone(
    steps: list[tuple[list[int], tuple[KernelOperands | None, tuple[int, int]]]],
    held: int,
    most: int,
) -> None:
    bases, shared = (1 << 20, 2 << 20, 3 << 20), CacheSteps(most)
    first = CacheContents(cache_of(held), bases[0], shared)
    # The others come later, when the first may have been used.
    alike: list[CacheContents] = [first]
    alone = [CacheContents(cache_of(held), base) for base in bases]
    for sips, (operands, values) in steps:
        for sip in sips:
            while len(alike) <= sip:
                alike.append(CacheContents(cache_of(held), bases[len(alike)], shared))
            at = [bases[sip] + value for value in values]
            result: list[object] = []
            for contents in (alike[sip], alone[sip]):
                if operands is None:
                    contents.touch(*at)
                else:
                    result.append(meet_operands(contents, operands, at))
                result.append(contents.share(bases[sip], bases[sip] + 100))
            assert result[: len(result) // 2] == result[len(result) // 2 :]


def test_what_one_sip_has_done_is_a_look_up_for_others() -> None:
    steps = CacheSteps()
    sips = [CacheContents(cache_of(1000), base, steps) for base in (0, 1 << 20)]
    for base, contents in zip((0, 1 << 20), sips, strict=True):
        for start in (0, 100, 50, 0):
            contents.touch(base + start, base + start + 80)
    assert sips[0]._ranges is sips[1]._ranges
