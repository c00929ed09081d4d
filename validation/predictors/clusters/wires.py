"""Exchanges of a job's groups on the links of its machine, each on otherwise idle links."""

from __future__ import annotations

from functools import lru_cache

from kernbench.hardware import Machine, changed_machine
from kernbench.links import Asked
from kernbench.plans import collective_us, node_of, single_sips

_MOST_RANKS = 4096


class ClusterWires:
    """Times exchanges of one machine of nodes."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.node = node_of(machine)
        self.time = lru_cache(maxsize=4096)(self._time)

    def _time(self, op: str, ranks: int, stride: int, size_bytes: int) -> float:
        """Return the time of a collective among every ``stride``-th rank.

        ``size_bytes`` are of the whole tensor: what each has in the end, or at first.
        """
        if ranks == 1 or not size_bytes:
            return 0.0
        elements = -(-size_bytes // 2 // ranks) * ranks
        asked = Asked(op, ranks, elements, 2)
        if self.node and stride % self.node == 0:
            machine = single_sips(self._machine, ranks)
            return collective_us(machine, asked, tuple(range(ranks)))
        machine = self._spread(ranks * stride)
        return collective_us(machine, asked, tuple(range(0, ranks * stride, stride)))

    def send(self, stride: int, size_bytes: int) -> float:
        """Return the time of a message to the rank ``stride`` further."""
        asked = Asked("send_recv", 2, -(-size_bytes // 2), 2)
        return collective_us(self._spread(2 * stride), asked, (0, stride))

    def experts(self, ranks: int, top_k: int, rows_bytes: float, shared: float) -> float:
        """Return the time in which a rank's rows come to their experts, or back.

        A token goes once to each node where it has an expert (``shared`` times as often), and there
        to each rank. Source: docs/model/collectives.md.
        """
        if ranks == 1:
            return 0.0
        links = self._machine.spec.links
        assert links is not None
        node = min(self.node or ranks, ranks)
        nodes = ranks // node
        inside = ranks * (1 - (1 - 1 / ranks) ** top_k) * (1 - 1 / node)
        time_us = rows_bytes * inside / (_SHARE * float(links.bandwidth_gbps) * 1e3)
        if nodes > 1:
            assert links.scale_out is not None
            met = nodes * (1 - (1 - 1 / nodes) ** top_k) * (1 - 1 / nodes) * shared
            wire = float(links.scale_out.bandwidth_gbps) * _SHARE_BETWEEN * 1e3
            time_us = max(time_us, rows_bytes * met / wire)
        return time_us + _LATENCY_US

    def _spread(self, ranks: int) -> Machine:
        """Return the machine with as many whole nodes as ranks fill."""
        room = -(-ranks // self.node) * self.node if self.node else ranks
        return changed_machine(self._machine, {}, num_sips=room)


_SHARE, _SHARE_BETWEEN = 0.66, 0.9
_LATENCY_US = 30.0


class TorusWires:
    """Times exchanges on a torus of chips, and between several: all links of an axis at once.

    Source of the bandwidth between slices: jax-ml/scaling-book, by chip.
    """

    node = 0

    def __init__(self, machine: Machine) -> None:
        links = machine.spec.links
        assert links is not None
        self._axis_gbps = 2 * float(links.bandwidth_gbps)
        self._axes = 3 if links.topology == "torus3d" else 2
        self._latency_us = float(links.latency_ns) / 1e3
        self._between_gbps = 3.125 if self._axes == 2 else 6.25

    def time(self, op: str, ranks: int, stride: int, size_bytes: int) -> float:
        """Return the time of a collective among every ``stride``-th chip."""
        if ranks == 1:
            return 0.0
        rounds = 2 if op == "all_reduce" else 1
        if op == "all_reduce":
            rate = self._between_gbps
        elif stride == 1 and ranks <= _ONE_AXIS:
            rate = self._axis_gbps
        else:
            rate = self._axis_gbps * (self._axes - (stride > 1))
        moved = size_bytes * (ranks - 1) / ranks / (rate * 1e3)
        return rounds * (moved + self._latency_us * float(ranks ** (1 / self._axes)))

    def send(self, stride: int, size_bytes: int) -> float:
        """Return the time of a message to a chip beside."""
        return size_bytes / (self._axis_gbps / 2 * 1e3) + self._latency_us

    def experts(self, ranks: int, top_k: int, rows_bytes: float, shared: float) -> float:
        """Return the time of an exchange of rows: a quarter of the ring's links carry each."""
        moved = rows_bytes * top_k * (ranks - 1) / ranks
        return moved * ranks / 8 / (self._axis_gbps * self._axes * 1e3)


_ONE_AXIS = 16
"""Chips along one axis of a slice; so many neighbours are on one."""
