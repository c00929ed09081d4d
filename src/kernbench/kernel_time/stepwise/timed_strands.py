"""A kernel on the PEs of a SIP, a few commands at a time, while others run (ADR-0032).

``schedule_kernel`` needs all that a launch does. What waits for other ranks is known only on the
way: so programs that run in step are a *strand*, and the commands that they come to are timed one
part after the other, by the rules and costs of ``queues`` and ``command_costs``. Queues belong to
PEs and outlive a part; programs of several strands on a PE share them.

A part is a run of commands that no other program can notice (:meth:`TimedStrands.run`), or one
access that goes to another SIP or that others may see or change, which has an :class:`Issue`: it is
known when it could begin, and whoever drives the clock then lets it begin.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kernbench.commands import (
    Atomic,
    Command,
    DmaRead,
    DmaWrite,
    Loop,
    Math,
    MathClass,
    SourceLine,
    Tile,
    Transfer,
    access_of,
    walk,
    with_access,
)
from kernbench.dtypes import Array
from kernbench.hardware import Machine
from kernbench.kernel_time.program.pipeline import PipelineRun, SiteTimes
from kernbench.kernel_time.program.queues import Queue, QueueStep, SipQueues
from kernbench.kernel_time.program.timed_plan import (
    CommandSite,
    LoopNode,
    Node,
    ProgramPlan,
    build_program_plan,
)
from kernbench.kernel_time.stepwise.strand_costs import PartCosts, StrandCosts
from kernbench.kernel_time.stepwise.strand_log import ProgramRange, StrandLog
from kernbench.links import Network
from kernbench.op_log import Template

Travel = Callable[[CommandSite, int, int], int]
"""From a site, its start and when its queue is free again to when the access is done."""


class FarRun(PipelineRun):
    """A run that pauses at every access to another SIP until the clock reaches it, trip by trip."""

    def __init__(self, plan: ProgramPlan, times: SiteTimes, far: set[int], travel: Travel) -> None:
        """Prepare the run of a plan whose sites ``far`` leave the SIP."""
        super().__init__(plan, times, True)
        self.plan, self.far, self.travel = plan, far, travel

    def far_nodes(
        self, nodes: tuple[Node, ...], floor: int
    ) -> Generator[int, None, tuple[int, int]]:
        """Do as :meth:`nodes`, step by step."""
        end = floor
        for node in nodes:
            if isinstance(node, LoopNode):
                if self.far.isdisjoint(node.sites):
                    floor = self.loop(node, floor)
                else:
                    floor = yield from self.far_loop(node, floor)
                end = max(end, floor)
            elif node.site in self.far:
                travel = partial(self.travel, self.plan.sites[node.site])
                end = max(end, (yield from self.step_by(node, floor, travel)))
            else:
                end = max(end, self.nodes((node,), floor)[1])
        return floor, end

    def far_loop(self, node: LoopNode, floor: int) -> Generator[int, None, int]:
        """Do as :meth:`loop`, one iteration after the other."""
        varying = [site for site in node.sites if node.loop_id in self.varies_over[site]]
        outer = {site: self.cost[site] for site in varying}
        self.hand_on(node.args, node.inits)
        ends = deque([floor] * node.in_flight, maxlen=node.in_flight)
        for iteration in range(node.trip_count):
            for site, costs in outer.items():
                self.cost[site] = costs[iteration]  # type: ignore[index]  # varies over this loop
            _, end = yield from self.far_nodes(node.body, ends[0])
            self.hand_on(node.args, node.yields)
            ends.append(end)
        for site, costs in outer.items():
            self.cost[site] = costs
        for arg, result in zip(node.args, node.results, strict=True):
            self.ready[result] = self.ready[arg]
        return max(ends)


@dataclass(slots=True, eq=False)
class TimedStrand:
    """Programs that run in step, each on a PE of its own."""

    program_ids: Array
    pes: Array
    floor_ps: int
    """Nothing that comes later in the program starts before."""
    ready: list[int]
    """When the value of each slot is there."""
    extents: dict[int, tuple[int, ...]]
    """The shape of each view of one tile, by its slot, with 1 along axes where nothing varies."""
    stored_ps: int
    """When all that it has written is there."""
    fence_ps: int
    """The same for what operations before the present one have written."""
    acquired_ps: int
    """When the present operation has acquired what it acquires."""
    end_ps: int
    """When all that it has done is over."""

    @property
    def programs(self) -> ProgramRange:
        return ProgramRange(int(self.program_ids[0]), len(self.program_ids), int(self.pes[0]))

    def take(self, positions: Array) -> TimedStrand:
        """Return the strand of some of the programs."""
        return replace(
            self,
            program_ids=self.program_ids[positions],
            pes=self.pes[positions],
            ready=list(self.ready),
            extents=dict(self.extents),
        )


@dataclass(frozen=True, slots=True)
class Issue:
    """One access that is ready to be issued."""

    site: CommandSite
    reads: tuple[int, ...]
    costs: PartCosts
    peer: tuple[int, int] | None
    """SIP and rank that it goes to; None: it stays."""


@dataclass(frozen=True, slots=True)
class IssueOutcome:
    """When an access takes effect, and when it is done."""

    effect_ps: int
    """When memory is looked at, or changed."""
    done_ps: int
    """When the value is there, or it is certain that memory has changed."""


class TimedStrands:
    """The PEs of one SIP during one launch."""

    def __init__(
        self, machine: Machine, sip_id: int, network: Network, costs: StrandCosts, start_ps: int
    ) -> None:
        self.sip = machine.sip_at(sip_id)
        self.sip_id = sip_id
        self.start_ps = start_ps
        self.num_pes = costs.num_pes
        self.active = 0
        """Programs that run, and do not wait for memory to change."""
        self.peers: dict[int, tuple[int, int]] = {}
        """SIP and rank behind the parameters that lead to another SIP."""
        self.log = StrandLog(self.sip, start_ps)
        self._machine = machine
        self._network = network
        self._costs = costs
        begin_ps = self.begin_ps = start_ps + costs.front_end_ps
        """When the SIP's front end has passed the launch on."""
        self._queues = SipQueues(self.sip.num_pes, begin_ps)

    def begin(self, program_ids: Array, pes: Array, at_ps: int) -> TimedStrand:
        """Return a new strand, which starts once the SIP's front end has passed the launch on."""
        begin_ps = max(at_ps, self.begin_ps)
        return TimedStrand(
            program_ids, pes, begin_ps, [], {}, begin_ps, begin_ps, begin_ps, begin_ps
        )

    def template(self, name: str, end_ps: int, value: Mapping[str, Any]) -> Template:
        """Return what the launch did; ``given`` is what it was launched with."""
        return self.log.template(name, end_ps, value)

    def run(self, strand: TimedStrand, commands: tuple[Command, ...], num_slots: int) -> int:
        """Time commands that stay on the SIP; return when the last of them has ended."""
        plan = build_program_plan(commands, num_slots)
        if plan.sites:
            costs = self._part_costs(strand, commands, num_slots)
            run = PipelineRun(plan, costs.program.times, True)
            self._load(run, strand, num_slots)
            self._settle(strand, plan, costs, run, *run.nodes(plan.nodes, strand.floor_ps))
        self._pass_views(strand, commands, num_slots)
        return strand.end_ps

    def far_loops(
        self, strand: TimedStrand, loop: Loop, num_slots: int
    ) -> Generator[int, None, int]:
        """Time a loop with accesses to other SIPs, and return when it has ended.

        Yields when the next access begins, and takes the links when it is resumed.
        """
        plan = build_program_plan((loop,), num_slots)
        costs = self._part_costs(strand, (loop,), num_slots)
        far = {site.index for site in plan.sites if self._peer_rank(site) >= 0}
        run = FarRun(
            plan,
            costs.program.times,
            far,
            lambda site, start, free: self._travel(strand, site, costs, start, free).done_ps,
        )
        self._load(run, strand, num_slots)
        floor_ps, end_ps = yield from run.far_nodes(plan.nodes, strand.floor_ps)
        self._settle(strand, plan, costs, run, floor_ps, end_ps)
        return end_ps

    def reaches_out(self, command: Command) -> bool:
        """Whether a command, or one in a loop, goes to another SIP."""
        return any(
            access_of(node).param in self.peers
            for node in walk((command,))
            if isinstance(node, DmaRead | DmaWrite | Atomic)
        )

    def decide(self, strand: TimedStrand) -> None:
        """Time a decision by data: one operation on one element, before all that follows."""
        engine = self.sip.pe.math
        rate = engine.elements_per_clock.simple
        cost_ps = self.sip.cycles_ps(engine.startup_cycles + -(-1 // rate))
        free = max(strand.floor_ps, self._queues.free_ps(Queue.MATH, strand.pes)) + cost_ps
        self._queues.take(Queue.MATH, strand.pes, free)
        self.hold(strand, free)

    def begin_operation(self, strand: TimedStrand) -> None:
        """Treat the accesses that follow as one operation's: they do not wait for each other."""
        strand.fence_ps = strand.stored_ps

    def end_operation(self, strand: TimedStrand) -> None:
        """Make what follows wait for the loads of an acquire operation."""
        strand.floor_ps = max(strand.floor_ps, strand.acquired_ps)

    def hold(self, strand: TimedStrand, until_ps: int) -> None:
        """Start nothing more of a strand before a given time."""
        strand.floor_ps = max(strand.floor_ps, until_ps)
        strand.end_ps = max(strand.end_ps, until_ps)

    def wait(self, strand: TimedStrand, line: SourceLine, until_ps: int) -> None:
        """Resume a strand at a time; it has waited since it could last act."""
        if until_ps > strand.floor_ps:
            self.log.waited(line, strand.programs, strand.floor_ps, until_ps)
        self.hold(strand, until_ps)

    # -- single accesses ----------------------------------------------------------------------

    def issue(self, strand: TimedStrand, command: Transfer, num_slots: int) -> Issue:
        """Return an access of a strand, ready to begin."""
        command = _with_rows(command, strand.extents)
        plan = build_program_plan((command,), num_slots)
        _grow(strand.ready, num_slots)
        (node,) = plan.nodes
        assert isinstance(node, QueueStep)
        costs = self._part_costs(strand, (command,), num_slots)
        return Issue(plan.sites[0], node.reads, costs, self.peers.get(access_of(command).param))

    def earliest_ps(self, strand: TimedStrand, issue: Issue) -> int:
        """Return when an access can begin, as far as it is known now."""
        start = max(strand.floor_ps, self._queues.free_ps(issue.site.queue, strand.pes))
        command = issue.site.command
        if isinstance(command, Atomic) and command.order in ("release", "acq_rel"):
            start = max(start, strand.fence_ps)
        return max([start, *(strand.ready[slot] for slot in issue.reads)])

    def start(self, strand: TimedStrand, issue: Issue, start_ps: int) -> IssueOutcome:
        """Begin an access."""
        site, costs = issue.site, issue.costs
        occupancy = costs.program.times.occupancy_ps[0]
        assert isinstance(occupancy, int)
        free = start_ps + occupancy
        self._queues.take(site.queue, strand.pes, free)
        if issue.peer is None:
            outcome = self._here(issue, free)
            self.log.hbm_bytes += costs.program.hbm_bytes * len(strand.program_ids)
        else:
            outcome = self._travel(strand, site, costs, start_ps, free)
        peer = -1 if issue.peer is None else issue.peer[1]
        self.log.ran(
            site, strand.programs, start_ps, outcome.done_ps, occupancy, costs.useful_bytes[0], peer
        )
        command = site.command
        strand.end_ps = max(strand.end_ps, outcome.done_ps)
        if not isinstance(command, DmaRead):
            strand.stored_ps = max(strand.stored_ps, outcome.done_ps)
        if isinstance(command, Atomic) and command.order in ("acquire", "acq_rel"):
            strand.acquired_ps = max(strand.acquired_ps, outcome.done_ps)
        dst = None if isinstance(command, DmaWrite) else command.dst  # type: ignore[union-attr]
        if isinstance(dst, Tile):
            strand.ready[dst.slot] = outcome.done_ps
            strand.extents.pop(dst.slot, None)
        return outcome

    def _here(self, issue: Issue, free_ps: int) -> IssueOutcome:
        done = free_ps + issue.costs.program.times.latency_ps[0]
        command = issue.site.command
        looks = isinstance(command, DmaRead) or (
            isinstance(command, Atomic) and command.dst is not None
        )
        return IssueOutcome(free_ps if looks else done, done)

    def _travel(
        self, strand: TimedStrand, site: CommandSite, costs: PartCosts, start_ps: int, free_ps: int
    ) -> IssueOutcome:
        """Take the links for one run of an access to another SIP.

        A load's request and the answer to what is written take the latency of their way; the bytes
        take the links, and the memory at the far end as long as it streams them.
        """
        command = site.command
        assert isinstance(command, DmaRead | DmaWrite | Atomic)
        sip_id, rank = self.peers[access_of(command).param]
        network, there = self._network, self._machine.sip_at(sip_id)
        size_bytes = costs.burst_bytes[site.index]
        memory_ps = there.hbm_latency_ps
        if isinstance(command, DmaRead):
            asked = start_ps + network.latency_ps(self.sip_id, sip_id)
            passage = network.transfer(sip_id, self.sip_id, size_bytes, asked + memory_ps)
            streamed = passage.head_ps + there.hbm_stream_ps(size_bytes)
            done = max(passage.tail_ps, streamed, free_ps)
            effect = asked if command.volatile else start_ps
        else:
            passage = network.transfer(self.sip_id, sip_id, size_bytes, start_ps)
            effect = max(passage.tail_ps, free_ps)
            effect = max(effect, passage.head_ps + there.hbm_stream_ps(size_bytes))
            done = effect + memory_ps + network.latency_ps(sip_id, self.sip_id)
        self.log.passed(site, strand.programs, passage, size_bytes, rank)
        return IssueOutcome(effect, done)

    # -- parts --------------------------------------------------------------------------------

    def _part_costs(
        self, strand: TimedStrand, commands: tuple[Command, ...], num_slots: int
    ) -> PartCosts:
        count = len(strand.program_ids)
        active = min(max(self.active, count), self.num_pes)
        return self._costs.of(commands, count, num_slots, active, frozenset(self.peers))

    def _load(self, run: PipelineRun, strand: TimedStrand, num_slots: int) -> None:
        """Resume a run from the state of the strand's queues and values."""
        _grow(strand.ready, num_slots)
        run.ready = strand.ready
        run.queue = self._queues.on(strand.pes)

    def _settle(
        self,
        strand: TimedStrand,
        plan: ProgramPlan,
        costs: PartCosts,
        run: PipelineRun,
        floor_ps: int,
        end_ps: int,
    ) -> None:
        """Apply what a run did to the strand, and record it."""
        program = costs.program
        began = min((time for time in run.first if time >= 0), default=strand.floor_ps)
        # What the SIP's programs share may not keep up with one PE's queues.
        behind = max(began + program.least_ps - end_ps, 0)
        end_ps += behind
        used = {site.queue for site in plan.sites}
        self._queues.settle(strand.pes, used, [time + behind for time in run.queue])
        for node in plan.nodes:
            for slot in node.writes if isinstance(node, QueueStep) else node.results:
                strand.ready[slot] += behind
        if floor_ps > strand.floor_ps:
            # What follows a loop starts after it.
            strand.floor_ps = floor_ps + behind
        strand.end_ps = max(strand.end_ps, end_ps)
        self.log.hbm_bytes += program.hbm_bytes * len(strand.program_ids)
        for site in plan.sites:
            if run.first[site.index] < 0:
                continue
            peer = self._peer_rank(site)
            self.log.ran(
                site,
                strand.programs,
                run.first[site.index],
                run.last[site.index] + behind,
                program.busy_ps[site.index],
                costs.useful_bytes[site.index] * site.count,
                peer,
            )
            if isinstance(site.command, DmaWrite | Atomic):
                strand.stored_ps = max(strand.stored_ps, run.last[site.index] + behind)

    def _peer_rank(self, site: CommandSite) -> int:
        if not isinstance(site.command, DmaRead | DmaWrite | Atomic):
            return -1
        return self.peers.get(access_of(site.command).param, (-1, -1))[1]

    def _pass_views(
        self, strand: TimedStrand, commands: tuple[Command, ...], num_slots: int
    ) -> None:
        """A view is there when what it views is."""
        _grow(strand.ready, num_slots)
        for command in commands:
            if not isinstance(command, Math):
                continue
            slot = command.dst.slot
            strand.extents.pop(slot, None)
            if command.cost is MathClass.FREE:
                tiles = [tile for tile in command.inputs if isinstance(tile, Tile)]
                strand.ready[slot] = max((strand.ready[tile.slot] for tile in tiles), default=0)
                if len(tiles) == 1:
                    strand.extents[slot] = _extent(command, tiles[0], strand.extents)


def _grow(ready: list[int], num_slots: int) -> None:
    if len(ready) < num_slots:
        ready.extend([0] * (num_slots - len(ready)))


def _extent(command: Math, tile: Tile, extents: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the extent of a view of a tile."""
    extent = extents.get(tile.slot, tile.shape)
    if command.op == "tt.expand_dims":
        axis = int(command.attrs["axis"])
        return (*extent[:axis], 1, *extent[axis:])
    if command.op == "tt.trans":
        return tuple(extent[axis] for axis in command.attrs["order"])
    if command.op == "tt.splat":
        return (1,) * len(command.dst.shape)
    return extent if command.op == "tt.broadcast" else command.dst.shape


def _with_rows(command: Transfer, extents: dict[int, tuple[int, ...]]) -> Transfer:
    """Return a gather without broadcast: each of its distinct addresses once."""
    access = access_of(command)
    if access.gather is None or access.gather.slot not in extents:
        return command
    rows = Tile(access.gather.slot, extents[access.gather.slot], access.gather.dtype)
    return with_access(command, replace(access, gather=rows))
