"""Ranges of a rank's host time that its program has named."""

from __future__ import annotations

from kernbench.op_log import HostRange, OpLog


class Ranges:
    """The ranges of one process: those that have ended, and those that it is inside."""

    def __init__(self, rank: int, log: OpLog) -> None:
        self.ended: list[HostRange] = []
        self.rank = rank
        self._log = log
        self._nested: list[tuple[str, int]] = []
        self._by_handle: dict[int, tuple[str, int]] = {}
        self._next_handle = 1

    def push(self, name: str, now_ps: int) -> int:
        """Begin a range inside the last one that has not ended, and return how deep it is."""
        self._nested.append((name, now_ps))
        return len(self._nested) - 1

    def pop(self, now_ps: int) -> int:
        """End the last range that was pushed and return how deep it was; -1 if there is none."""
        if not self._nested:
            return -1
        self._end(*self._nested.pop(), now_ps)
        return len(self._nested)

    def start(self, name: str, now_ps: int) -> int:
        """Begin a range that may overlap others, and return what ends it."""
        handle, self._next_handle = self._next_handle, self._next_handle + 1
        self._by_handle[handle] = (name, now_ps)
        return handle

    def end(self, handle: int, now_ps: int) -> None:
        """End such a range; a handle that is not known is ignored, as NVTX does."""
        begun = self._by_handle.pop(handle, None)
        if begun is not None:
            self._end(*begun, now_ps)

    def mark(self, name: str, now_ps: int) -> None:
        """Name a moment."""
        self._end(name, now_ps, now_ps)

    def _end(self, name: str, start_ps: int, now_ps: int) -> None:
        made = HostRange(self.rank, name, start_ps, now_ps)
        self.ended.append(made)
        self._log.host_ranges.append(made)
