"""A captured graph: recomputes its operations, and enqueues them with one launch."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from kernbench.runtime_api import Action, Marker, WaitFor
from kernbench.torch_bridge.base.operation_timing import ChangingTiming, OperationTiming
from kernbench.torch_bridge.dispatch.operands import leaves
from kernbench.torch_bridge.graphs.capture import DataStep
from kernbench.torch_bridge.graphs.collectives import Awaiting, Calling
from kernbench.torch_bridge.graphs.memory import GraphMemory
from kernbench.torch_bridge.graphs.queues import Copying, Marking, Operations
from kernbench.torch_bridge.placement.names import unobserved
from kernbench.torch_bridge.processes.bursts import put_in_a_row
from kernbench.torch_bridge.processes.call_counts import unseen
from kernbench.torch_bridge.processes.commands import HostCopy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from kernbench.clock import Stream, StreamCommand
    from kernbench.op_log import Template
    from kernbench.torch_bridge.c10d.calls import CollectiveWork
    from kernbench.torch_bridge.dispatch.touching import Touching
    from kernbench.torch_bridge.graphs.capture import Capture
    from kernbench.torch_bridge.graphs.queues import Command
    from kernbench.torch_bridge.processes.process import Process


class Graph:
    """Captured operations, their memory, and their branches."""

    def __init__(self, process: Process, capture: Capture) -> None:
        self._process = process
        self._run = process.session.run
        self._sip_id = capture.sip_id
        self._commands = capture.branches.commands
        self._changes = any(
            isinstance(timing, ChangingTiming)
            for command in self._commands
            if isinstance(command, Operations)
            for timing in command.timings
        )
        memory = capture.memory
        # Replays write, inside or outside of an inference mode.
        with torch.inference_mode(False), torch.no_grad(), unobserved():
            self._steps = [_with_tensors(step, memory) for step in capture.steps]
        count = capture.branches.num_branches() - 1
        self._others = [self._run.new_stream(self._sip_id) for _ in range(count)]
        """The streams of all branches but the first."""
        graphs = self._run.op_log.graphs
        self._label = f"graph {len(graphs) + 1}"
        graphs[self._label] = tuple(self.names())

    def names(self) -> list[str]:
        """Return the names of the captured commands, in order."""
        return [item if isinstance(item, str) else item.name for item in self._known()]

    def _known(self) -> Iterator[Template | str]:
        """Yield the schedules of its operations and copies, and the names of its collectives."""
        for command in self._commands:
            if isinstance(command, Operations):
                yield from (timing.template(True) for timing in command.timings)
            elif isinstance(command, Copying):
                yield command.template
            elif isinstance(command, Calling):
                yield command.call.signature.op

    @unseen
    def replay(self) -> None:
        """Recompute everything, and enqueue it on the current stream at the cost of one launch."""
        process = self._process
        if process.host.tries is not None:
            for item in self._known():
                if not isinstance(item, str):
                    process.host.tries(item)
            return
        num_kernels = len(self._run.op_log.graphs[self._label])
        process.host.owe_for("graph_replay_ps", "graph_node_ps", num_kernels)
        earliest_ps = process.host.spend(self._label)
        queues = [self._run.queue_for(self._sip_id), *(stream.queue for stream in self._others)]
        commands, steps = iter(self._commands), iter(self._steps)
        markers: dict[Marker, Marker] = {}
        works: dict[Calling, CollectiveWork] = {}
        awaited: list[CollectiveWork] = []
        process.is_replaying = True
        touching = None
        if process.order is not None:
            process.order.replays_on, touching = queues[0], process.touching
        noting = partial(_note, touching, queues[0])
        try:
            with torch.no_grad(), torch._C._AutoDispatchBelowAutograd(), unobserved():
                # From one collective to the next. Ranks yield to each other where one is to compute
                # with what a collective gives, and at the end.
                while (met := self._put(commands, queues, markers, earliest_ps)) is not None:
                    self._meet(met, _compute(steps, noting, awaited), works, awaited)
                _compute(steps, noting, awaited)
                _settle(awaited)
        finally:
            process.is_replaying = False
            if process.order is not None:
                process.order.replays_on = None

    def _put(
        self,
        commands: Iterator[Command],
        queues: list[Stream],
        markers: dict[Marker, Marker],
        earliest_ps: int,
    ) -> Calling | Awaiting | None:
        """Enqueue commands on their streams up to a collective; return that, None at the end."""
        run, keeper = self._run, self._run.keeper
        for command in commands:
            if isinstance(command, (Calling, Awaiting)):
                return command
            queue = queues[command.branch]
            if isinstance(command, Operations):
                self._put_operations(command, queue, earliest_ps)
            elif isinstance(command, Copying):
                copy = HostCopy(run, command.template, queue, self._sip_id)
                if keeper is not None:
                    work = keeper.copy(command.template, self._sip_id)
                    keeper.makes(copy, Action.GRAPH_COPY, work, keeper.stream(queue))
                _put(copy, queue, earliest_ps)
            elif isinstance(command, Marking):
                marker = markers[command.marker] = Marker(run)
                if keeper is not None:
                    keeper.makes(marker, Action.GRAPH_MARK, keeper.stream(queue))
                _put(marker, queue, earliest_ps)
            else:
                awaited = markers[command.marker]
                if keeper is not None:
                    keeper.waits(Action.GRAPH_STREAM_WAITS, awaited, keeper.stream(queue))
                _put(WaitFor(run, awaited), queue, earliest_ps)
        return None

    def _meet(
        self,
        command: Calling | Awaiting,
        met: Calling | Awaiting | None,
        works: dict[Calling, CollectiveWork],
        awaited: list[CollectiveWork],
    ) -> None:
        """Call a collective with the tensors of a step, or let its branch wait for one."""
        state = self._process.state
        before = state.stream
        if command.branch:
            state.stream = self._others[command.branch - 1]
        try:
            if isinstance(command, Awaiting):
                works[command.calling].wait_on_stream()
                awaited.append(works[command.calling])
            else:
                assert isinstance(met, Calling)
                works[command] = met.post(met.call)
        finally:
            state.stream = before

    def _put_operations(self, command: Operations, queue: Stream, earliest_ps: int) -> None:
        timings: list[OperationTiming] = command.timings
        if self._changes:
            # By the values that operands have when a replay begins.
            timings = [x.current() if isinstance(x, ChangingTiming) else x for x in timings]
        keeper = self._run.keeper
        if keeper is not None:
            row = tuple([keeper.timing(timing) for timing in timings])
            keeper.put(Action.GRAPH_OPERATIONS, keeper.number_of(row), keeper.stream(queue))
        put_in_a_row(self._run, queue, self._sip_id, earliest_ps, timings)


def _with_tensors(step: DataStep | Calling | Awaiting, memory: GraphMemory) -> Any:
    if isinstance(step, DataStep):
        return (step, *memory.tensors((step.args, step.kwargs)), memory.tensors(step.results))
    return step.with_tensors(memory.tensors) if isinstance(step, Calling) else step


def _note(
    touching: Touching | None,
    queue: Stream,
    step: DataStep,
    args: Any,
    kwargs: dict[str, Any],
    tensors: list[Tensor],
) -> None:
    """Take note of what a step of a replay touches; a kernel's launch does that itself.

    Raises:
        DataRaceError, UninitializedReadError: What the replay is unordered with; what it reads.
    """
    if touching is not None and isinstance(step.call, torch._ops.OpOverload):
        touching.replayed(step.call, args, kwargs, tensors, queue)


def _settle(awaited: list[CollectiveWork]) -> None:
    """Block until the outputs of collectives hold their values."""
    if awaited:
        # The first one is what a rank that does not come is named by. After the last one, all
        # others are there: ranks yield to each other twice, and not for each.
        awaited[0].wait_for_data()
        awaited[-1].come()
        for work in awaited:
            work.wait_for_data()
        awaited.clear()


def _compute(
    steps: Iterator[Any], noting: Callable[..., None], awaited: list[CollectiveWork]
) -> Calling | Awaiting | None:
    """Compute steps up to a collective, after what they await; return that, None at the end."""
    for entry in steps:
        if not isinstance(entry, tuple):
            met: Calling | Awaiting = entry
            return met
        step, args, kwargs, result = entry
        if args or kwargs or result:
            _settle(awaited)
        with step.draws.again() if step.draws is not None else nullcontext():
            results = step.call(*args, **kwargs)
        noting(step, args, kwargs, [tensor for _, tensor in result])
        if result:
            answer = leaves(results)
            for number, tensor in result:
                tensor.copy_(answer[number])
    return None


def _put(command: StreamCommand, queue: Stream, earliest_ps: int) -> None:
    command.earliest_ps = earliest_ps
    queue.submit(command)
