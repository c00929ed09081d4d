"""A captured graph: recomputes its operations, and enqueues them with one launch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from kernbench.clock import Handle, Stream, StreamCommand
from kernbench.op_log import Template
from kernbench.runtime_api import Action, Marker, WaitFor
from kernbench.torch_bridge.base.operation_timing import ChangingTiming, OperationTiming
from kernbench.torch_bridge.c10d.calls import CollectiveWork
from kernbench.torch_bridge.dispatch.operands import leaves
from kernbench.torch_bridge.graphs.capture import Capture, DataStep
from kernbench.torch_bridge.graphs.collectives import Awaiting, Calling
from kernbench.torch_bridge.graphs.memory import GraphMemory
from kernbench.torch_bridge.graphs.queues import Command, Copying, Marking, Operations, Waiting
from kernbench.torch_bridge.ordering.order import OperationClock
from kernbench.torch_bridge.placement.names import unobserved
from kernbench.torch_bridge.processes.bursts import put_in_a_row
from kernbench.torch_bridge.processes.call_counts import unseen
from kernbench.torch_bridge.processes.commands import HostCopy
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
        self._memory = memory = capture.memory
        # Replays write, inside or outside of an inference mode.
        with torch.inference_mode(False), torch.no_grad(), unobserved():
            self._steps = [_with_tensors(step, memory) for step in capture.steps]
        self._names = capture.branches.names()
        self._others = [self._run.new_stream(self._sip_id) for _ in self._names[1:]]
        """The streams of all branches but the first."""
        self._latest: tuple[Stream, Handle | None] | None = None
        """The stream of its latest replay, and the last command of that."""
        self._ended: OperationClock | None = None
        """Under the sanitizer, the end of its latest replay."""
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
        noting = None if process.order is None else _Noting(process, queues, self._names)
        # CUDA runs one replay of a graph at a time, whatever streams they are on.
        self._await_latest(queues[0], earliest_ps)
        if noting is not None:
            noting.order.stream_waits(queues[0], self._ended)
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
            self._latest = queues[0], queues[0].tail
            if noting is not None:
                noting.order.replays = None
                self._ended = noting.order.point(queues[0])

    def _await_latest(self, queue: Stream, earliest_ps: int) -> None:
        """Let a replay on another stream than the one before wait for that."""
        stream, last = self._latest or (queue, None)
        if stream is not queue and last is not None and not last.done:
            keeper = self._run.keeper
            if keeper is not None:
                keeper.waits(Action.GRAPH_STREAM_WAITS, last, keeper.stream(queue))
            _put(WaitFor(self._run, last), queue, earliest_ps)

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


class _Noting:
    """Under the sanitizer: after what the steps of a replay come, and what they touch."""

    def __init__(self, process: Process, queues: list[Stream], names: list[str]) -> None:
        assert process.order is not None
        self.order = process.order
        self._touching = process.touching
        self._queues = queues
        self._points: dict[Marker, OperationClock] = {}
        for queue, name in zip(queues[1:], names[1:], strict=True):
            self.order.stream(queue).name = f"captured stream {name}"

    def meet(self, entry: Marking | Waiting) -> None:
        """Let a branch follow what it has waited for in the capture."""
        queue = self._queues[entry.branch]
        if isinstance(entry, Marking):
            self._points[entry.marker] = self.order.point(queue)
        else:
            self.order.stream_waits(queue, self._points[entry.marker])

    def begin(self, step: DataStep) -> None:
        """Let what is noted until the next step be of the branch of this one."""
        if step.place is not None:
            branch, forward, where = step.place
            behind = None if forward is None else self._queues[forward]
            self.order.replays = self._queues[branch], behind, where

    def note(self, step: DataStep, args: Any, kwargs: Any, tensors: list[Tensor]) -> None:
        """Take note of what a step touches; a kernel's launch does that itself.

        Raises:
            DataRaceError, UninitializedReadError: What it is unordered with; what it reads.
        """
        if isinstance(step.call, torch._ops.OpOverload) and self.order.replays is not None:
            self._touching.replayed(step.call, args, kwargs, tensors, self._queues[0])
        self.order.replays = None


def _with_tensors(step: Any, memory: GraphMemory) -> Any:
    if isinstance(step, DataStep):
        return (step, *memory.tensors((step.args, step.kwargs)), memory.tensors(step.results))
    return step.with_tensors(memory.tensors) if isinstance(step, Calling) else step


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
    steps: Iterator[Any], noting: _Noting | None, awaited: list[CollectiveWork]
) -> Calling | Awaiting | None:
    """Compute steps up to a collective, after what they await; return that, None at the end."""
    for entry in steps:
        if isinstance(entry, Marking | Waiting):
            if noting is not None:
                noting.meet(entry)
            continue
        if not isinstance(entry, tuple):
            met: Calling | Awaiting = entry
            return met
        step, args, kwargs, result = entry
        if args or kwargs or result:
            _settle(awaited)
        if noting is not None:
            noting.begin(step)
        with step.draws.again() if step.draws is not None else nullcontext():
            results = step.call(*args, **kwargs)
        if noting is not None:
            noting.note(step, args, kwargs, [tensor for _, tensor in result])
        if result:
            answer = leaves(results)
            for number, tensor in result:
                tensor.copy_(answer[number])
    return None


def _put(command: StreamCommand, queue: Stream, earliest_ps: int) -> None:
    command.earliest_ps = earliest_ps
    queue.submit(command)
