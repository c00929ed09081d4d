"""The bytes of freed buffers, reused."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

SMALLEST = 64 << 10
"""Below this the C library recycles memory by itself."""
MOST_KEPT = 256 << 20


class BytePool:
    """Hands out arrays, returned ones of the same size first.

    A program allocates the same results in every layer. Clearing used pages costs a tenth of what
    the operating system takes to provide new ones.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[Bytes]] = {}
        self._kept_bytes = 0

    def take(self, size_bytes: int, *, zero: bool = True) -> Bytes:
        """Return ``size_bytes`` bytes: zeros, or without ``zero`` whatever was there."""
        same_size = self._free.get(size_bytes)
        if not same_size:
            return np.zeros(size_bytes, np.uint8) if zero else np.empty(size_bytes, np.uint8)
        array = same_size.pop()
        self._kept_bytes -= size_bytes
        if zero:
            array.fill(0)
        return array

    def give(self, array: Bytes) -> None:
        """Keep an array that is no longer referenced; past ``MOST_KEPT`` bytes it is dropped."""
        if array.size >= SMALLEST and self._kept_bytes + array.size <= MOST_KEPT:
            self._free.setdefault(array.size, []).append(array)
            self._kept_bytes += array.size
