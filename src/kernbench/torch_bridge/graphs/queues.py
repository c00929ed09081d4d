"""Streams under capture: what is enqueued on them is captured, and does not run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kernbench.clock import Stream, StreamCommand
from kernbench.op_log import Template
from kernbench.runtime_api import DeviceStream, Marker, Run
from kernbench.torch_bridge.base.operation_timing import OperationTiming
from kernbench.torch_bridge.base.refusals import CaptureError
from kernbench.torch_bridge.graphs.collectives import Awaiting, Calling
from kernbench.torch_bridge.processes.bursts import Burst
from kernbench.torch_bridge.processes.commands import HostCopy


@dataclass(frozen=True, slots=True)
class Operations:
    """Consecutive operations on a branch of the graph."""

    branch: int
    timings: list[OperationTiming]


@dataclass(frozen=True, slots=True)
class Copying:
    """A copy from or to the host on a branch."""

    branch: int
    template: Template


@dataclass(frozen=True, slots=True)
class Marking:
    """An event recorded on a branch."""

    branch: int
    marker: Marker


@dataclass(frozen=True, slots=True)
class Waiting:
    """A branch's wait for an event of another one."""

    branch: int
    marker: Marker


Command = Operations | Copying | Marking | Waiting | Calling | Awaiting


@dataclass(slots=True)
class Branch:
    """A stream of the capture. The first one stands for the stream of replays."""

    stream: DeviceStream
    queue: Stream
    """The stream's queue outside of the capture."""
    seen: dict[int, int] = field(default_factory=dict)
    """The number of a branch's commands that the next command on this branch comes after, by
    branch."""


class CaptureQueue(Stream):
    """Replaces a stream's queue. It never has a tail, as nothing is pending."""

    def __init__(self, run: Run, branches: Branches, number: int, stands_for: Stream) -> None:
        super().__init__(run.simulation, stands_for.name, stands_for.sip_id)
        self._branches = branches
        self._number = number
        self.stands_for = stands_for

    def submit(self, command: StreamCommand) -> None:
        """Capture a command."""
        self._branches.take(self._number, command)

    @property
    def number(self) -> int:
        return self._number


class Branches:
    """All streams of a capture, and the captured commands in program order."""

    def __init__(self, run: Run, stream: DeviceStream, steps: list[Any]) -> None:
        self._run = run
        self.commands: list[Command] = []
        self._steps = steps
        """What is captured on data, among which events and waits for them belong, too."""
        self._all: list[Branch] = []
        self._markers: dict[Marker, dict[int, int]] = {}
        """What the branch of each event came after when it was recorded."""
        self._join(stream)

    def _join(self, stream: DeviceStream) -> Branch:
        branch = Branch(stream, stream.queue)
        stream.queue = CaptureQueue(self._run, self, len(self._all), stream.queue)
        self._all.append(branch)
        return branch

    def take(self, number: int, command: StreamCommand) -> None:
        """Capture a command of a branch."""
        branch = self._all[number]
        if isinstance(command, Marker):
            self._note(Marking(number, command))
            self._markers[command] = dict(branch.seen)
            return
        branch.seen[number] = branch.seen.get(number, 0) + 1
        if isinstance(command, Burst):
            last = self.commands[-1] if self.commands else None
            if isinstance(last, Operations) and last.branch == number:
                last.timings.extend(command.timings)
            else:
                self.commands.append(Operations(number, list(command.timings)))
        elif isinstance(command, HostCopy):
            self.commands.append(Copying(number, command.template))
        else:
            raise CaptureError(
                f"{command.describe()}: operation not permitted when stream is capturing"
            )

    def meet(self, command: Calling | Awaiting) -> None:
        """Capture the call of a collective, or a wait for it."""
        seen = self._all[command.branch].seen
        seen[command.branch] = seen.get(command.branch, 0) + 1
        self.commands.append(command)

    def wait(self, stream: DeviceStream, marker: Marker) -> bool:
        """Let a stream wait for an event of the capture, and join it; False if it is another event.

        Raises:
            CaptureError: A stream of the capture would wait for an event outside of it.
        """
        seen = self._markers.get(marker)
        queue = stream.queue
        if seen is None:
            if not isinstance(queue, CaptureQueue):
                return False
            raise CaptureError(
                "a stream's wait for an event: dependency created on uncaptured work in another "
                "stream; let the stream wait before its capture begins"
            )
        branch = self._all[queue.number] if isinstance(queue, CaptureQueue) else self._join(stream)
        self._note(Waiting(self._all.index(branch), marker))
        for number, count in seen.items():
            branch.seen[number] = max(branch.seen.get(number, 0), count)
        return True

    def end(self) -> None:
        """Let the streams run again.

        Raises:
            CaptureError: The first one does not wait for the work of another.
        """
        # A queue that anything still holds holds no memory of the graph.
        self._steps = []
        for branch in self._all:
            branch.stream.queue = branch.queue
        first = self._all[0].seen
        for number, branch in enumerate(self._all):
            if branch.seen.get(number, 0) > first.get(number, 0):
                raise CaptureError(
                    f"CUDAGraph.capture_end: stream {branch.queue.name} has joined the capture, "
                    "and the capturing stream does not wait for its work; call wait_stream first"
                )

    def _note(self, command: Marking | Waiting) -> None:
        self.commands.append(command)
        self._steps.append(command)

    def names(self) -> list[str]:
        """Return the names of the captured streams, by branch."""
        return [branch.queue.name for branch in self._all]
