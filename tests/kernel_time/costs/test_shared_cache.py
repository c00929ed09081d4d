"""The shared cache, against what its machine file says."""

from fractions import Fraction

import pytest

from kernbench.hardware import load_machine
from kernbench.kernel_time.costs.shared_cache import SharedCache

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
