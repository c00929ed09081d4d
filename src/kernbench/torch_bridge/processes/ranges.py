"""Named ranges of a rank's host time."""

from __future__ import annotations

from kernbench.op_log import HostRange, OpLog


class Ranges:
    """The ranges of one process: the ended ones, and the open ones."""

    def __init__(self, rank: int, log: OpLog) -> None:
        self.ended: list[HostRange] = []
        self.rank = rank
        self._log = log
        self._nested: list[tuple[str, int]] = []
        self._by_handle: dict[int, tuple[str, int]] = {}
        self._next_handle = 1

    def push(self, name: str, now_ps: int) -> int:
        """Begin a range inside the innermost open one, and return its depth."""
        self._nested.append((name, now_ps))
        return len(self._nested) - 1

    def pop(self, now_ps: int) -> int:
        """End the innermost open range, and return its depth; -1 if there is none."""
        if not self._nested:
            return -1
        self._end(*self._nested.pop(), now_ps)
        return len(self._nested)

    def start(self, name: str, now_ps: int) -> int:
        """Begin a range that may overlap others, and return its handle."""
        handle, self._next_handle = self._next_handle, self._next_handle + 1
        self._by_handle[handle] = (name, now_ps)
        return handle

    def end(self, handle: int, now_ps: int) -> None:
        """End a range by its handle; an unknown handle is ignored, as by NVTX."""
        begun = self._by_handle.pop(handle, None)
        if begun is not None:
            self._end(*begun, now_ps)

    def mark(self, name: str, now_ps: int) -> None:
        """Record a named moment."""
        self._end(name, now_ps, now_ps)

    def _end(self, name: str, start_ps: int, now_ps: int) -> None:
        made = HostRange(self.rank, name, start_ps, now_ps)
        self.ended.append(made)
        self._log.host_ranges.append(made)
