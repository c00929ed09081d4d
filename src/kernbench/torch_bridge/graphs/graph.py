"""A captured graph: computes its operations anew, and puts them on the timeline at one launch."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from kernbench.runtime_api import Marker, WaitFor
from kernbench.torch_bridge.bursts import Burst
from kernbench.torch_bridge.commands import HostCopy
from kernbench.torch_bridge.device.names import unobserved
from kernbench.torch_bridge.graphs.memory import leaves
from kernbench.torch_bridge.graphs.queues import Copying, Marking, Operations

if TYPE_CHECKING:
    from kernbench.sim_engine import Stream, StreamCommand
    from kernbench.torch_bridge.graphs.capture import Capture
    from kernbench.torch_bridge.process import Process


class Graph:
    """What a capture has taken down."""

    def __init__(self, process: Process, capture: Capture) -> None:
        self._process = process
        self._run = process.session.run
        self._sip_id = capture.sip_id
        self._commands = capture.branches.commands
        memory = capture.memory
        with torch.no_grad(), unobserved():
            self._steps = [
                (step, *memory.tensors((step.args, step.kwargs)), memory.tensors(step.made))
                for step in capture.steps
            ]
        self._others = [
            self._run.new_stream(self._sip_id).queue
            for _ in range(capture.branches.num_branches() - 1)
        ]
        """The streams of all branches but the first."""
        graphs = self._run.op_log.graphs
        self._label = f"graph {len(graphs) + 1}"
        graphs[self._label] = tuple(self.names())

    def names(self) -> list[str]:
        """Return the operations and copies, in the order in which they were captured."""
        found: list[str] = []
        for command in self._commands:
            if isinstance(command, Operations):
                found += [timing.template(True).name for timing in command.timings]
            elif isinstance(command, Copying):
                found.append(command.template.name)
        return found

    def replay(self) -> None:
        """Compute everything again, and put it on the current stream at the cost of one launch."""
        self._launch()
        process = self._process
        process.is_replaying = True
        try:
            with torch.no_grad(), torch._C._AutoDispatchBelowAutograd(), unobserved():
                self._compute()
        finally:
            process.is_replaying = False

    def _compute(self) -> None:
        for step, args, kwargs, made in self._steps:
            with step.draws.again() if step.draws is not None else nullcontext():
                results = step.call(*args, **kwargs)
            if made:
                found = leaves(results)
                for number, tensor in made:
                    tensor.copy_(found[number])

    def _launch(self) -> None:
        run = self._run
        earliest_ps = self._process.host.spend(self._label)
        queues = [run.queue_for(self._sip_id), *self._others]
        markers: dict[Marker, Marker] = {}
        for command in self._commands:
            queue = queues[command.branch]
            if isinstance(command, Operations):
                self._put_operations(command, queue, earliest_ps)
            elif isinstance(command, Copying):
                copy = HostCopy(run, command.template, queue, self._sip_id)
                _put(copy, queue, earliest_ps)
            elif isinstance(command, Marking):
                marker = markers[command.marker] = Marker(run.simulation.env, "an event")
                _put(marker, queue, earliest_ps)
            else:
                _put(WaitFor(run, markers[command.marker]), queue, earliest_ps)

    def _put_operations(self, command: Operations, queue: Stream, earliest_ps: int) -> None:
        tail: Any = queue.tail
        timings = iter(command.timings)
        first = next(timings)
        if not (type(tail) is Burst and tail.join(earliest_ps, first)):
            tail = Burst(self._run, queue, self._sip_id)
            tail.join(earliest_ps, first)
            # It must have all that it may begin with.
            for timing in timings:
                tail.join(earliest_ps, timing)
            queue.submit(tail)
        for timing in timings:
            tail.join(earliest_ps, timing)


def _put(command: StreamCommand, queue: Stream, earliest_ps: int) -> None:
    command.earliest_ps = earliest_ps
    queue.submit(command)
