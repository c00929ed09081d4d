"""Device memory of one SIP: an address range, an allocator, and the bytes of live buffers.

Every SIP has its own range of virtual addresses, so an address says which SIP it belongs to.
A launch binds :class:`Buffer` objects, not addresses, to its record: memory that was freed and
given out again is a new buffer, so lazy replay can never see the bytes of a later owner.
"""

from __future__ import annotations

import bisect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.dtypes import Array
from kernbench.errors import BadPointerError, OutOfMemoryError
from kernbench.memory.allocations import NO_LAYOUT, Layout, LiveAllocation
from kernbench.memory.byte_pool import BytePool

ALIGNMENT_BYTES = 256
_SIP_SHIFT = 42
POISON = 0xFF
"""What every byte of unwritten memory holds under the sanitizer: NaN in all float types."""


def sip_base(sip_id: int) -> int:
    """Return the first virtual address of a SIP's HBM. Address 0 is never allocated."""
    return (sip_id + 1) << _SIP_SHIFT


def sip_of(address: int) -> int:
    """Return the SIP whose range holds ``address`` (it may lie past the SIP's capacity)."""
    return (address >> _SIP_SHIFT) - 1


@dataclass(eq=False, slots=True)
class Buffer:
    """One live allocation: ``size_bytes`` bytes at ``address``."""

    address: int
    size_bytes: int
    sip_id: int
    name: str
    has_data: bool
    layout: Layout = NO_LAYOUT
    """The layout of the tensor that it was allocated for."""
    live: bool = True
    version: int = 0
    """Counts the writes that were put on record, for whoever must know that bytes changed."""
    last_writer: Any = None
    """The runtime's handle of the newest command that writes here, or None."""
    in_flight: tuple[Any, ...] = ()
    """The runtime's collectives that use the buffer and that no rank has waited for yet."""
    symmetric: Any = None
    """The runtime's record of who shares it with whom; None where it is the SIP's own."""
    allocation: LiveAllocation | None = None
    """What the run's log has of it; None where it records no allocations."""
    touches: Any = None
    """What the sanitizer knows of who touched which bytes, or None."""
    pool: BytePool = field(default_factory=BytePool, repr=False)
    _bytes: npt.NDArray[np.uint8] | None = field(default=None, repr=False)
    _written: npt.NDArray[np.uint8] | None = field(default=None, repr=False)
    _is_poisoned: bool = field(default=False, repr=False)
    _known: tuple[Any, npt.NDArray[np.uint8]] | None = field(default=None, repr=False)

    @property
    def label(self) -> str:
        """How errors name it, e.g. ``"fc1.weight (1024, 4096) float16"``."""
        return _label(self.name, self.layout)

    @property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """The contents, one ``uint8`` per byte; until something is written zeros, or poison."""
        if self._bytes is None:
            if self._is_poisoned:
                self._bytes = np.full(self.size_bytes, POISON, np.uint8)
            else:
                self._bytes = self.pool.take(self.size_bytes)
        return self._bytes

    @property
    def known(self) -> npt.NDArray[np.uint8] | None:
        """In a run without data, what the program has put here; None once a command wrote it."""
        if self._known is None or self._known[0] is not self.last_writer:
            return None
        return self._known[1]

    def know(self, elements: Array, writer: Any) -> None:
        """Record the contents as a command leaves them, in a run without data."""
        self._known = writer, np.ascontiguousarray(elements).reshape(-1).view(np.uint8)

    @property
    def written(self) -> npt.NDArray[np.uint8] | None:
        """Per byte 255 where something was written, else 0; None where that is not tracked."""
        if self._written is None and self._is_poisoned:
            self._written = np.zeros(self.size_bytes, np.uint8)
        return self._written

    @written.setter
    def written(self, count: npt.NDArray[np.uint8] | None) -> None:
        # Contents that were poison so far have to be so when the count is gone.
        _ = self.bytes
        self._written, self._is_poisoned = count, False

    @property
    def is_unwritten(self) -> bool:
        """Whether the contents have not been used yet, so that no array holds them."""
        return self._bytes is None

    def bytes_to_overwrite(self) -> npt.NDArray[np.uint8]:
        """Return the contents for a caller that writes every byte before anyone reads one."""
        if self._bytes is None:
            self._bytes = self.pool.take(self.size_bytes, zero=False)
        return self._bytes

    def __del__(self) -> None:
        # Missing where an interrupt came before all fields were set.
        array: npt.NDArray[np.uint8] | None = getattr(self, "_bytes", None)
        self._bytes = None
        # An array of ours (not adopted) that no view shows: this variable and the call see it.
        if array is not None and array.base is None and sys.getrefcount(array) == 2:
            self.pool.give(array)

    def adopt(self, elements: Array) -> None:
        """Make a contiguous array the contents of a fresh buffer, without a copy."""
        self._bytes = elements.reshape(-1).view(np.uint8)

    def poison(self) -> None:
        """Fill a fresh buffer with :data:`POISON`, and track which bytes are written.

        Both take memory only when first used.
        """
        self._is_poisoned = True

    @property
    def end(self) -> int:
        return self.address + self.size_bytes


class DeviceMemory:
    """The HBM of one SIP: first-fit allocation in address order, with neighbours merged on free."""

    def __init__(
        self, sip_id: int, capacity_bytes: int, has_data: bool, pool: BytePool | None = None
    ) -> None:
        self.sip_id = sip_id
        self._pool = pool or BytePool()
        self.capacity_bytes = capacity_bytes
        self.has_data = has_data
        self.used_bytes = 0
        self.peak_bytes = 0
        self.when_allocated: Callable[[Buffer, int], None] | None = None
        """Called with each new buffer and the bytes that it takes up."""
        self.when_freed: Callable[[LiveAllocation], None] | None = None
        # Free ranges as (address, size), in address order.
        self._free: list[tuple[int, int]] = [(sip_base(sip_id), capacity_bytes)]
        self._starts: list[int] = []
        self._buffers: dict[int, Buffer] = {}

    def allocate(self, size_bytes: int, name: str, layout: Layout = NO_LAYOUT) -> Buffer:
        """Return a new buffer of ``size_bytes`` bytes (an empty tensor still has an address).

        Raises:
            OutOfMemoryError: No free range is large enough; names the largest live buffers.
        """
        need = max(-(-size_bytes // ALIGNMENT_BYTES), 1) * ALIGNMENT_BYTES
        for index, (address, size) in enumerate(self._free):
            if size >= need:
                if size == need:
                    del self._free[index]
                else:
                    self._free[index] = (address + need, size - need)
                break
        else:
            raise self._out_of_memory(size_bytes, _label(name, layout))
        self.used_bytes += need
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        buffer = Buffer(
            address, size_bytes, self.sip_id, name, self.has_data, layout, pool=self._pool
        )
        bisect.insort(self._starts, address)
        self._buffers[address] = buffer
        if self.when_allocated is not None:
            self.when_allocated(buffer, need)
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Free the buffer's range. Its bytes stay readable for records that hold it."""
        if not buffer.live:
            return
        buffer.live = False
        if buffer.allocation is not None and self.when_freed is not None:
            self.when_freed(buffer.allocation)
        del self._buffers[buffer.address]
        del self._starts[bisect.bisect_left(self._starts, buffer.address)]
        size = max(-(-buffer.size_bytes // ALIGNMENT_BYTES), 1) * ALIGNMENT_BYTES
        self.used_bytes -= size
        start, end = buffer.address, buffer.address + size
        index = bisect.bisect_left(self._free, (start, 0))
        if index < len(self._free) and self._free[index][0] == end:
            end += self._free.pop(index)[1]
        if index and sum(self._free[index - 1]) == start:
            start = self._free.pop(index - 1)[0]
            index -= 1
        self._free.insert(index, (start, end - start))

    def find(self, address: int) -> Buffer:
        """Return the live buffer that holds ``address``.

        Raises:
            BadPointerError: No live buffer of this SIP holds it.
        """
        index = bisect.bisect_right(self._starts, address) - 1
        if index >= 0:
            buffer = self._buffers[self._starts[index]]
            if address < buffer.address + max(buffer.size_bytes, 1):
                return buffer
        raise BadPointerError(
            f"address {address:#x} belongs to no live tensor of SIP {self.sip_id}; "
            "was the tensor freed, or the pointer made in another run?"
        )

    def live(self) -> list[Buffer]:
        """Return all live buffers, in address order."""
        return [self._buffers[start] for start in self._starts]

    def largest(self, count: int = 5) -> list[Buffer]:
        """Return the largest live buffers, largest first."""
        return sorted(self._buffers.values(), key=lambda b: (-b.size_bytes, b.address))[:count]

    def _out_of_memory(self, size_bytes: int, label: str) -> OutOfMemoryError:
        free = self.capacity_bytes - self.used_bytes
        largest_range = max((size for _, size in self._free), default=0)
        lines = [
            f"HBM of SIP {self.sip_id} is exhausted: {label} needs {size_bytes:,} bytes, "
            f"{free:,} of {self.capacity_bytes:,} are free "
            f"(largest free range {largest_range:,}); the largest live tensors:"
        ]
        lines += [f"  {buffer.size_bytes:>16,} bytes  {buffer.label}" for buffer in self.largest()]
        return OutOfMemoryError("\n".join(lines))


def _label(name: str, layout: Layout) -> str:
    shape, dtype = layout
    return f"{name} {shape} {dtype}" if dtype else name
