"""Who hears of launches, events and collectives of a simulated process while it is recorded.

Ranks share one real process, so that what is replaced is replaced once, for all that listen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, Protocol
from unittest.mock import patch

import torch
import torch.cuda._gpu_trace as trace

from kernbench.judging.collectives import METHODS
from kernbench.torch_bridge import CollectiveWork, NcclGroup, SimulatedGroup, current_process
from kernbench.triton_backend import active_launcher


class Listener(Protocol):
    """What is told of a process."""

    def launched(self, binary: Any, grid: Any, args: Any) -> None:
        """Hear of a launch, before it."""

    def marked(self, kind: str, event: int, stream: int) -> None:
        """Hear of an event or of a stream that is waited for."""

    def called(self, method: str, group: Any, args: Any, kwargs: Any) -> Callable[[Any], None]:
        """Hear of a collective, before it; what is returned hears of its work."""

    def replayed(self) -> None:
        """Hear that a CUDA graph is replayed."""

    def waited(self, work: Any) -> None:
        """Hear that a collective's work is waited for."""


class _Listening:
    """Stands for a launcher's ``launch`` while processes are recorded."""

    def __init__(self, launcher: Any) -> None:
        self._launcher, self._launch = launcher, launcher.launch
        self.by_process: dict[Any, Listener] = {}
        self._inside: set[Any] = set()
        """Processes inside of a collective, whose own copies are no work of the program."""
        self._stack = ExitStack()
        self._stack.enter_context(patch.object(launcher, "launch", self))
        for registry, tell in (
            (trace.EventRecordCallbacks, lambda event, stream: self._mark("mark", event, stream)),
            (trace.EventWaitCallbacks, lambda event, stream: self._mark("wait", event, stream)),
            (trace.StreamSynchronizationCallbacks, lambda stream: self._mark("sync", 0, stream)),
            (trace.EventSynchronizationCallbacks, lambda event: self._mark("seen", event, 0)),
        ):
            registry.callback_list.append(tell)
            self._stack.callback(registry.callback_list.remove, tell)
        for name in METHODS:
            self._replace(SimulatedGroup, name, name)
        self._replace(NcclGroup, "_allreduce_by_peers", "allreduce")
        wait = CollectiveWork.wait

        def waits(work: Any, *args: Any, **kwargs: Any) -> Any:
            listener = self._heard_by()
            if listener is not None:
                listener.waited(work)
            return wait(work, *args, **kwargs)

        self._stack.enter_context(patch.object(CollectiveWork, "wait", waits))
        replay = torch.cuda.CUDAGraph.replay

        def replays(graph: Any) -> None:
            listener = self._heard_by()
            if listener is not None:
                listener.replayed()
            replay(graph)

        self._stack.enter_context(patch.object(torch.cuda.CUDAGraph, "replay", replays))

    def close(self) -> None:
        """Put back what was replaced."""
        self._stack.close()

    def __call__(self, binary: Any, grid: Any, args: Any) -> None:
        listener = self._heard_by()
        if listener is not None and self._launcher.run.rank_state.probe is None:
            listener.launched(binary, grid, args)
        self._launch(binary, grid, args)

    def is_inside(self) -> bool:
        """Return whether the calling process is inside of a collective."""
        return current_process() in self._inside

    def _heard_by(self) -> Listener | None:
        process = current_process()
        return None if process in self._inside else self.by_process.get(process)

    def _mark(self, kind: str, event: int, stream: int) -> None:
        listener = self._heard_by()
        if listener is not None:
            listener.marked(kind, event, stream)

    def _replace(self, owner: Any, name: str, method: str) -> None:
        plain = getattr(owner, name)

        @wraps(plain)
        def call(group: Any, *args: Any, **kwargs: Any) -> Any:
            listener = self._heard_by()
            if listener is None:
                return plain(group, *args, **kwargs)
            tell = listener.called(method, group, args, kwargs)
            process = current_process()
            self._inside.add(process)
            try:
                work = plain(group, *args, **kwargs)
            finally:
                self._inside.discard(process)
            tell(work)
            return work

        self._stack.enter_context(patch.object(owner, name, call))


@contextmanager
def listening(listener: Listener) -> Iterator[Callable[[], bool]]:
    """Tell a listener of the calling process inside of the block.

    Gives what says whether the process is inside of a collective.
    """
    launcher: Any = active_launcher()
    hub = launcher.launch if isinstance(launcher.launch, _Listening) else _Listening(launcher)
    process = current_process()
    hub.by_process[process] = listener
    try:
        yield hub.is_inside
    finally:
        del hub.by_process[process]
        if not hub.by_process:
            hub.close()
