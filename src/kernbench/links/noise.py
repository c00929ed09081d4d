"""What makes collectives end later, or sooner, than the links of a machine would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp, log
from random import Random

import numpy as np

from kernbench.hardware import Interruptions, drawing
from kernbench.links.network import Network, Transferred
from kernbench.op_log import Column, Template

_PS_PER_S = 10**12
_Z_OF_P99 = 2.3263478740408408
"""Where the standard normal distribution has 99 % below."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """How times after a begin move, so that what took ``before_ps`` takes ``after_ps``."""

    begun_ps: int
    before_ps: int
    after_ps: int

    def of(self, time_ps: int) -> int:
        since_ps = time_ps - self.begun_ps
        return time_ps if since_ps <= 0 else self.begun_ps + self._moved(since_ps)

    def of_all(self, times_ps: Column) -> Column:
        since_ps = (times_ps - self.begun_ps).astype(object)
        moved = np.array([self._moved(item) for item in since_ps.tolist()], dtype=np.int64)
        return np.where(since_ps <= 0, times_ps, self.begun_ps + moved).astype(np.int64)

    def _moved(self, since_ps: int) -> int:
        return since_ps * self.after_ps // self.before_ps


def _stretched(template: Template, stretch: _Stretch) -> Template:
    """Return a collective's template whose rows end when it does."""

    def make_rows() -> dict[str, Column]:
        rows = template.make_rows()
        for name in ("start_ps", "end_ps"):
            rows[name] = stretch.of_all(rows[name])
        return rows

    return replace(template, duration_ps=stretch.of(template.duration_ps), make_rows=make_rows)


class NetworkNoise:
    """What makes collectives end later, or sooner, than the links of a machine would."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._scenario = scenario = network.machine.spec.scenario
        self._run = network.run
        self._sigma = log(scenario.collective_jitter.p99_over_p50) / _Z_OF_P99
        self._factors: dict[tuple[int, ...], Random] = {}
        """The generator of each group of SIPs, whose collectives are drawn by themselves."""
        self._outages: dict[tuple[int, int], Interruptions] = {}

    def run(self, *args: object) -> Transferred:
        """Place a collective as the network does, and let it end as the noise has it."""
        placed = self._run(*args)  # type: ignore[arg-type]
        begun_ps, end_ps = max(placed.starts_ps), max(placed.ends_ps)
        sips: tuple[int, ...] = args[1]  # type: ignore[assignment]
        # Ranks that come early begin early; what all are there for is what takes longer.
        new_end_ps = begun_ps + round((end_ps - begun_ps) * self._factor(sips))
        new_end_ps += self._out_ps(placed, begun_ps, new_end_ps)
        if new_end_ps == end_ps:
            return placed
        self._network.delay(placed, begun_ps, new_end_ps - end_ps)
        stretch = _Stretch(begun_ps, end_ps - begun_ps, new_end_ps - begun_ps)
        first_ps = min(placed.starts_ps)
        template = _stretched(placed.template, replace(stretch, begun_ps=begun_ps - first_ps))
        return replace(placed, ends_ps=tuple(map(stretch.of, placed.ends_ps)), template=template)

    def _factor(self, sips: tuple[int, ...]) -> float:
        if not self._sigma:
            return 1.0
        factor = self._factors.get(sips)
        if factor is None:
            factor = self._factors[sips] = drawing(self._scenario, "collectives", sips)
        return exp(self._sigma * factor.gauss())

    def _out_ps(self, placed: Transferred, start_ps: int, end_ps: int) -> int:
        """Return for how long links of a collective are down while it runs."""
        machine = self._network.machine
        if not machine.flapping_wires:
            return 0
        taken = {machine.flapping_links.get(link) for link in placed.links.tolist()}
        outages = [self._outages_of(wire) for wire in sorted(pair for pair in taken if pair)]
        return max((outage.delay_ps(start_ps, end_ps) for outage in outages), default=0)

    def _outages_of(self, wire: tuple[int, int]) -> Interruptions:
        outages = self._outages.get(wire)
        if outages is None:
            flapping = self._scenario.flapping
            outages = self._outages[wire] = Interruptions(
                drawing(self._scenario, "flapping", wire),
                float(flapping.up_s * _PS_PER_S),
                round(flapping.down_s * _PS_PER_S),
            )
        return outages


def disturb(network: Network) -> Network:
    """Let the collectives of a network have the noise of its machine's scenario."""
    machine = network.machine
    jitter = machine.spec.scenario.collective_jitter
    if machine.flapping_wires or jitter.p99_over_p50 > 1:
        placing: Callable[..., Transferred] = NetworkNoise(network).run
        network.run = placing  # type: ignore[method-assign]
    return network
