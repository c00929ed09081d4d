"""What ranks have freed on the host, given back to the operating system.

PyTorch asks the C library for aligned blocks, and what one rank has freed seldom fits what the next
one asks for: a thousand ranks that make their parameters on the host, one after another, and move
them to devices without data, would take up the memory of all. One search for what is free costs
milliseconds; it is done whenever the process has grown by a fourth.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

TURNS = 32
"""How many turns of ranks pass between two looks at the process's size, 10 us each."""
LEAST_BYTES = 128 << 20
"""What the process grows by at least before it is worth a search."""


class HostHeap:
    """Looks, as ranks take turns, at how large the process is."""

    def __init__(
        self, size_bytes: Callable[[], int] | None = None, trim: Callable[[], object] | None = None
    ) -> None:
        self._size_bytes = size_bytes or _resident_bytes
        self._trim = trim or _trim()
        self._turns = TURNS
        self._most_bytes = self._allowed_bytes()

    def next_turn(self) -> None:
        """Count a turn; give back what is free if the process has grown much."""
        self._turns -= 1
        if self._turns:
            return
        self._turns = TURNS
        if self._size_bytes() > self._most_bytes:
            self._trim()
            self._most_bytes = self._allowed_bytes()

    def _allowed_bytes(self) -> int:
        held = self._size_bytes()
        return held + max(held // 4, LEAST_BYTES)


def _resident_bytes() -> int:
    """Return the resident memory of this process (Linux, as all of kernbench)."""
    pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _trim() -> Callable[[], object]:
    """Return glibc's ``malloc_trim(0)``; where the C library is another, what does nothing."""
    try:
        function = ctypes.CDLL(None).malloc_trim
    except AttributeError:
        return lambda: None
    return lambda: function(0)
