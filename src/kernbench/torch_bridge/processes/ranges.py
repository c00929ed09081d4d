"""Named ranges of a rank's host time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernbench.op_log import HostRange, OpLog
from kernbench.runtime_api import Action

if TYPE_CHECKING:
    from kernbench.torch_bridge.processes.host import Host


class Ranges:
    """The ranges of one process: the ended ones, and the open ones."""

    def __init__(self, rank: int, log: OpLog, host: Host) -> None:
        self.ended: list[HostRange] = []
        self.rank = rank
        self._log, self._host = log, host
        self._nested: list[int] = []
        self._open: dict[int, tuple[str, int]] = {}
        """Names and starts by handle."""
        self._next_handle = 1

    def push(self, name: str, now_ps: int) -> int:
        """Begin a range inside the innermost open one, and return its depth."""
        self._nested.append(self.start(name, now_ps))
        return len(self._nested) - 1

    def pop(self, now_ps: int) -> int:
        """End the innermost open range, and return its depth; -1 if there is none."""
        if not self._nested:
            return -1
        self.end(self._nested.pop(), now_ps)
        return len(self._nested)

    def start(self, name: str, now_ps: int) -> int:
        """Begin a range that may overlap others, and return its handle."""
        handle, self._next_handle = self._next_handle, self._next_handle + 1
        self._open[handle] = (name, now_ps)
        if self._host.notes is not None:
            self._host.notes(Action.RANGE_BEGIN, handle, "", 0)
        return handle

    def end(self, handle: int, now_ps: int) -> None:
        """End a range by its handle; an unknown handle is ignored, as by NVTX."""
        begun = self._open.pop(handle, None)
        if begun is None:
            return
        name, start_ps = begun
        if self._host.notes is not None:
            self._host.notes(Action.RANGE_END, name, "", handle)
        host_range = HostRange(self.rank, name, start_ps, now_ps)
        self.ended.append(host_range)
        self._log.host_ranges.append(host_range)

    def mark(self, name: str, now_ps: int) -> None:
        """Record a named moment."""
        self.end(self.start(name, now_ps), now_ps)
