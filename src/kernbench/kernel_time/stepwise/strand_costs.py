"""What commands cost when programs run them in step, a few commands at a time."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np

from kernbench.commands import (
    UNKNOWN_LINE,
    Atomic,
    Command,
    DmaRead,
    DmaWrite,
    Gemm,
    KernelTrace,
    Loop,
    Math,
    Predicate,
    ProgramGroup,
    Reduce,
    access_of,
    walk,
)
from kernbench.hardware import SipSpec, ceil_ps, ps_per_byte
from kernbench.kernel_time.conditions import Conditions
from kernbench.kernel_time.costs.command_costs import CostModel, ProgramCosts, Traffic
from kernbench.kernel_time.costs.shared_cache import SharedCache
from kernbench.kernel_time.costs.traffic import GroupSplit
from kernbench.kernel_time.launch.waves import pes_in_use
from kernbench.kernel_time.program.pipeline import SiteTimes
from kernbench.kernel_time.program.queues import on_port_ps
from kernbench.kernel_time.program.timed_plan import CommandSite


@dataclass(frozen=True, slots=True, eq=False)
class PartCosts:
    """The costs of a part, by the sites of its plan."""

    program: ProgramCosts
    """The costs of the programs that take longest. What leaves the SIP costs its queue the PE's
    port."""
    useful_bytes: tuple[int, ...]
    """What all programs of the strand move in one run of a site; 0 for one that moves nothing."""
    burst_bytes: tuple[int, ...]
    """The same in whole bursts."""


class StrandCosts:
    """Costs on one SIP; equal parts of equally many programs share them."""

    def __init__(self, sip: SipSpec, conditions: Conditions) -> None:
        self.sip = sip
        self.front_end_ps = sip.queued_front_end_ps if conditions.queued else sip.front_end_ps
        num_cubes, pes_per_cube = pes_in_use(sip, conditions)
        self.num_pes = num_cubes * pes_per_cube
        """How many PEs run programs."""
        self._conditions = conditions
        placed = [param for param, _ in conditions.placements]
        self._special = frozenset((*placed, *(param for param, _ in conditions.cached)))
        """Parameters whose memory costs something else than that of others."""
        self._known: dict[Hashable, PartCosts] = {}

    def of(
        self,
        commands: tuple[Command, ...],
        count: int,
        num_slots: int,
        active: int,
        far: frozenset[int],
    ) -> PartCosts:
        """Return the costs of commands.

        ``count`` programs run them in step while ``active`` programs share the SIP; parameters
        ``far`` point to another SIP.
        """
        key = (count, active, *(self._look(node, far) for node in walk(commands)))
        part_costs = self._known.get(key)
        if part_costs is None:
            part_costs = self._known[key] = self._build(commands, count, num_slots, active, far)
        return part_costs

    def _look(self, command: Command, far: frozenset[int]) -> tuple[Any, ...]:
        """Return what commands that cost the same have in common."""
        if isinstance(command, DmaRead | DmaWrite | Atomic):
            access = access_of(command)
            kind = command.kind if isinstance(command, Atomic) else ""
            if access.param in far:
                where = -2
            else:
                where = access.param if access.param in self._special else -1
            how = (
                type(command),
                kind,
                where,
                access.shape,
                access.dtype.name,
                None if access.gather is None else access.gather.shape,
            )
            # What counts is not where tiles lie, but how elements and programs lie to each other.
            pattern = blake2b(digest_size=16)
            for dims, array in access.offset.terms.items():
                pattern.update(repr((dims, array.shape)).encode())
                pattern.update((array - array.min()).tobytes())
            if isinstance(command.mask, Predicate):
                for dims, held in command.mask.terms.items():
                    pattern.update(repr((dims, held.shape)).encode())
                    pattern.update(held.tobytes())
            return (*how, pattern.digest())
        if isinstance(command, Gemm):
            operands = [
                (tile.shape, type(tile), str(getattr(getattr(tile, "dtype", None), "name", "")))
                for tile in (command.a, command.b)
            ]
            return (Gemm, *operands, command.precision)
        if isinstance(command, Math):
            return (Math, command.cost, command.dst.shape)
        if isinstance(command, Reduce):
            return (Reduce, *(tile.shape for tile in command.inputs))
        if isinstance(command, Loop):
            return (Loop, command.trip_count, len(command.body))
        return (type(command),)

    def _build(
        self,
        commands: tuple[Command, ...],
        count: int,
        num_slots: int,
        active: int,
        far: frozenset[int],
    ) -> PartCosts:
        trace = KernelTrace("", (count, 1, 1), 1, 1, (), num_slots, 0, UNKNOWN_LINE, ())
        ids = np.arange(count, dtype=np.int64)
        room = SharedCache(self.sip).room
        moves = GroupSplit(
            trace, ProgramGroup(ids, commands), count, self.sip.cube.hbm_burst_bytes, room, {}
        ).traffic()
        sites = moves.plan.sites
        leaving = [site.index for site in moves.dma_sites() if access_of(site.command).param in far]  # type: ignore[arg-type]
        model = CostModel(moves.plan, self.sip, self._conditions)
        useful, bursts = [0] * len(sites), [0] * len(sites)
        slowest: ProgramCosts | None = None
        for kind, programs in zip(moves.kinds, moves.num_programs(), strict=True):
            traffic = list(kind.program_class.traffic)
            for site, moved in zip(sites, traffic, strict=True):
                if moved is not None and site.count:
                    useful[site.index] += programs * moved.useful_bytes // site.count
                    bursts[site.index] += programs * moved.burst_bytes // site.count
            ports = {index: self._port_ps(sites[index], traffic[index]) for index in leaving}
            for index in leaving:
                traffic[index] = None
            sharing = replace(kind.sharing, active=active)
            counts = kind.program_class.counts
            costs = _leaving(model.program(traffic, counts, sharing), ports, sites)
            if slowest is None or sum(costs.busy_ps) > sum(slowest.busy_ps):
                slowest = costs
        assert slowest is not None
        return PartCosts(slowest, tuple(useful), tuple(bursts))

    def _port_ps(self, site: CommandSite, moved: Traffic | None) -> int:
        """Return how long a transfer to another SIP takes its queue."""
        assert moved is not None
        size_bytes = -(-moved.useful_bytes // max(site.count, 1))
        issue = self.sip.cycles_ps(self.sip.pe.dma_issue_cycles)
        port_ps = ceil_ps(ps_per_byte(self.sip.pe.dma_port_gbps) * size_bytes)
        return on_port_ps(issue, port_ps)


def _leaving(
    costs: ProgramCosts, ports: dict[int, int], sites: tuple[CommandSite, ...]
) -> ProgramCosts:
    """Return costs in which sites that leave the SIP occupy their port only."""
    if not ports:
        return costs
    occupancy, busy = list(costs.times.occupancy_ps), list(costs.busy_ps)
    for index, port_ps in ports.items():
        occupancy[index] = port_ps
        busy[index] = port_ps * sites[index].count
    times = SiteTimes(tuple(occupancy), costs.times.varies_over, costs.times.latency_ps)
    return replace(costs, times=times, busy_ps=tuple(busy))
