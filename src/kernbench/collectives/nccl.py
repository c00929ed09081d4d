"""Which algorithm and protocol NCCL picks, by its own estimates; they select, and give no time.

Source: NCCL 2.2x, src/graph/tuning.cc (constants, tree correction) and src/enqueue.cc.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log2

from kernbench.hardware import CollectivesSpec, NcclTable

_BASE_US = {"ll": 6.6, "ll128": 14.0, "simple": 8.4}
_TREE_BASE_US = {"ll": 6.8, "ll128": 14.0, "simple": 8.4}
_RING_HOP_US = {
    "nvlink": {"ll": 0.6, "ll128": 1.9, "simple": 3.4},
    "pcie": {"ll": 1.0, "ll128": 2.5, "simple": 5.7},
}
_TREE_HOP_US = {
    "nvlink": {"ll": 0.6, "ll128": 1.25, "simple": 4.0},
    "pcie": {"ll": 1.0, "ll128": 1.9, "simple": 4.0},
}
_NVLS_US = 25.0
_NVLS_LINKS_SHARE = 15 / 16

# By log2 of the size in units of 64 bytes.
_TREE_CORRECTION = {
    "ll": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    "ll128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, *(0.6,) * 6, 0.8, 0.9, 0.9, 0.9, 0.9),
    "simple": (
        *(0.9,) * 7,
        0.8,
        0.7,
        0.6,
        0.6,
        *(0.5,) * 4,
        0.6,
        0.7,
        0.8,
        0.7,
        0.7,
        0.8,
        0.9,
        0.9,
    ),
}


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
    for protocol, gbps in _ring_gbps(table, channels).items():
        latency_us = _BASE_US[protocol] + steps * _RING_HOP_US[table.hop][protocol]
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
    for protocol, gbps in rates.items():
        latency_us = _TREE_BASE_US[protocol] + 2 * (n - 1) * _TREE_HOP_US[table.hop][protocol]
        place = int(log2(max(size_bytes / 64, 1)))
        corrections = _TREE_CORRECTION[protocol]
        correction = corrections[place] if place < len(corrections) else 1.0
        time_us = latency_us + size_bytes / (1e3 * gbps * correction / 2)
        yield Estimate("double_tree", protocol, time_us)
