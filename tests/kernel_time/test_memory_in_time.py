"""What the memory system and the clock add to a kernel, one mechanism at a time."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.errors import UsageError
from kernbench.kernel_time import Conditions, schedule_kernel
from kernbench.kernel_time.launch.waves import resident_programs
from kernbench.op_log import Template
from tests.kernel_time.kernel_traces import gemm_trace, machine_with, only_gemm, trace_of
from tests.kernel_time.launch.test_schedule import check_rows, copy_trace
from tests.tiers import examples


def scheduled(trace: Any, machine: Any, **conditions: Any) -> Template:
    return schedule_kernel(trace, machine, 0, Conditions(**conditions))


def test_an_engine_that_holds_half_of_its_peak_takes_twice_as_long() -> None:
    trace = trace_of(([0], only_gemm(256, 256, 256)))
    plain = {"clock_ghz": 1, "front_end_us": 0, "pe__gemm__fill_drain_cycles": 0}
    whole, half = (
        scheduled(trace, machine_with(**plain, pe__gemm__efficiency=share)).duration_ps
        for share in (1, 0.5)
    )
    assert half == 2 * whole


def test_only_short_runs_of_bytes_pay_for_dram_pages() -> None:
    slow = {"cube__hbm_page_bytes": 1024, "cube__hbm_short_run_efficiency": 0.5}
    base = {"cube__hbm_bandwidth_gbps": 20, "cube__hbm_latency_ns": 0}
    plain, paged = machine_with(**base), machine_with(**base, **slow)
    stream = copy_trace(256, 1 << 14)
    assert scheduled(stream, paged).duration_ps == scheduled(stream, plain).duration_ps
    rows = copy_trace(4096, 256)  # 512 bytes each: half of a page
    times = [scheduled(rows, item).duration_ps for item in (plain, paged)]
    assert times[1] > 1.5 * (times[0] - plain.sip.front_end_ps)


def test_loads_alone_reach_less_of_hbm_than_loads_beside_stores() -> None:
    base = {"cube__hbm_bandwidth_gbps": 20, "cube__hbm_latency_ns": 0}
    plain, slower = machine_with(**base), machine_with(**base, cube__hbm_load_efficiency=0.6)
    copy = copy_trace(1024, 1 << 16)
    (group,) = copy.groups
    loads = replace(copy, groups=(replace(group, body=group.body[:1]),))
    for machine in (plain, slower):
        # Half of what a copy moves is loaded: less than the share that loads alone reach.
        assert scheduled(copy, machine).duration_ps == scheduled(copy, plain).duration_ps
        bound = machine.sip.hbm_load_ps(1024 * 2 * (1 << 16))
        assert bound <= scheduled(loads, machine).duration_ps <= 1.05 * bound
    assert slower.sip.hbm_load_ps(600) == plain.sip.hbm_stream_ps(1000)


def test_a_store_ends_in_a_write_back_cache_but_hbm_still_has_to_keep_up() -> None:
    through, back = machine_with(), machine_with(cache__write_back=True)
    tile = gemm_trace(64, 64, 64)
    waits, goes_on = (scheduled(tile, item).duration_ps for item in (through, back))
    assert goes_on < waits
    stream = copy_trace(32 * 32, 1 << 16)
    template = scheduled(stream, back)
    assert template.duration_ps >= back.sip.hbm_stream_ps(template.hbm_bytes)
    assert template.hbm_bytes == scheduled(stream, through).hbm_bytes


@examples(30)
@given(share=st.fractions(0, 1, max_denominator=16))
def test_what_the_cache_holds_need_not_come_from_hbm(share: Fraction) -> None:
    trace, machine = copy_trace(256, 1 << 12), machine_with()
    cold, warm = (scheduled(trace, machine, cached=((0, item),)) for item in (0, share))
    moved = 256 * 2 * (1 << 12)
    assert warm.hbm_bytes == math.ceil(cold.hbm_bytes - moved * share)
    assert warm.duration_ps <= cold.duration_ps
    uncached = machine_with(cache=None)
    assert (
        scheduled(trace, uncached, cached=((0, share),)).hbm_bytes
        == scheduled(trace, uncached).hbm_bytes
    )


def test_an_impossible_share_of_a_tensor_in_the_cache_is_refused() -> None:
    with pytest.raises(UsageError, match="cached share of parameter 2 must be from 0 to 1"):
        Conditions(cached=((2, Fraction(3, 2)),))


def test_a_queued_kernel_pays_the_shorter_front_end() -> None:
    trace = trace_of(([0], only_gemm(64, 64, 64)))
    machine = machine_with(front_end_us=3, queued_front_end_us=1)
    first, next_one = (scheduled(trace, machine, queued=flag) for flag in (False, True))
    assert first.duration_ps - next_one.duration_ps == 2_000_000
    same = machine_with(front_end_us=3)
    assert scheduled(trace, same, queued=True).duration_ps == scheduled(trace, same).duration_ps


def test_registers_hold_no_loads_that_run_ahead() -> None:
    kib = 1024
    pe = {"pe__tcm_kib": 420, "pe__resident_programs": 16}
    pool, split = machine_with(**pe), machine_with(**pe, pe__register_kib=256)
    trace = replace(copy_trace(256, 1 << 12), tcm_bytes=192 * kib, staged_bytes=128 * kib)
    resident = [resident_programs(192 * kib, 128 * kib, item.sip) for item in (pool, split)]
    assert resident == [2, 1]
    assert resident_programs(96 * kib, 32 * kib, split.sip) == 256 // 64
    assert resident_programs(40 * kib, 32 * kib, split.sip) == 164 // 32
    assert resident_programs(96 * kib, 0, split.sip) == 256 // 96
    assert scheduled(trace, split).duration_ps > scheduled(trace, pool).duration_ps


@examples(30)
@given(share=st.fractions(0, 1, max_denominator=16))
def test_what_a_load_misses_passes_the_cache_twice(share: Fraction) -> None:
    narrow = {"cache__bandwidth_gbps": 100, "cube__hbm_bandwidth_gbps": 10_000}
    machine = machine_with(**narrow, front_end_us=0, pe__dma_issue_cycles=0, cache__write_back=True)
    moved = 256 * 2 * (1 << 12)
    trace = copy_trace(256, 1 << 12)
    time_ns = scheduled(trace, machine, cached=((0, share),)).duration_ps / 1e3
    passes = float(moved * (1 + (1 - share)) + moved) / 100
    assert time_ns >= passes
    assert time_ns == pytest.approx(passes, rel=0.6)


@examples(20)
@given(programs=st.integers(1, 4000), size=st.sampled_from([64, 128, 256]))
def test_the_clock_falls_under_load_and_never_by_more_than_its_loss(
    programs: int, size: int
) -> None:
    trace = trace_of((list(range(programs)), only_gemm(size, size, size)))
    hot = machine_with(sustained={"clock_loss": 0.2, "full_load": 0.5, "half_time_us": 100})
    cool = scheduled(trace, machine_with()).duration_ps
    template = scheduled(trace, hot)
    assert cool <= template.duration_ps <= 1.2 * cool + 1
    check_rows(template)


def test_a_power_limit_takes_clock_from_dots() -> None:
    trace = trace_of((list(range(4000)), only_gemm(256, 256, 256)))
    free = scheduled(trace, machine_with())
    draws_w = sum(free.energy_pj.values()) / free.duration_ps
    # Half of the clock, at the lowest voltage: the square leaves under half of what is above idle.
    power = machine_with().sip.power
    assert power is not None
    cap_w = float(power.idle_w) + draws_w / 2 * float(power.voltage_floor) ** 2
    limited = scheduled(trace, machine_with(power__cap_w=cap_w))
    assert limited.duration_ps == pytest.approx(2 * free.duration_ps, rel=0.05)


def test_kernels_without_dots_keep_the_clock() -> None:
    hot = machine_with(sustained={"clock_loss": 0.2, "full_load": 0.5, "half_time_us": 1})
    trace = copy_trace(256, 1 << 12)
    assert scheduled(trace, hot).duration_ps == scheduled(trace, machine_with()).duration_ps


def test_schedules_of_one_trace_share_what_does_not_depend_on_rates() -> None:
    trace = gemm_trace(500, 300, 200)
    alone = scheduled(gemm_trace(500, 300, 200), machine_with(cube__hbm_bandwidth_gbps=100))
    scheduled(trace, machine_with())
    again = scheduled(trace, machine_with(cube__hbm_bandwidth_gbps=100))
    assert again.duration_ps == alone.duration_ps
    assert again.hbm_bytes == alone.hbm_bytes


def test_loads_of_a_loop_take_what_the_busiest_resource_needs_for_all_of_them() -> None:
    """A is in the cache, B in HBM, and the cache moves both, B twice: as it comes, and on."""
    hbm_gbps, step_bytes, steps = 8, 64 * 64 * 2, 32
    machine = machine_with(
        clock_ghz=1,
        num_cubes=1,
        cube__hbm_bandwidth_gbps=hbm_gbps,
        cube__hbm_efficiency=1,
        pe__dma_port_gbps=1000,
        cache={
            "capacity_mib": 40,
            "bandwidth_gbps": 4 * hbm_gbps,
            "latency_ns": 0,
            "retained_share": 1,
        },
    )
    issue_ps = machine.sip.cycles_ps(machine.sip.pe.dma_issue_cycles)

    def step_ps(**conditions: Any) -> float:
        short, long = (
            scheduled(gemm_trace(64, 64, 64 * count), machine, **conditions).duration_ps
            for count in (steps, 2 * steps)
        )
        return (long - short) / steps

    tile_ps = step_bytes / hbm_gbps * 1000
    assert step_ps(cached=((0, Fraction(1)),)) == pytest.approx(tile_ps + 2 * issue_ps, rel=1e-3)
    # Both from HBM, or both from the cache: nothing to overlap.
    assert step_ps() == pytest.approx(2 * tile_ps + 2 * issue_ps, rel=1e-3)
    both = ((0, Fraction(1)), (1, Fraction(1)))
    assert step_ps(cached=both) == pytest.approx(2 * tile_ps / 4 + 2 * issue_ps, rel=1e-3)
