"""Interruptions of the hosts of a machine."""

from __future__ import annotations

from kernbench.hardware.machine import Machine
from kernbench.hardware.rates import PS_PER_US
from kernbench.hardware.scenarios.chosen import drawing
from kernbench.hardware.scenarios.interruptions import PS_PER_S, Interruptions


class HostNoise:
    """The interruptions of the hosts of a run, each rank's drawn by itself."""

    def __init__(self, machine: Machine) -> None:
        self._scenario = machine.spec.scenario
        jitter = self._scenario.host_jitter
        self._length_ps = round(jitter.us * PS_PER_US)
        self._mean_apart_ps = float(PS_PER_S / jitter.per_s) - self._length_ps
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
