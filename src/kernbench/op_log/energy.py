"""What a command's work takes of energy, and how much a power cap slows it down (ADR-0160)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import NamedTuple

from kernbench.hardware import PowerSpec

_STEPS = 1 << 20
"""Clocks between none and the whole."""


class Energy(StrEnum):
    """What energy goes to, beside the idle device."""

    GEMM = "GEMM"
    MATH = "math"
    TCM = "TCM"
    CACHE = "cache"
    HBM = "HBM"
    LINKS = "links"
    HOST = "host link"
    CLOCKS = "clocks"
    """The active device, whatever it does."""


ON_CLOCK = (Energy.GEMM, Energy.MATH, Energy.TCM, Energy.CACHE)
"""What runs at the clock that a cap lowers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkCounts:
    """What a command asks of its device, counted."""

    flops: Mapping[str, float] = field(default_factory=dict)
    """FLOPs of the GEMM engines, by the name of their rate."""
    elements: Mapping[str, float] = field(default_factory=dict)
    """Elements of the vector engines, by class of operation."""
    port_bytes: float = 0
    """Through the ports of PEs."""
    hbm_bytes: float = 0
    link_bytes: float = 0
    """Bytes on all links inside nodes."""
    network_bytes: float = 0
    """Bytes on all links between nodes."""
    host_bytes: float = 0

    def energies_pj(self, power: PowerSpec) -> dict[Energy, float]:
        """Return what the work takes at the file's clock, without :attr:`Energy.CLOCKS`.

        A dtype without an energy of its own takes the most that any does.
        """
        of_flops = {name: float(pj) for name, pj in power.gemm_pj_per_flop.items()}
        most = max(of_flops.values(), default=0.0)
        rates = power.math_pj_per_element
        return {
            Energy.GEMM: sum(
                count * of_flops.get(name, most) for name, count in self.flops.items()
            ),
            Energy.MATH: sum(
                count * float(getattr(rates, name)) for name, count in self.elements.items()
            ),
            Energy.TCM: self.port_bytes * float(power.tcm_pj_per_byte),
            Energy.CACHE: self.port_bytes * float(power.cache_pj_per_byte),
            Energy.HBM: self.hbm_bytes * float(power.hbm_pj_per_byte),
            Energy.LINKS: self.link_bytes * float(power.link_pj_per_byte)
            + self.network_bytes * float(power.network_pj_per_byte),
            Energy.HOST: self.host_bytes * float(power.host_pj_per_byte),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerPace:
    """How fast a kernel runs under a power cap, and what it draws."""

    stretch: Fraction = Fraction(1)
    """How many times longer it takes than at the file's clock."""
    clock: Fraction = Fraction(1)
    """Its clock, relative to the file's."""
    energy_pj: Mapping[Energy, int] = field(default_factory=dict)
    """Empty where the machine says nothing of energy."""


def pace_of(
    power: PowerSpec | None, work: WorkCounts, taken_ps: int, core_ps: int, front_end_ps: int = 0
) -> PowerPace:
    """Return the pace of a kernel that takes ``taken_ps`` at the file's clock.

    Times of rates that were measured have what ``measured_w`` of that board cost: where the counted
    energies would be more, those on the clock are less, as the voltage falls. Under a lower limit,
    or one that nothing was measured under, the
    clock is the highest at which the kernel draws no more. ``core_ps`` is how long it
    would take with HBM infinitely fast: that is what grows as the clock falls, so that a kernel
    which waits for HBM loses time only once its engines are slower than HBM. The front end comes
    before, at any clock.
    """
    if power is None:
        return PowerPace()
    energies = work.energies_pj(power)
    on_clock = sum(energies[energy] for energy in ON_CLOCK)
    fixed = sum(energies.values()) - on_clock
    still_w, active_w = float(power.idle_w + power.standby_w), float(power.active_w)
    core_ps = min(core_ps, taken_ps)
    if taken_ps and power.measured_w is not None:
        room = max((float(power.measured_w) - still_w - active_w) * taken_ps - fixed, 0.0)
        share = min(room / on_clock, 1.0) if on_clock else 1.0
        energies |= {energy: energies[energy] * share for energy in ON_CLOCK}
        on_clock *= share

    def watts(step: int) -> float:
        share = step / _STEPS
        less = power.voltage_at(share) ** 2
        longer_ps = max(core_ps / share, taken_ps, 1)
        return still_w + active_w * share * less + (on_clock * less + fixed) / longer_ps

    step = int(power.clock_share * _STEPS) or 1
    if power.lowers_clocks and taken_ps:
        step = _highest(watts, power.limit_w, step)
    clock = Fraction(step, _STEPS)
    stretch = max(Fraction(core_ps, taken_ps) / clock, Fraction(1)) if taken_ps else Fraction(1)
    less = power.voltage_at(float(clock)) ** 2
    energy_pj = {
        name: round(pj * less if name in ON_CLOCK else pj) for name, pj in energies.items()
    }
    lasts_ps = front_end_ps + taken_ps * stretch
    standing_w = float(power.standby_w) + active_w * float(clock) * less
    energy_pj[Energy.CLOCKS] = round(standing_w * float(lasts_ps))
    return PowerPace(stretch=stretch, clock=clock, energy_pj=energy_pj)


def _highest(watts: Callable[[int], float], cap_w: float, most: int) -> int:
    """Return the highest step up to ``most`` that draws at most the cap; at least the first."""
    if watts(most) <= cap_w:
        return most
    low, high = 1, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if watts(middle) <= cap_w else (low, middle)
    return low


def uncapped(power: PowerSpec | None) -> PowerSpec | None:
    """Return what a device draws that nothing slows down."""
    if power is None:
        return None
    free = {"cap_w": None, "clock_share": Fraction(1), "measured_w": power.board_w}
    return power.model_copy(update=free)


class Draw(NamedTuple):
    """What work draws of its SIP's power while it runs alone, and what a lower clock does to it."""

    clocked_mw: int = 0
    """Of what runs on the clock (:data:`ON_CLOCK`)."""
    other_mw: int = 0
    clocked_share: float = 0.0
    """How long it would take with HBM infinitely fast, of the time that it takes."""


def shared_clock(power: PowerSpec, draws: Iterable[Draw], slowed: float) -> float:
    """Return the highest clock at which works side by side draw no more than the device's limit.

    It is relative to the one at which each runs alone. ``slowed`` is by how much sharing HBM
    stretches all of them. What no clock changes may be above the limit: then it is next to none.
    """
    draws = list(draws)

    def watts(step: int) -> float:
        share = step / _STEPS
        less = power.voltage_at(share) ** 2
        drawn_mw = sum(
            (draw.clocked_mw * less + draw.other_mw) / max(slowed, draw.clocked_share / share)
            for draw in draws
        )
        return float(power.idle_w) + drawn_mw / 1000

    # Powers are in whole milliwatts, and works alone are at the limit to a picojoule.
    return _highest(watts, power.limit_w * (1 + 1e-6), _STEPS) / _STEPS


def core_ps(cool_ps: int, hbm_ps: int, others_ps: Iterable[int]) -> int:
    """Return how long a kernel would take with HBM infinitely fast.

    The longest of the others, and what is left beside the longest of all: filling, draining,
    waiting for each other.
    """
    longest = max(others_ps, default=0)
    return min(longest + max(cool_ps - max(longest, hbm_ps), 0), cool_ps)


def added(*parts: Mapping[Energy, int]) -> dict[Energy, int]:
    """Return the sums of energies, part by part."""
    numbers: dict[Energy, int] = {}
    for part in parts:
        for name, pj in part.items():
            numbers[name] = numbers.get(name, 0) + pj
    return numbers
