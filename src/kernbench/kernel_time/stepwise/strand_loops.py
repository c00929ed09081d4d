"""A loop with accesses to other SIPs, timed one iteration after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from functools import partial

from kernbench.kernel_time.program.pipeline import PipelineRun, SiteTimes
from kernbench.kernel_time.program.timed_plan import CommandSite, LoopNode, Node, ProgramPlan

Travel = Callable[[CommandSite, int, int], int]
"""From a site, its start and when its queue is free again to when the access is done."""


class FarRun(PipelineRun):
    """A run that pauses at every access to another SIP until the clock reaches it."""

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
