"""Predicts collective rows: the schedule that the machine's library chooses, on its links."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from kernbench.accuracy.predictors import PS_PER_US, alone_ps, asked_of
from kernbench.accuracy.rows import Answer, Machines, Ran, Row
from kernbench.errors import KernbenchError
from kernbench.hardware import changed_machine
from kernbench.links import Asked, Network
from validation.predictors.libraries import exchanges
from validation.sources.harness import skew_us
from validation.sources.peers import PeerKernel
from validation.sources.stacks import stack_of

_ONE_NODE = ("1 (4-GPU tray) or 1",)
"""What sources write where all ranks are on one switch, whichever way the host is cut."""


class CollectivePredictor:
    """Predicts collective rows of one node; every rank enters at the same time."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._network = lru_cache(maxsize=64)(self._make_network)
        self._of_machine = lru_cache(maxsize=64)(Network)

    def predict(self, row: Row) -> Answer:
        if row.op in exchanges.OPS:
            return exchanges.exchanged(row, self._machines)
        asked = asked_of(row)
        if asked is None:
            return Answer(None, f"no item size for dtype {row.dtype}")
        nodes = 1 if row.fields.get("n_nodes") in _ONE_NODE else row.optional("n_nodes") or 1
        if nodes > 1:
            return self._between(row, asked, nodes)
        if asked.op == "send_recv":
            asked = replace(asked, num_ranks=2)
        num_ranks = asked.num_ranks
        try:
            network = self._network(row.device, num_ranks, row.source, row.fields.get("impl", ""))
        except KernbenchError as error:
            return Answer(None, str(error).split(";")[0])
        if network.machine.spec.collectives is None:
            return Answer(None, f"machine {network.machine.name} has no collective library")
        nccl = network.machine.spec.collectives.nccl
        over_pcie = nccl is not None and nccl.hop == "pcie"
        impl = row.fields.get("impl", "")
        peer = PeerKernel(impl, network.machine.name, num_ranks, over_pcie)
        algorithms: tuple[str, ...] = ("auto",)
        if row.op == "all_reduce_custom":
            algorithms = peer.algorithms(row.integer("bytes"))
        elif "NVLS disabled" in peer.impl:
            algorithms = ("ring",)
        answers = [alone_ps(network, asked, algorithm) for algorithm in algorithms]
        time_ps, how = min(answers)
        least_us = max(peer.host_us(), skew_us(row.source, row.op))
        return Answer(max(time_ps / PS_PER_US, least_us), how=how, ran=Ran.COLLECTIVE)

    def _between(self, row: Row, asked: Asked, nodes: int) -> Answer:
        """Return the time of a collective among ranks that fill several nodes."""
        if asked.num_ranks % nodes:
            return Answer(None, f"{asked.num_ranks} ranks are not {nodes} equal nodes")
        try:
            machine = self._machines.cluster_of(
                row.source, row.device, nodes, asked.num_ranks // nodes
            )
        except KernbenchError as error:
            return Answer(None, str(error).split(";")[0])
        if machine is None:
            return Answer(None, "no preset of the links between this source's nodes")
        time_ps, how = alone_ps(self._of_machine(machine), asked)
        return Answer(time_ps / PS_PER_US, how=how, ran=Ran.COLLECTIVE)

    def _make_network(self, device: str, num_ranks: int, source: str, impl: str) -> Network:
        machine = self._machines.machine_of(device, num_ranks)
        if machine.spec.collectives is None:
            # Sources of a cluster also measure one of its nodes.
            machine = self._machines.cluster_of(source, device, 1, num_ranks) or machine
        machine = stack_of(source).adapted(machine, num_ranks)
        changes = PeerKernel(impl, machine.name, num_ranks).changes()
        return Network(changed_machine(machine, changes) if changes else machine)
