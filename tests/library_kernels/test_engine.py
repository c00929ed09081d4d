"""The engine of library kernels against closed forms."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.hardware import KernelConstants, SipSpec, load_machine
from kernbench.library_kernels import (
    LibraryKernel,
    Tiles,
    Trip,
    kept_share,
    makespan,
    stream,
    time_kernel,
)

PLAIN = KernelConstants(source="assumed: a test")


def sip() -> SipSpec:
    return load_machine("a100-sxm-80g").sip


def products(count: int, trips: float, resident: int = 1, loaded: float = 0.0) -> LibraryKernel:
    trip = Trip(flops=2.0 * 128 * 128 * 64, dtype="bfloat16", loaded_bytes=loaded)
    tiles = (Tiles(count=count, trips=trips, trip=trip),)
    return LibraryKernel(name="test", tiles=tiles, resident=resident)


def trip_us(share: float = 1.0) -> float:
    return 2.0 * 128 * 128 * 64 / (2048 * share) / 1410.0


@pytest.mark.adr("0128-D2")
def test_tiles_take_rounds_of_their_pes() -> None:
    one, two = (time_kernel(products(count, 10), sip(), PLAIN) for count in (108, 109))
    assert one.tiles_us == pytest.approx(10 * trip_us())
    assert two.tiles_us == pytest.approx(20 * trip_us())


def test_a_wave_takes_the_longer_of_its_tiles_and_its_share_of_memory() -> None:
    """Of 109 tiles on 108 PEs the last one loads alone, in the time of a tile."""
    kernel = replace(products(109, 10), hbm_read_bytes=109e6, in_waves=True)
    time = time_kernel(kernel, sip(), PLAIN)
    tile_us, hbm_us = 10 * trip_us(), 108 / 109 * time.hbm_us
    assert tile_us < hbm_us
    # The clock of busy matrix engines is a little lower.
    assert time.total_us - time.start_us == pytest.approx(tile_us + hbm_us, rel=1e-3)
    beside = time_kernel(replace(kernel, in_waves=False), sip(), PLAIN)
    assert beside.total_us - beside.start_us == pytest.approx(time.hbm_us)
    one = replace(products(108, 10), hbm_read_bytes=108e6)
    assert time_kernel(replace(one, in_waves=True), sip(), PLAIN) == time_kernel(one, sip(), PLAIN)


@pytest.mark.adr("0128-D2")
def test_resident_tiles_hide_latency_and_not_the_busiest_unit() -> None:
    waits = KernelConstants.model_validate({"trip_ns": 3000, "source": "assumed: a test"})
    alone = time_kernel(products(216, 10), sip(), waits).tiles_us
    shared = time_kernel(products(216, 10, resident=2), sip(), waits).tiles_us
    assert alone == pytest.approx(20 * (trip_us() + 3.0))
    assert shared == pytest.approx(10 * (trip_us() + 3.0))
    busy = time_kernel(products(216, 10, resident=2), sip(), PLAIN).tiles_us
    assert busy == pytest.approx(20 * trip_us())


def test_results_that_leave_after_the_loop_lengthen_every_tile() -> None:
    tiles = replace(products(216, 10).tiles[0], stored_bytes=2.0 * 128 * 128)
    one, two = (
        LibraryKernel(name="test", tiles=(tiles,), resident=resident) for resident in (1, 2)
    )
    after = KernelConstants.model_validate({"store_share": 0.1, "source": "assumed: a test"})
    stored_us = 2.0 * 128 * 128 / (float(sip().pe.dma_port_gbps) * 1e3 * 0.1)
    assert time_kernel(one, sip(), PLAIN).tiles_us == pytest.approx(20 * trip_us())
    assert time_kernel(one, sip(), after).tiles_us == pytest.approx(20 * trip_us() + 2 * stored_us)
    # Two tiles of a PE share its port.
    assert time_kernel(two, sip(), after).tiles_us == pytest.approx(20 * trip_us() + 2 * stored_us)


def test_trips_that_miss_the_cache_wait_longer() -> None:
    waits = KernelConstants.model_validate({"trip_ns": 1000, "miss_ns": 2000, "source": "a test"})
    trip = Trip(flops=2.0 * 128 * 128 * 64, dtype="bfloat16", missed=0.5)
    kernel = LibraryKernel(name="test", tiles=(Tiles(count=108, trips=10, trip=trip),))
    assert time_kernel(kernel, sip(), waits).tiles_us == pytest.approx(10 * (trip_us() + 2.0))


def test_latency_behind_arithmetic_costs_nothing_where_loads_run_ahead() -> None:
    trip = Trip(flops=2.0 * 128 * 128 * 64, dtype="bfloat16", pipelined=True)
    kernel = LibraryKernel(name="test", tiles=(Tiles(count=108, trips=10, trip=trip),))
    for waits_us, expected in ((trip_us() / 2, trip_us()), (3.0, 3.0)):
        waits = KernelConstants.model_validate({"trip_ns": waits_us * 1e3, "source": "a test"})
        assert time_kernel(kernel, sip(), waits).tiles_us == pytest.approx(10 * expected)


@pytest.mark.adr("0128-D2")
def test_halves_of_a_tile_that_take_turns_overlap_both_engines() -> None:
    rate = sip().pe.math.elements_per_clock.simple
    work = Trip(flops=2.0 * 128 * 128 * 64, dtype="bfloat16", simple=float(rate) * 100)
    vector_us = 100 / 1410.0
    for ping_pong, expected in ((False, trip_us() + vector_us), (True, max(trip_us(), vector_us))):
        tiles = Tiles(count=108, trips=10, trip=replace(work, ping_pong=ping_pong))
        kernel = LibraryKernel(name="test", tiles=(tiles,))
        assert time_kernel(kernel, sip(), PLAIN).tiles_us == pytest.approx(10 * expected)


def test_memory_decides_where_it_is_slower_than_the_tiles() -> None:
    kernel = LibraryKernel(
        name="test", tiles=products(108, 1).tiles, hbm_read_bytes=2039e6, hbm_written_bytes=0.0
    )
    result = time_kernel(kernel, sip(), PLAIN)
    assert result.hbm_us == pytest.approx(1000.0)
    assert result.total_us > 1000.0


def test_what_the_cache_keeps_of_a_warm_launch_is_not_read_again() -> None:
    # The A100's cache keeps 20 of its 40 MiB.
    kept = 20 * 2**20
    assert [kept_share(number * kept, sip()) for number in (0.5, 1.0, 1.25, 2.0, 9.0)] == [
        1.0, 1.0, 0.75, 0.0, 0.0,
    ]  # fmt: skip
    small, large = (time_kernel(stream("test", number, 0.0), sip(), PLAIN) for number in (1e6, 1e9))
    assert small.hbm_us == 0.0
    assert small.cache_us == pytest.approx(1e6 / 4146e3)
    assert large.hbm_us == pytest.approx(1e9 / 2039e3)


def test_memory_reaches_its_rate_within_a_ramp() -> None:
    ramps = KernelConstants.model_validate({"ramp_us": 2, "source": "assumed: a test"})
    for num_bytes in (2039e3 * 2, 2039e3 * 2000):
        cold = replace(products(108, 1), hbm_read_bytes=num_bytes)
        full_us = time_kernel(cold, sip(), PLAIN).hbm_us
        slow_us = time_kernel(cold, sip(), ramps).hbm_us
        assert slow_us == pytest.approx(full_us + 2 * full_us / (full_us + 2))
    assert time_kernel(products(108, 1), sip(), ramps).hbm_us == 0.0


def test_a_long_tile_that_starts_last_ends_alone() -> None:
    long, short = products(1, 40).tiles[0], products(1, 1).tiles[0]
    tiles = (replace(long, count=108), replace(short, count=4 * 108))
    ordered = LibraryKernel(name="test", tiles=tiles)
    tiles_us = time_kernel(ordered, sip(), PLAIN).tiles_us
    last = time_kernel(replace(ordered, longest_first=False), sip(), PLAIN).tiles_us
    assert tiles_us == pytest.approx(44 * trip_us())
    assert last == pytest.approx((44 + 40 * (1 - 1 / 108)) * trip_us())


def test_few_tiles_reach_what_their_ports_give() -> None:
    kernel = LibraryKernel(name="test", tiles=products(1, 1).tiles, hbm_read_bytes=180.48e3)
    assert time_kernel(kernel, sip(), PLAIN).hbm_us == pytest.approx(1.0)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.floats(0.1, 50.0)), min_size=1, max_size=6),
    st.integers(1, 64),
)
def test_makespan_lies_between_its_bounds(jobs: list[tuple[int, float]], slots: int) -> None:
    total = sum(count * length for count, length in jobs)
    longest = max(length for _, length in jobs)
    result = makespan(jobs, slots)
    assert result >= max(total / slots, longest) * (1 - 1e-9)
    # Longest first is at most a third above the best.
    assert result <= (total / slots + longest) * (1 + 1e-9)


@given(st.integers(1, 500), st.integers(1, 64), st.floats(0.1, 50.0))
def test_equal_tiles_end_in_whole_rounds(count: int, slots: int, length: float) -> None:
    assert makespan([(count, length)], slots) == pytest.approx(-(-count // slots) * length)


def test_a_kernel_that_overlaps_less_takes_the_norm_of_its_parts() -> None:
    times = {}
    for power in (1.0, 3.0, math.inf):
        kernel = LibraryKernel(
            name="test", tiles=products(108, 1000).tiles, hbm_read_bytes=2039e6, overlap=power
        )
        times[power] = time_kernel(kernel, sip(), PLAIN)
    time = times[3.0]
    parts = (time.tiles_us, time.cache_us, time.hbm_us)
    busy = {power: item.total_us - item.start_us for power, item in times.items()}
    stretch = busy[math.inf] / max(parts)
    assert busy[1.0] == pytest.approx(sum(parts) * stretch, rel=0.1)
    assert busy[3.0] == pytest.approx(sum(part**3 for part in parts) ** (1 / 3) * stretch, rel=0.1)
    assert busy[1.0] > busy[3.0] > busy[math.inf]


def test_a_hot_clock_slows_tiles_and_not_memory() -> None:
    assert sip().sustained is not None
    tiles = products(108, 100_000).tiles
    tiles_us = time_kernel(LibraryKernel(name="test", tiles=tiles), sip(), PLAIN).tiles_us
    for share, is_slower in ((0.5, True), (1.5, False)):
        read = share * tiles_us * 2039e3
        kernel = LibraryKernel(name="test", tiles=tiles, hbm_read_bytes=read)
        time = time_kernel(kernel, sip(), PLAIN)
        busy_us = time.total_us - time.start_us - time.power_us
        longest_us = max(time.tiles_us, time.hbm_us)
        assert (busy_us > 1.01 * longest_us) == is_slower
        assert busy_us >= longest_us * (1 - 1e-9)


def test_rows_of_a_tile_cost_time_beside_the_tile() -> None:
    trip = Trip(flops=2.0 * 128 * 128 * 64, dtype="bfloat16")
    costs = KernelConstants.model_validate({"tile_ns": 500, "row_ns": 20, "source": "a test"})
    for rows, expected_us in ((0, 0.5), (1, 0.52), (64, 1.78)):
        tiles = (Tiles(count=108, trips=1, trip=trip, rows=rows),)
        kernel = time_kernel(LibraryKernel(name="test", tiles=tiles), sip(), costs)
        assert kernel.tiles_us == pytest.approx(trip_us() + expected_us)


def test_tiles_with_different_trips_each_have_their_own_time() -> None:
    short, long = (Trip(flops=2.0 * m * 128 * 64, dtype="bfloat16") for m in (64, 128))
    tiles = tuple(Tiles(count=54, trips=10, trip=trip) for trip in (short, long, short))
    kernel = time_kernel(LibraryKernel(name="test", tiles=tiles[:2]), sip(), PLAIN)
    assert kernel.tiles_us == pytest.approx(10 * trip_us())
    assert kernel.tensor_us == pytest.approx(10 * trip_us() * 0.75)
    three = time_kernel(LibraryKernel(name="test", tiles=tiles), sip(), PLAIN)
    assert three.tensor_us == pytest.approx(10 * trip_us())


@pytest.mark.adr("0160-D2")
def test_a_power_cap_slows_products_and_no_streams() -> None:
    free, limited = (load_machine(name).sip for name in ("a100-sxm-80g", "a100-sxm-330w"))
    # Long enough for the clock to settle, with the loads of tiles of 128 x 128.
    hot = products(108, 100_000, loaded=2.0 * 64 * (128 + 128))
    times = [time_kernel(hot, item, PLAIN) for item in (free, limited)]
    assert 1.02 < times[1].total_us / times[0].total_us < 1.2
    assert times[1].power_us == pytest.approx(times[1].total_us - times[0].total_us)
    for time, limit_w in zip(times, (400, 330), strict=True):
        drawn_w = sum(time.energy_pj.values()) / time.total_us / 1e6 + 60
        assert drawn_w <= limit_w * 1.0001
    assert drawn_w == pytest.approx(330, rel=1e-4)
    moved = LibraryKernel(name="test", tiles=products(108, 0).tiles, hbm_read_bytes=2039e6)
    assert time_kernel(moved, free, PLAIN).total_us == time_kernel(moved, limited, PLAIN).total_us
