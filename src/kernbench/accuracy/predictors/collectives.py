"""Collectives: the schedule that the machine's library chooses, on its links."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from kernbench.accuracy.rows import Answer, Machines, Ran, Row
from kernbench.errors import KernbenchError
from kernbench.links import Asked, Network

OPS = {"alltoall": "all_to_all", "all_reduce_custom": "all_reduce"}
"""Our names of operations, where rows use different ones."""
ITEM_BYTES = {
    "fp32": 4, "float": 4, "fp16": 2, "bf16": 2, "half": 2, "bfloat16": 2, "int8": 1, "fp8": 1,
}  # fmt: skip
PS_PER_US = 1e6


def asked_of(row: Row) -> Asked | None:
    """Return the collective that a row measured; None where its dtype has no known size."""
    item_bytes = ITEM_BYTES.get(row.dtype)
    if item_bytes is None:
        return None
    elements = -(-row.integer("bytes") // item_bytes)
    return Asked(OPS.get(row.op, row.op), row.integer("n_ranks"), elements, item_bytes)


def alone_ps(network: Network, asked: Asked, algorithm: str = "auto") -> tuple[int, str]:
    """Return the time of a collective on idle links, and the chosen algorithm."""
    sips = tuple(range(asked.num_ranks))
    choice = network.selector.choose(asked, sips, algorithm)
    # A separate network: earlier transfers must not occupy its links.
    idle = Network(network.machine)
    placed = idle.run(choice.build(asked), sips, (0,) * asked.num_ranks, choice.protocol)
    return placed.template.duration_ps, placed.template.algorithm


class CollectivePredictor:
    """Predicts collectives among the devices of a machine; every rank enters at the same time."""

    def __init__(self, machines: Machines) -> None:
        self._network = lru_cache(maxsize=64)(
            lambda device, num_ranks: Network(machines.machine_of(device, num_ranks))
        )

    def predict(self, row: Row) -> Answer:
        """Return the modeled time of the row's collective."""
        asked = asked_of(row)
        if asked is None:
            return Answer(None, f"no item size for dtype {row.dtype}")
        if (row.optional("n_nodes") or 1) > 1:
            return Answer(None, "a collective between nodes is of a cluster; rows are of one node")
        if asked.op == "send_recv":
            asked = replace(asked, num_ranks=2)
        try:
            network = self._network(row.device, asked.num_ranks)
        except KernbenchError as error:
            return Answer(None, str(error).split(";")[0])
        if network.machine.spec.collectives is None:
            return Answer(None, f"machine {network.machine.name} has no collective library")
        time_ps, how = alone_ps(network, asked)
        return Answer(time_ps / PS_PER_US, how=how, ran=Ran.COLLECTIVE)
