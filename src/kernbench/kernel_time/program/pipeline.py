"""When each command of one program starts and ends on its PE (ADR-0007).

Commands take the queues of the PE by the rules of ``queues``. A command of a loop also waits for
the TCM slots of its iteration: at most ``num_stages`` iterations of an innermost loop have them at
a time, and they come free when an iteration's last command ends. What follows a loop starts after
the loop.

These rules only add and take maxima, so a loop whose costs do not change soon repeats itself,
shifted in time. :class:`PipelineRun` steps until it does, and then jumps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kernbench.kernel_time.program.queues import Cost, PeQueues, Queue, QueueStep, Slots
from kernbench.kernel_time.program.timed_plan import ONE_PATH, LoopNode, Node, ProgramPlan


@dataclass(frozen=True, slots=True, eq=False)
class SiteTimes:
    """What every command of one program costs, by site."""

    occupancy_ps: tuple[Cost, ...]
    """How long its queue is taken."""
    varies_over: tuple[tuple[int, ...], ...]
    """Loops (by id, outermost first) that index the occupancy."""
    latency_ps: tuple[int, ...]
    """The time from when the queue is free again to when the result is there."""


@dataclass(frozen=True, slots=True)
class PipelineTimes:
    """When one program's commands run, from the program's start on."""

    end_ps: int
    first_start_ps: tuple[int, ...]
    """The first start of each site, -1 for one that never runs (a loop without iterations)."""
    last_end_ps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Steady:
    """A loop that repeats itself every ``period`` iterations, ``shift_ps`` later."""

    period: int
    shift_ps: int


# A loop that has not become steady within this many programs has its average taken as its pace.
_MOST_STEPS = 64
_PROGRAMS = -1


def interval_ps(
    plan: ProgramPlan, times: SiteTimes, in_flight: int, trips: Mapping[int, int] = ONE_PATH
) -> int:
    """Return the time from one program to the next on a PE that runs many of them.

    Programs follow each other like the iterations of a loop of which ``in_flight`` may have begun
    and not ended: one's loads run while another one computes.
    """
    programs = LoopNode(
        loop_id=_PROGRAMS,
        trip_count=_MOST_STEPS,
        in_flight=in_flight,
        body=plan.nodes,
        sites=range(len(plan.sites)),
    )
    run = PipelineRun(plan, times, True, trips)
    ends = deque([0] * in_flight, maxlen=in_flight)
    steady = run.iterations(programs, ends, _MOST_STEPS // 2)
    if steady is None:
        half = ends[-1]
        steady = run.iterations(programs, ends, _MOST_STEPS // 2)
        steady = steady or Steady(_MOST_STEPS // 2, ends[-1] - half)
    return -(-steady.shift_ps // steady.period)


@dataclass(frozen=True, slots=True, eq=False)
class SideBySide:
    """Several programs as one, which runs each command once for each of them."""

    plan: ProgramPlan
    times: SiteTimes
    count: int


def interval_in_turns_ps(turns: SideBySide, trips: Mapping[int, int] = ONE_PATH) -> int:
    """Return the time per program of a PE whose programs take turns, command by command.

    While one waits for a load, its engines work for the others. Then the next as many begin.
    """
    return -(-interval_ps(turns.plan, turns.times, 1, trips) // turns.count)


def side_by_side(plan: ProgramPlan, times: SiteTimes, count: int) -> SideBySide:
    """Return several programs as one, each with slots and sites of its own."""

    def own(slots: Slots, program: int) -> Slots:
        return tuple(slot + program * plan.num_slots for slot in slots)

    def everyones(slots: Slots) -> Slots:
        return tuple(slot for program in range(count) for slot in own(slots, program))

    def widened(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        queue_steps: list[Node] = []
        for node in nodes:
            if isinstance(node, QueueStep):
                queue_steps += [
                    QueueStep(
                        node.site * count + program,
                        node.queue,
                        own(node.reads, program),
                        own(node.writes, program),
                    )
                    for program in range(count)
                ]
                continue
            queue_steps.append(
                replace(
                    node,
                    body=widened(node.body),
                    sites=range(node.sites.start * count, node.sites.stop * count),
                    inits=tuple(own(s, p) for p in range(count) for s in node.inits),
                    args=everyones(node.args),
                    yields=tuple(own(s, p) for p in range(count) for s in node.yields),
                    results=everyones(node.results),
                    invariants=everyones(node.invariants),
                )
            )
        return tuple(queue_steps)

    sites = tuple(site for site in plan.sites for _ in range(count))
    together = ProgramPlan(widened(plan.nodes), sites, plan.num_slots * count)
    costs = SiteTimes(
        tuple(cost for cost in times.occupancy_ps for _ in range(count)),
        tuple(loops for loops in times.varies_over for _ in range(count)),
        tuple(latency for latency in times.latency_ps for _ in range(count)),
    )
    return SideBySide(together, costs, count)


class PipelineRun(PeQueues):
    """One program's run through the queues of its PE, loops included."""

    def __init__(
        self, plan: ProgramPlan, times: SiteTimes, jump: bool, trips: Mapping[int, int] = ONE_PATH
    ) -> None:
        super().__init__(len(plan.sites), plan.num_slots, times.occupancy_ps, times.latency_ps)
        self.plan = plan
        self.trips = trips
        self.varies_over = times.varies_over
        self.varies = any(times.varies_over)
        self.jump = jump
        self._queues: dict[int, set[Queue]] = {}
        """The queues that the commands of each loop take."""
        self.periods: set[int] = set()
        """The periods of all loops that were seen to repeat themselves."""

    def times(self) -> PipelineTimes:
        """Run the whole program."""
        _, end = self.nodes(self.plan.nodes, 0)
        return PipelineTimes(end, tuple(self.first), tuple(self.last))

    def loop(self, node: LoopNode, floor: int) -> int:
        """Run a loop and return when all of it has ended."""
        varying: Sequence[int] = ()
        if self.varies:
            varying = [site for site in node.sites if node.loop_id in self.varies_over[site]]
        outer = {site: self.cost[site] for site in varying}
        self.hand_on(node.args, node.inits)
        # When the iterations ended that may still hold TCM slots, oldest first.
        ends = deque([floor] * node.in_flight, maxlen=node.in_flight)
        count = self.trips.get(node.loop_id, node.trip_count)
        for first, last in _equal_runs(count, outer):
            for site, costs in outer.items():
                self.cost[site] = costs[first]  # type: ignore[index]  # varies over this loop
            self.iterations(node, ends, last - first)
        for site, costs in outer.items():
            self.cost[site] = costs
        for arg, result in zip(node.args, node.results, strict=True):
            self.ready[result] = self.ready[arg]
        return ends[-1]

    def iterations(self, node: LoopNode, ends: deque[int], count: int) -> Steady | None:
        """Run ``count`` iterations of equal costs; return how they repeat, if that was seen."""
        steady: Steady | None = None
        seen: dict[tuple[int, ...], tuple[int, int]] | None = {} if self.jump else None
        done = 0
        while done < count:
            _, end = self.nodes(node.body, ends[0])
            self.hand_on(node.args, node.yields)
            ends.append(end)
            done += 1
            if seen is None or done == count:
                continue
            before = seen.setdefault(self._state(node, ends), (done, end))
            if before[0] < done:
                steady = Steady(done - before[0], end - before[1])
                self.periods.add(steady.period)
                repeats = (count - done) // steady.period
                self._shift(node, ends, repeats * steady.shift_ps)
                done += repeats * steady.period
                seen = None
        return steady

    def hand_on(self, args: Sequence[int], sources: Sequence[Sequence[int]]) -> None:
        """Make what a loop carries ready when all its sources are."""
        times = [max([self.ready[slot] for slot in slots], default=0) for slots in sources]
        for arg, time in zip(args, times, strict=True):
            self.ready[arg] = time

    def _state(self, node: LoopNode, ends: deque[int]) -> tuple[int, ...]:
        """Return everything that the next iterations depend on, from their earliest start on."""
        base = ends[0]
        times = [*self.queue, *ends]
        times += [self.ready[slot] for slot in node.args]
        # What never changes again matters only while it is not ready.
        times.append(max([self.ready[slot] for slot in node.invariants], default=0))
        return tuple([time - base if time > base else 0 for time in times])

    def _queues_of(self, node: LoopNode) -> set[Queue]:
        queues = self._queues.get(node.loop_id)
        if queues is None:
            queues = self._queues[node.loop_id] = set()
            for queue_step in node.body:
                queues |= (
                    {queue_step.queue}
                    if isinstance(queue_step, QueueStep)
                    else self._queues_of(queue_step)
                )
        return queues

    def _shift(self, node: LoopNode, ends: deque[int], by: int) -> None:
        """Jump ahead: shift all that the loop has touched by ``by``."""
        for queue in self._queues_of(node):
            self.queue[queue] += by
        for slot in node.args:
            self.ready[slot] += by
        for site in node.sites:
            if self.last[site] >= 0:
                self.last[site] += by
        for _ in range(len(ends)):
            ends.append(ends[0] + by)


def _equal_runs(trip_count: int, costs: Mapping[int, Cost]) -> list[tuple[int, int]]:
    """Return the ranges of iterations in which no cost changes."""
    tables: Sequence[Cost] = list(costs.values())
    if not tables:
        return [(0, trip_count)] if trip_count else []
    bounds = [0]
    bounds += [
        index
        for index in range(1, trip_count)
        if any(table[index] != table[index - 1] for table in tables)  # type: ignore[index]
    ]
    return list(zip(bounds, [*bounds[1:], trip_count], strict=True)) if trip_count else []
