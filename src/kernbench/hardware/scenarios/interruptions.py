"""Times at which something is taken away for a while: a host's CPU, a link."""

from __future__ import annotations

from random import Random

from kernbench.hardware.machine import Machine
from kernbench.hardware.rates import PS_PER_US
from kernbench.hardware.scenarios.chosen import drawing

_PS_PER_S = 10**12


class Interruptions:
    """Interruptions that begin after random times of an exponential distribution.

    Whoever asks goes forward in time. What falls into times that nobody asks about is over then.
    """

    def __init__(self, random: Random, mean_apart_ps: float, length_ps: int) -> None:
        """Draw times from ``random``: on average ``mean_apart_ps`` from an end to the next."""
        self._random = random
        self._mean_apart_ps = mean_apart_ps
        self._length_ps = length_ps
        self._next_ps = self._apart_ps()

    def delay_ps(self, start_ps: int, end_ps: int) -> int:
        """Return by how much later work ends that would last from ``start_ps`` to ``end_ps``."""
        length_ps = self._length_ps
        while self._next_ps + length_ps <= start_ps:
            self._go_on()
        late_ps = 0
        if self._next_ps < start_ps:
            # It has begun before the work, which begins when it is over.
            late_ps = self._next_ps + length_ps - start_ps
            self._go_on()
        while self._next_ps < end_ps + late_ps:
            late_ps += length_ps
            self._go_on()
        return late_ps

    def _go_on(self) -> None:
        self._next_ps += self._length_ps + self._apart_ps()

    def _apart_ps(self) -> int:
        return int(self._random.expovariate(1.0) * self._mean_apart_ps)


class HostNoise:
    """The interruptions of the hosts of a run, each rank's drawn by itself."""

    def __init__(self, machine: Machine) -> None:
        self._scenario = machine.spec.scenario
        jitter = self._scenario.host_jitter
        self._length_ps = round(jitter.us * PS_PER_US)
        self._mean_apart_ps = float(_PS_PER_S / jitter.per_s) - self._length_ps
        self._of_ranks: dict[int, Interruptions] = {}

    def delay_ps(self, rank: int, start_ps: int, end_ps: int) -> int:
        """Return by how much later a rank's host ends what would last from start to end."""
        interruptions = self._of_ranks.get(rank)
        if interruptions is None:
            interruptions = self._of_ranks[rank] = Interruptions(
                drawing(self._scenario, "host", rank), self._mean_apart_ps, self._length_ps
            )
        return interruptions.delay_ps(start_ps, end_ps)


def host_noise(machine: Machine) -> HostNoise | None:
    """Return the interruptions of a machine's hosts, None where there are none."""
    return HostNoise(machine) if machine.spec.scenario.host_jitter.per_s else None
