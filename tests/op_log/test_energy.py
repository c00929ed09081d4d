"""Energies of commands, and the pace that a power cap leaves, against closed forms."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernbench.hardware import PowerSpec, load_machine
from kernbench.op_log import (
    Draw,
    Energy,
    PowerPace,
    WorkCounts,
    core_ps,
    pace_of,
    shared_clock,
    uncapped,
)

US = 10**6
"""Picoseconds."""


def power(**changes: Any) -> PowerSpec:
    return PowerSpec.model_validate(
        {
            "board_w": 2000,
            "measured_w": 2000,
            "idle_w": 50,
            "active_w": 0,
            "gemm_pj_per_flop": {"float16": 1, "float32": 10},
            "math_pj_per_element": dict.fromkeys(
                ("simple", "divide", "transcendental", "convert", "reduce"), 2
            ),
            "tcm_pj_per_byte": 3,
            "cache_pj_per_byte": 5,
            "hbm_pj_per_byte": 7,
            "link_pj_per_byte": 11,
            "network_pj_per_byte": 13,
            "host_pj_per_byte": 17,
            **changes,
        }
    )


def watts(pace: PowerPace, taken_ps: int) -> float:
    return 50 + sum(pace.energy_pj.values()) / float(taken_ps * pace.stretch)


works = st.builds(
    WorkCounts,
    flops=st.fixed_dictionaries({"float16": st.integers(0, 10**9)}),
    elements=st.fixed_dictionaries({"simple": st.integers(0, 10**7)}),
    port_bytes=st.integers(0, 10**8),
    hbm_bytes=st.integers(0, 10**8),
)
times = st.tuples(st.integers(1, 10**9), st.integers(0, 10**9)).map(
    lambda both: (max(both), min(both))
)


@pytest.mark.adr("0160-D1")
def test_energies_are_counts_times_constants() -> None:
    work = WorkCounts(
        flops={"float16": 100, "float32": 10},
        elements={"simple": 4, "reduce": 1},
        port_bytes=2,
        hbm_bytes=1,
        link_bytes=1,
        network_bytes=1,
        host_bytes=1,
    )
    pace = pace_of(power(active_w=3), work, 200, 100, front_end_ps=50)
    assert pace.energy_pj == {
        Energy.GEMM: 200,
        Energy.MATH: 10,
        Energy.TCM: 6,
        Energy.CACHE: 10,
        Energy.HBM: 7,
        Energy.LINKS: 24,
        Energy.HOST: 17,
        # A watt is a picojoule per picosecond.
        Energy.CLOCKS: 3 * 250,
    }
    assert pace.stretch == pace.clock == 1
    assert pace_of(None, work, 200, 100) == PowerPace()


@pytest.mark.adr("0160-D1")
def test_a_dtype_without_an_energy_takes_the_most_that_any_does() -> None:
    assert power().gemm_pj_per_flop["float32"] == 10
    pace = pace_of(power(), WorkCounts(flops={"float8_e5m2": 3}), 10, 10)
    assert pace.energy_pj[Energy.GEMM] == 30


def test_what_is_above_idle_falls_with_the_cube_of_the_clock_until_the_voltage_is_lowest() -> None:
    work = WorkCounts(flops={"float16": 400 * US})
    # 450 W without the cap. At nine tenths of clock and voltage that is 0.9 ** 3 of the 400 W.
    capped = pace_of(power(cap_w=50 + 400 * 0.9**3, voltage_floor=0.8), work, US, US)
    assert float(capped.clock) == pytest.approx(0.9, rel=1e-5)
    assert float(capped.stretch) == pytest.approx(1 / 0.9, rel=1e-5)
    assert watts(capped, US) == pytest.approx(50 + 400 * 0.9**3, rel=1e-5)
    # At a lower clock the voltage is 0.8 all the same.
    slow = pace_of(power(cap_w=50 + 400 * 0.8**2 / 2, voltage_floor=0.8), work, US, US)
    assert float(slow.clock) == pytest.approx(0.5, rel=1e-5)
    assert slow.energy_pj[Energy.GEMM] == pytest.approx(400 * US * 0.8**2, rel=1e-5)
    # Where the voltage falls more steeply, little clock is lost, and where it does not fall, most.
    steep = pace_of(
        power(cap_w=50 + 400 * 0.9**3, voltage_slope=2, voltage_floor=0.5), work, US, US
    )
    flat = pace_of(power(cap_w=50 + 400 * 0.9**3, voltage_slope=0), work, US, US)
    assert capped.clock < steep.clock
    assert float(flat.clock) == pytest.approx(0.9**3, rel=1e-5)


def test_what_a_device_draws_whatever_its_clock_is_left_over_by_no_cap() -> None:
    work = WorkCounts(flops={"float16": 400 * US})
    value = {"standby_w": 60, "active_w": 40, "voltage_floor": 0.8}
    free = pace_of(power(**value), work, US, US)
    assert free.energy_pj[Energy.CLOCKS] == (60 + 40) * US
    capped = pace_of(power(cap_w=50 + 60 + 440 * 0.8**2 / 4, **value), work, US, US)
    assert float(capped.clock) == pytest.approx(1 / 4, rel=1e-5)
    # 4 times as long: standby in full, cycles of the active device as many as before.
    assert capped.energy_pj[Energy.CLOCKS] == pytest.approx((60 * 4 + 40 * 0.8**2) * US, rel=1e-5)
    # No cap below what no clock changes can be held.
    assert pace_of(power(cap_w=105, **value), work, US, US).clock < Fraction(1, 1000)


def test_training_under_caps_loses_what_was_measured() -> None:
    """Zeus (NSDI 2023), BERT base on SQuAD, batch 24: seconds per epoch and watts, by limit."""
    measured = {
        "v100": [
            (1727.98, 227.9),
            (1844.2, 191.8),
            (1944.4, 170.7),
            (2149.8, 146.7),
            (3453.9, 99.7),
        ],
        "rtx-a6000": [
            (910.1, 267.4),
            (1008.8, 188.1),
            (1194.2, 167.0),
            (1582.6, 145.5),
            (2377.2, 122.8),
        ],
    }
    for name, ((base_s, base_w), *capped) in measured.items():
        power_of = load_machine(name).sip.power
        assert power_of is not None
        still_w = float(power_of.idle_w + power_of.standby_w)
        # A kernel that draws what training drew, all of it on the clock.
        work = WorkCounts(flops={"float16": 1}, elements={})
        pj = (base_w - still_w - float(power_of.active_w)) * US
        own = power_of.model_copy(update={"gemm_pj_per_flop": {"float16": pj}, "cap_w": None})
        for taken_s, watts_drawn in capped:
            pace = pace_of(own.model_copy(update={"cap_w": watts_drawn}), work, US, US)
            assert float(pace.stretch) == pytest.approx(taken_s / base_s, rel=0.09), (
                name,
                taken_s,
            )


@pytest.mark.adr("0160-D2")
def test_a_board_holds_its_own_limit_by_its_voltage() -> None:
    work = WorkCounts(flops={"float16": 300 * US}, hbm_bytes=70 * US / 7)
    measured = power(board_w=320, measured_w=320)
    free = pace_of(measured, work, US, US)
    assert free.stretch == 1
    assert free.energy_pj[Energy.HBM] == 70 * US
    assert watts(free, US) == pytest.approx(320)
    assert pace_of(measured.model_copy(update={"cap_w": 320}), work, US, US) == free
    # A cap counts from there: 160 of 270 W above idle.
    capped = pace_of(power(board_w=320, measured_w=320, cap_w=210), work, US, US)
    assert watts(capped, US) == pytest.approx(210, rel=1e-5)


@pytest.mark.adr("0285-D1")
def test_a_board_that_nothing_was_measured_under_holds_its_limit_by_its_clock() -> None:
    work = WorkCounts(flops={"float16": 400 * US})
    # 400 W above idle fall with the cube of the clock.
    limit_w = 50 + 400 * 0.9**3
    own, capped = (
        pace_of(power(voltage_floor=0.5, **limits), work, US, US)
        for limits in ({"board_w": limit_w, "measured_w": None}, {"cap_w": limit_w})
    )
    assert float(own.stretch) == pytest.approx(1 / 0.9, rel=1e-5)
    assert own == capped
    # A board that allows less than the one that was measured is like a cap on that.
    lower = power(voltage_floor=0.5, board_w=limit_w, measured_w=450)
    assert pace_of(lower, work, US, US) == own
    higher = power(voltage_floor=0.5, board_w=600, measured_w=450)
    assert pace_of(higher, work, US, US).stretch == 1


@pytest.mark.adr("0285-D2")
def test_works_side_by_side_hold_the_limit_by_a_clock_that_slows_what_runs_on_it() -> None:
    shared = power(board_w=450, voltage_floor=0.5)
    alone, moved = Draw(400_000, 0, 1.0), Draw(0, 80_000)
    clock = shared_clock(shared, [alone, moved], 1.0)
    # 320 W are left for what draws 400 at the full clock.
    assert clock == pytest.approx(0.8 ** (1 / 3), rel=1e-5)
    assert shared_clock(shared, [alone], 1.0) == 1
    # Half of the time goes with the clock: the voltage falls at once, the time not at all.
    assert shared_clock(shared, [alone._replace(clocked_share=0.5), moved], 1.0) == pytest.approx(
        0.8**0.5, rel=1e-5
    )
    # What shares HBM is slower, and draws less.
    assert shared_clock(shared, [alone, moved], 1.2) == 1


@pytest.mark.adr("0160-D2")
def test_a_kernel_that_waits_for_hbm_gives_clock_before_time() -> None:
    # 100 W of HBM and 300 W of the cache; engines need half of the time.
    work = WorkCounts(hbm_bytes=100 * US / 7, port_bytes=300 * US / 8)
    low = {"voltage_floor": 0.5}
    half = pace_of(power(cap_w=50 + 100 + 75, **low), work, US, US // 2)
    assert half.stretch == 1
    assert float(half.clock) == pytest.approx(0.5, rel=1e-5)
    assert pace_of(power(cap_w=220, **low), work, US, US // 2).stretch > 1


@pytest.mark.adr("0160-D2")
@given(work=works, taken=times, cap_w=st.floats(50.5, 1000), less_w=st.floats(0, 1))
def test_a_lower_cap_is_never_faster_and_draws_no_more(
    work: WorkCounts, taken: tuple[int, int], cap_w: float, less_w: float
) -> None:
    taken_ps, busy_ps = taken
    lower_w = 50.5 + (cap_w - 50.5) * less_w
    free, capped, lower = (
        pace_of(item, work, taken_ps, busy_ps)
        for item in (power(), power(cap_w=cap_w), power(cap_w=lower_w))
    )
    assert 1 == free.stretch <= capped.stretch <= lower.stretch
    assert sum(lower.energy_pj.values()) <= sum(capped.energy_pj.values())
    if watts(free, taken_ps) <= cap_w - 1e-6:
        assert capped == free
    # What does not run on the clock is no less.
    assert capped.energy_pj[Energy.HBM] == free.energy_pj[Energy.HBM]
    if busy_ps * 100 > taken_ps and capped.clock > Fraction(1, 1000):
        # Rounded picojoules weigh in short kernels.
        assert watts(capped, taken_ps) <= cap_w + 8 / taken_ps + 1e-6 * cap_w


@pytest.mark.adr("0160-D2")
@example(work=WorkCounts(hbm_bytes=279), taken=(1, 0), share=Fraction(1))
@given(work=works, taken=times, share=st.fractions(Fraction(1, 10), 1))
def test_a_locked_clock_stretches_what_runs_on_it(
    work: WorkCounts, taken: tuple[int, int], share: Fraction
) -> None:
    taken_ps, busy_ps = taken
    share = Fraction(round(share * 1000), 1000)
    locked = pace_of(power(clock_share=share), work, taken_ps, busy_ps)
    expected = max(busy_ps / float(share) / taken_ps, 1)
    assert float(locked.stretch) == pytest.approx(expected, rel=1e-4)
    assert math.isclose(float(locked.clock), float(share), rel_tol=1e-5)


def test_what_is_not_slowed_down_has_no_limits() -> None:
    limited = power(cap_w=100, clock_share=0.5)
    free = uncapped(limited)
    assert free is not None
    assert (limited.lowers_clocks, free.lowers_clocks) == (True, False)
    assert uncapped(None) is None
    assert free.idle_w == limited.idle_w


def test_the_core_is_what_is_left_with_infinitely_fast_hbm() -> None:
    # Bound by products: all of it. Bound by HBM: the longest other, and the latency.
    assert core_ps(120, 60, [100, 40]) == 120
    assert core_ps(120, 100, [60, 40]) == 80
    assert core_ps(120, 0, []) == 120
