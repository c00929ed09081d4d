"""Schedules of pipeline parallelism: when the last stage ends the last microbatch.

All stages take equally long. A stage works on one microbatch at a time; while its output is on the
wire it may already work on the next.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Protocol

from kernbench.hardware import Machine, changed_machine
from kernbench.links import Asked, Network


def forward_us(stages: int, microbatches: int, stage_us: float, send_us: float) -> float:
    """Return the time of ``microbatches`` through ``stages``, one way.

    >>> forward_us(4, 1, 10.0, 1.0)
    43.0
    >>> forward_us(4, 8, 10.0, 1.0)
    113.0
    """
    done = [0.0] * stages
    for _ in range(microbatches):
        arrived = 0.0
        for stage in range(stages):
            done[stage] = max(done[stage], arrived) + stage_us
            arrived = done[stage] + send_us
    return done[-1]


def one_forward_one_backward_us(
    stages: int,
    microbatches: int,
    forward_us: float,
    backward_us: float,
    send_us: float,
    chunks: int = 1,
    ends_us: tuple[float, float] = (0.0, 0.0),
    waits_for_sends: bool = False,
) -> float:
    """Return the time of a training step under the 1F1B schedule.

    A stage holds ``chunks`` pieces of the model that are not adjacent (the interleaved schedule);
    ``forward_us`` and ``backward_us`` are for all of a stage's pieces. ``ends_us`` is the extra
    time of the last piece, forward and backward: the logits and the loss. A stage that waits for
    its sends begins nothing else before its output has arrived.

    Source: Narayanan et al., "Efficient large-scale language model training on GPU clusters", 2021.

    >>> one_forward_one_backward_us(4, 8, 10.0, 20.0, 0.0)
    330.0
    >>> one_forward_one_backward_us(4, 8, 10.0, 20.0, 0.0, chunks=2)
    285.0
    """
    orders = [_order(stages, microbatches, stage, chunks) for stage in range(stages)]
    ready: dict[tuple[bool, int, int], float] = {}
    now = [0.0] * stages
    position = [0] * stages
    last = stages * chunks - 1
    left = sum(map(len, orders))
    while left:
        moved = False
        for stage in range(stages):
            while position[stage] < len(orders[stage]):
                is_forward, chunk, microbatch = orders[stage][position[stage]]
                piece = chunk * stages + stage
                needed = _needed(is_forward, piece, microbatch, last)
                if needed is not None and needed not in ready:
                    break
                start = max(now[stage], ready[needed] if needed is not None else 0.0)
                took = (forward_us if is_forward else backward_us) / chunks
                took += ends_us[not is_forward] if piece == last else 0.0
                now[stage] = start + took
                # The stage with the last piece computes the loss.
                stays = piece == (last if is_forward else 0)
                arrived = now[stage] + (0.0 if stays else send_us)
                ready[(is_forward, piece, microbatch)] = arrived
                if waits_for_sends:
                    now[stage] = arrived
                position[stage] += 1
                left -= 1
                moved = True
        assert moved, "the schedule waits for itself"
    return max(now)


def _needed(
    is_forward: bool, piece: int, microbatch: int, last: int
) -> tuple[bool, int, int] | None:
    """Return the steps that a step of a piece of the model waits for."""
    if is_forward:
        return (True, piece - 1, microbatch) if piece else None
    return (True, piece, microbatch) if piece == last else (False, piece + 1, microbatch)


def _order(stages: int, microbatches: int, stage: int, chunks: int) -> list[tuple[bool, int, int]]:
    """Return a stage's steps in order: (is it forward, piece of the stage, microbatch)."""
    forwards = _through(stages, microbatches, chunks, range(chunks))
    backwards = _through(stages, microbatches, chunks, range(chunks - 1, -1, -1))
    if chunks == 1:
        warm_up = min(stages - stage - 1, microbatches)
    else:
        warm_up = min((stages - stage - 1) * 2 + (chunks - 1) * stages, microbatches * chunks)
    steps = [(True, *forward) for forward in forwards[:warm_up]]
    for index in range(microbatches * chunks):
        if warm_up + index < len(forwards):
            steps.append((True, *forwards[warm_up + index]))
        steps.append((False, *backwards[index]))
    return steps


def _through(stages: int, microbatches: int, chunks: int, order: range) -> list[tuple[int, int]]:
    """Return (piece, microbatch) in the order in which a stage runs them in one direction."""
    if chunks == 1:
        return [(0, index) for index in range(microbatches)]
    bounds = [*range(0, microbatches, stages), microbatches]
    return [
        (chunk, microbatch)
        for first, end in pairwise(bounds)
        for chunk in order
        for microbatch in range(first, end)
    ]


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
