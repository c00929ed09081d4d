"""Transfers between the groups of ranks that hold a model: stages, and replicas."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

from kernbench.hardware import Machine, changed_machine
from kernbench.links import Asked, Network


class MachineOf(Protocol):
    """Returns the machine of a device."""

    def __call__(self, device: str, num_sips: int = 1) -> Machine: ...


class StageWires:
    """Times messages between stages and sums over replicas, on otherwise idle links."""

    def __init__(self, machine_of: MachineOf) -> None:
        self._machine_of = machine_of
        self.handed_on_us = lru_cache(maxsize=1024)(self._handed_on)
        self.summed_us = lru_cache(maxsize=1024)(self._summed)

    def _handed_on(self, device: str, tp_size: int, elements: int, itemsize: int) -> float:
        """Return the time of a stage's output to the next stage: a part per rank, gathered there.

        Stages are adjacent: within a node if they fit, otherwise in separate nodes.
        """
        machine = self._spread(device, 2 * tp_size)
        part = -(-elements // tp_size)
        total_us = collective_us(machine, Asked("send_recv", 2, part, itemsize), (0, tp_size))
        if tp_size > 1:
            gather = Asked("all_gather", tp_size, part * tp_size, itemsize)
            total_us += collective_us(machine, gather, tuple(range(tp_size)))
        return total_us

    def _summed(
        self, device: str, tp_size: int, copies: int, elements: int, itemsize: int
    ) -> float:
        """Return the time of the sum of gradients over the replicas of a model.

        The ranks of a replica are adjacent, so each rank sums with every ``tp_size``-th one; all do
        so at once, each over its own link to the network.
        """
        if copies == 1:
            return 0.0
        asked = Asked("all_reduce", copies, elements, itemsize)
        node = node_of(self._machine_of(device))
        if node and tp_size % node == 0:
            # One rank of every node is in a group; the others of its node have their own links.
            machine = single_sips(self._machine_of(device), copies)
            return collective_us(machine, asked, tuple(range(copies)))
        machine = self._spread(device, copies * tp_size)
        return collective_us(machine, asked, tuple(range(0, copies * tp_size, tp_size)))

    def _spread(self, device: str, num_sips: int) -> Machine:
        """Return the device's machine with at least ``num_sips`` SIPs, in whole nodes."""
        one = self._machine_of(device)
        node = node_of(one)
        room = -(-num_sips // node) * node if node else num_sips
        return changed_machine(one, {}, num_sips=room)


def single_sips(machine: Machine, count: int) -> Machine:
    """Return so many SIPs of a machine of nodes, each in a node of its own."""
    links = machine.spec.links
    assert links is not None
    assert links.scale_out is not None
    return changed_machine(machine, links.scale_out.of_single_sips(), num_sips=count)


def node_of(machine: Machine) -> int:
    """Return how many devices share a node; 0 where all do."""
    links = machine.spec.links
    return 0 if links is None or links.scale_out is None else links.scale_out.sips_per_node


def collective_us(machine: Machine, asked: Asked, sips: tuple[int, ...]) -> float:
    """Return the time of a collective on idle links."""
    return collective_cost(machine, asked, sips)[0]


def collective_cost(
    machine: Machine, asked: Asked, sips: tuple[int, ...]
) -> tuple[float, float | None]:
    """Return the time of a collective on idle links, and what a device draws above idle."""
    network = Network(machine)
    choice = network.selector.choose(asked, sips)
    placed = network.run(choice.build(asked), sips, (0,) * len(sips), choice.protocol)
    template, power = placed.template, machine.sip.power
    watts = None
    if power is not None:
        drawn_pj = sum(template.energy_pj.values()) / len(sips)
        watts = float(power.active_w) + drawn_pj / max(template.duration_ps, 1)
    return template.duration_ps / 1e6, watts
