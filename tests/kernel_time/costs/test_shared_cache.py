"""The shared cache, against what its machine file says."""

from fractions import Fraction
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.hardware import load_machine
from kernbench.kernel_time.costs.shared_cache import (
    SharedCache,
    kept_share,
    stay_for_launch,
    still_there,
)

GPU = load_machine("a100-sxm-80g").sip
HALF, ALL, NONE = Fraction(1, 2), Fraction(1), Fraction(0)


def test_a_load_crosses_the_cache_again_with_what_it_missed_and_a_store_does_not() -> None:
    assert GPU.cache is not None
    alone = Fraction(1000) / Fraction(GPU.cache.bandwidth_gbps)
    cache = SharedCache(GPU)
    assert cache.ps_per_byte(8, HALF, stores=False) == 8 * alone * Fraction(3, 2)
    assert cache.ps_per_byte(8, HALF, stores=True) == 8 * alone


@pytest.mark.parametrize("write_back", [False, True])
def test_only_a_store_that_is_written_back_later_does_not_wait_for_hbm(write_back: bool) -> None:
    assert GPU.cache is not None
    spec = GPU.cache.model_copy(update={"write_back": write_back})
    cache = SharedCache(GPU.model_copy(update={"cache": spec}))
    assert cache.waits_for_hbm(stores=False)
    waits = cache.waits_for_hbm(stores=True)
    assert waits is not write_back
    expected = spec.latency_ns if write_back else GPU.cube.hbm_latency_ns
    assert cache.latency_ns(ALL, waits) == expected
    assert cache.latency_ns(NONE, True) == spec.latency_ns


def test_without_a_cache_everything_comes_from_hbm() -> None:
    cache = SharedCache(GPU.model_copy(update={"cache": None}))
    assert cache.room is None
    assert cache.ps_per_byte(8, ALL, stores=False) == 0
    assert cache.waits_for_hbm(stores=True)
    assert cache.latency_ns(NONE, True) == GPU.cube.hbm_latency_ns


def test_half_of_the_capacity_stays_where_two_partitions_keep_a_copy() -> None:
    assert GPU.cache is not None
    assert GPU.cache.retained_share == HALF
    assert SharedCache(GPU).room == GPU.cache.capacity_mib * 2**19


def test_a_share_is_whole_up_to_what_the_cache_keeps_and_nothing_from_twice_that_on() -> None:
    assert GPU.cache is not None
    held = GPU.cache.held_bytes
    sizes = (1, held, held * 3 // 2, 2 * held, 100 * held)
    assert [kept_share(size, GPU.cache) for size in sizes] == [1, 1, HALF, 0, 0]
    assert [still_there(Fraction(size, held)) for size in sizes] == [1, 1, HALF, 0, 0]


def test_a_result_is_there_as_far_as_the_cache_holds_it() -> None:
    cache = SharedCache(GPU)
    assert cache.room is not None
    shares = [cache.result_share(size) for size in (1, cache.room, 2 * cache.room)]
    assert shares == [1, 1, HALF]
    assert SharedCache(GPU.model_copy(update={"cache": None})).result_share(1) == 0


def test_what_the_cache_held_before_is_not_missed() -> None:
    assert SharedCache(GPU).missed(HALF, Fraction(3, 4)) == Fraction(1, 8)
    assert SharedCache(GPU.model_copy(update={"cache": None})).missed(ALL, HALF) == 1


@given(
    sizes=st.lists(st.none() | st.integers(1, 20), max_size=8),
    room=st.integers(0, 60),
)
def test_the_smallest_operands_stay_and_as_many_as_fit(sizes: list[int | None], room: int) -> None:
    stay, left = stay_for_launch(room, sizes)
    kept = [size for size, stays in zip(sizes, stay, strict=True) if stays and size is not None]
    assert len(kept) == sum(stay)
    wanted = sorted(size for size in sizes if size is not None)
    # By running sums of the sorted sizes: the longest prefix that fits.
    assert sorted(kept) == [w for w, s in zip(wanted, accumulate(wanted), strict=True) if s <= room]
    assert left == room - sum(kept)


def test_operands_that_share_a_place_take_less_room() -> None:
    # Two sites of one table of 60 bytes take half of it each; a tensor of 50 comes first.
    assert stay_for_launch(130, [60, 50, 60], [30, 50, 30]) == ([True, True, False], 50)
    assert stay_for_launch(140, [60, 50, 60], [30, 50, 30]) == ([True, True, True], 30)
