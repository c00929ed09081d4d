"""The rules of ``queues`` and ``pipeline`` once more, event by event: the oracle of their tests.

Every iteration of every loop becomes commands of its own, each queue of the PE a process that
takes its commands in order, and every wait an event.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import simpy

from kernbench.kernel_time.program.pipeline import PipelineTimes, SiteTimes
from kernbench.kernel_time.program.queues import Cost, Queue, QueueStep
from kernbench.kernel_time.program.timed_plan import LoopNode, Node, ProgramPlan


@dataclass(slots=True)
class _Issued:
    site: int
    occupancy_ps: int
    latency_ps: int
    waits_for: list[simpy.Event]
    done: simpy.Event


@dataclass(slots=True)
class _Reference:
    plan: ProgramPlan
    times: SiteTimes
    env: simpy.Environment = field(default_factory=simpy.Environment)
    queues: list[list[_Issued]] = field(default_factory=lambda: [[] for _ in Queue])
    ready: dict[int, list[simpy.Event]] = field(default_factory=dict)
    starts: dict[int, list[int]] = field(default_factory=dict)
    ends: dict[int, list[int]] = field(default_factory=dict)

    def issue(
        self, nodes: tuple[Node, ...], gates: list[simpy.Event], iteration: dict[int, int]
    ) -> tuple[list[simpy.Event], list[simpy.Event]]:
        """Queue ``nodes``; return the gates of what follows, and the ends of all commands."""
        ends: list[simpy.Event] = []
        for node in nodes:
            if isinstance(node, QueueStep):
                ends.append(self._issue_step(node, gates, iteration))
            else:
                of_loop = self._issue_loop(node, gates, iteration)
                gates = gates + of_loop
                ends += of_loop
        return gates, ends

    def _issue_step(
        self, node: QueueStep, gates: list[simpy.Event], iteration: dict[int, int]
    ) -> simpy.Event:
        operands = [event for slot in node.reads for event in self.ready.get(slot, [])]
        cost: Cost = self.times.occupancy_ps[node.site]
        for loop_id in self.times.varies_over[node.site]:
            assert isinstance(cost, tuple)
            cost = cost[iteration[loop_id]]
        assert isinstance(cost, int)
        done = self.env.event()
        latency = self.times.latency_ps[node.site]
        self.queues[node.queue].append(_Issued(node.site, cost, latency, [*gates, *operands], done))
        for slot in node.writes:
            self.ready[slot] = [done]
        return done

    def _issue_loop(
        self, node: LoopNode, gates: list[simpy.Event], iteration: dict[int, int]
    ) -> list[simpy.Event]:
        self._assign(node.args, node.inits)
        over: list[list[simpy.Event]] = []
        for index in range(node.trip_count):
            slots_free = over[index - node.in_flight] if index >= node.in_flight else []
            inside = {**iteration, node.loop_id: index}
            _, ends = self.issue(node.body, gates + slots_free, inside)
            over.append([simpy.AllOf(self.env, ends)])
            self._assign(node.args, node.yields)
        self._assign(node.results, [(arg,) for arg in node.args])
        return [event for events in over for event in events]

    def _assign(self, slots: Sequence[int], sources: Sequence[Sequence[int]]) -> None:
        values = [[e for slot in group for e in self.ready.get(slot, [])] for group in sources]
        self.ready.update(zip(slots, values, strict=True))

    def serve(self, queue: list[_Issued]) -> Generator[simpy.Event, Any, None]:
        """Take the commands of one queue in order."""
        for command in queue:
            yield simpy.AllOf(self.env, command.waits_for)
            self.starts.setdefault(command.site, []).append(int(self.env.now))
            yield self.env.timeout(command.occupancy_ps)
            self.env.process(self._deliver(command))

    def _deliver(self, command: _Issued) -> Generator[simpy.Event, Any, None]:
        yield self.env.timeout(command.latency_ps)
        self.ends.setdefault(command.site, []).append(int(self.env.now))
        command.done.succeed()


def run_reference(plan: ProgramPlan, times: SiteTimes) -> PipelineTimes:
    """Return the times of one program, found by simulating every command of it."""
    reference = _Reference(plan, times)
    reference.issue(plan.nodes, [], {})
    for queue in reference.queues:
        reference.env.process(reference.serve(queue))
    reference.env.run()
    sites = range(len(plan.sites))
    return PipelineTimes(
        end_ps=max((max(ends) for ends in reference.ends.values()), default=0),
        first_start_ps=tuple(min(reference.starts.get(site, [-1])) for site in sites),
        last_end_ps=tuple(max(reference.ends.get(site, [-1])) for site in sites),
    )
