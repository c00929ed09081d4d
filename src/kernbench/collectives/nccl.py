"""Which algorithm and protocol NCCL picks, by its own estimates; they select, and give no time.

Source: NCCL 2.2x, src/graph/tuning.cc (constants, tree correction: nccl.yaml) and src/enqueue.cc.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log2

from kernbench.hardware import CollectivesSpec, NcclTable
from kernbench.inputs import shipped_yaml

_CONSTANTS = shipped_yaml("kernbench.collectives", "nccl.yaml")
_NVLS_US = 25.0
_NVLS_LINKS_SHARE = 15 / 16


@dataclass(frozen=True, slots=True)
class Estimate:
    """A line of the table: NCCL's estimate of the time of a choice."""

    algorithm: str
    protocol: str
    time_us: float


def estimates(
    op: str, num_ranks: int, size_bytes: int, library: CollectivesSpec
) -> tuple[Estimate, ...]:
    """Return NCCL's estimates inside one node, best first; none for ops that it has no table for.

    ``size_bytes`` is the message as nccl-tests counts it.
    """
    table = library.nccl
    if table is None or op not in _STEPS:
        return ()
    ring = list(_ring(op, num_ranks, size_bytes, table, library.channels))
    if op == "all_reduce":
        ring += _tree(num_ranks, size_bytes, table, library.channels)
        if table.nvls_efficiency is not None and num_ranks >= (table.nvls_min_ranks or 2):
            gbps = float(table.link_gbps * table.nvls_efficiency) * _NVLS_LINKS_SHARE
            ring.append(Estimate("in_switch", "simple", _NVLS_US + size_bytes / (1e3 * gbps)))
    return tuple(sorted(ring, key=lambda estimate: estimate.time_us))


_STEPS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "broadcast": 1, "reduce": 1}
"""How many times data passes around the ring."""


def covers(op: str) -> bool:
    """Return whether the table has a line for the op; others are made of sends and receives."""
    return op in _STEPS


def _ring(op: str, n: int, size_bytes: int, table: NcclTable, channels: int) -> Iterator[Estimate]:
    steps = _STEPS[op] * (n - 1)
    # What one rank forwards of the message: all of it in a chain from or to a root.
    ratio = 1.0 if op in ("broadcast", "reduce") else n / max(steps, 1)
    base_us, hop_us = _CONSTANTS["base_us"], _CONSTANTS["ring_hop_us"][table.hop]
    for protocol, gbps in _ring_gbps(table, channels).items():
        latency_us = base_us[protocol] + steps * hop_us[protocol]
        yield Estimate("ring", protocol, latency_us + size_bytes / (1e3 * gbps * ratio))


def _ring_gbps(table: NcclTable, channels: int) -> dict[str, float]:
    link = float(table.link_gbps)
    rates = {"ll": min(float(table.ll_max_gbps), link / 2)}
    if table.ll128_per_channel_gbps is not None:
        rates["ll128"] = min(0.92 * link, channels * float(table.ll128_per_channel_gbps))
    return {**rates, "simple": link}


def _tree(n: int, size_bytes: int, table: NcclTable, channels: int) -> Iterator[Estimate]:
    link = min(0.92 * float(table.link_gbps), channels * float(table.tree_per_channel_gbps))
    rates = {"ll": link / 3.8, "simple": link}
    if table.ll128_per_channel_gbps is not None:
        rates["ll128"] = link * 7 / 9
    base_us, hop_us = _CONSTANTS["tree_base_us"], _CONSTANTS["tree_hop_us"][table.hop]
    for protocol, gbps in rates.items():
        latency_us = base_us[protocol] + 2 * (n - 1) * hop_us[protocol]
        place = int(log2(max(size_bytes / 64, 1)))
        corrections = _CONSTANTS["tree_correction"][protocol]
        correction = corrections[place] if place < len(corrections) else 1.0
        time_us = latency_us + size_bytes / (1e3 * gbps * correction / 2)
        yield Estimate("double_tree", protocol, time_us)
