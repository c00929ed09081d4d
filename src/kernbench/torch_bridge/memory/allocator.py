"""A model of PyTorch's caching allocator: sizes and addresses of blocks, without any memory.

Source of the rules and sizes: PyTorch's ``c10/cuda/CUDACachingAllocator.cpp``, with its default
settings (no limit on splitting), and with expandable segments where a program asks for them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from weakref import WeakSet

from kernbench.memory import LiveAllocation
from kernbench.torch_bridge.memory import expandable
from kernbench.torch_bridge.memory.settings import AllocatorSettings

CallFrame = tuple[str, int, str]
"""A file, a line and the name of a function."""
SegmentAction = Literal["segment_alloc", "segment_free", "segment_map", "segment_unmap"]
"""What is done with a segment, or with a piece of an expandable one."""

_MIB = 1 << 20
ROUNDING = 512
"""The sizes of blocks are multiples of this."""
SMALL = _MIB
"""Requests up to this size share segments of :data:`SMALL_SEGMENT`."""
SMALL_SEGMENT = 2 * _MIB
LARGE_SEGMENT = 20 * _MIB
"""The size of segments that larger requests below :data:`OWN_SEGMENT` share."""
OWN_SEGMENT = 10 * _MIB
"""Requests of this size or more get segments of their own."""
SEGMENT_ROUNDING = 2 * _MIB


class DeviceFullError(Exception):
    """The device has no room for another segment."""


class MemoryBlock:
    """Contiguous bytes of a segment, in use or cached."""

    # Few of a block's attributes are ever set: programs make a block for each operation.
    before: MemoryBlock | None = None
    after: MemoryBlock | None = None
    is_free = True
    is_expandable = False
    """Whether it is of a segment that grows."""
    is_mapped = True
    """Whether it has memory; addresses without are neither free nor in use."""
    asked_bytes = 0
    """The size of the request, before rounding."""
    num_again = 0
    """How often it was freed and reallocated since that was last counted."""
    fits_since = -1
    """The state of the free lists in which it was last chosen for a request of its size."""
    label = ""
    """What it was allocated for."""
    allocation: LiveAllocation | None = None
    """What the run's log has of it, where it records allocations."""
    pass_number = 0
    """The pass of the program in which it was allocated, likewise."""
    is_gathered = False
    """Whether FSDP has allocated it."""
    frames: Sequence[CallFrame] = ()
    """Where, if the program has asked for a history."""

    def __init__(self, owner: CachingAllocator, pool: Any, address: int, size: int) -> None:
        self.owner = owner
        self.pool = pool
        self.address = address
        self.size = size

    def free(self) -> None:
        """Return it to its allocator; any thread may, even in the middle of an allocation."""
        self.owner.returned.append(self)


@dataclass(slots=True)
class Amount:
    """A count and its peak; to increase it, add to ``current``."""

    current: int = 0
    freed: int = 0
    """Sum of all decreases."""
    peak_before: int = 0
    """The peak up to the latest decrease."""
    peak_before_reset: int = 0

    @property
    def allocated(self) -> int:
        """Sum of all increases."""
        return self.current + self.freed

    @property
    def peak(self) -> int:
        """The peak since the program last reset it."""
        return max(self.peak_before, self.current)

    @property
    def peak_of_run(self) -> int:
        """The peak of the whole run, regardless of resets."""
        return max(self.peak, self.peak_before_reset)

    def drop(self, count: int) -> None:
        """Decrease it."""
        current = self.current
        if current > self.peak_before:
            self.peak_before = current
        self.current = current - count
        self.freed += count


@dataclass(slots=True)
class Amounts:
    """The statistics of an allocator."""

    allocated_bytes: Amount = field(default_factory=Amount)
    requested_bytes: Amount = field(default_factory=Amount)
    reserved_bytes: Amount = field(default_factory=Amount)
    allocations: Amount = field(default_factory=Amount)
    segments: Amount = field(default_factory=Amount)

    def reset_peaks(self) -> None:
        """Set the peaks to the current counts."""
        for name in self.__slots__:
            amount: Amount = getattr(self, name)
            amount.peak_before_reset = amount.peak_of_run
            amount.peak_before = amount.current

    def reset_sums(self) -> None:
        """Reset the sums of increases and decreases."""
        for name in self.__slots__:
            amount: Amount = getattr(self, name)
            amount.freed = 0


@dataclass(eq=False, kw_only=True, slots=True)
class PrivatePool:
    """A memory pool of CUDA graphs; requests name it, with their stream, in place of a stream."""

    handle: tuple[int, int]
    """The handle by which programs name it."""
    num_users: int = 0
    """How many graphs may be replayed in its blocks; while there are any, it keeps its segments."""
    keys: dict[Any, Any] = field(default_factory=dict)
    """What requests name, by stream: no block that was another stream's is given out."""
    shared: dict[Any, Any] = field(default_factory=dict)
    """Under the sanitizer, what is known of its memory by allocator."""
    graphs: WeakSet[Any] = field(default_factory=WeakSet)
    """What graphs that were captured in it refer to."""

    def on(self, stream: Any) -> Any:
        """Return what requests on a stream name."""
        return self.keys.setdefault(stream, (self, stream))


class BlockObserver(Protocol):
    """Notes what an allocator does."""

    def allocated(self, block: MemoryBlock, tensor: Any) -> None:
        """Note that a block is in use, for a tensor if that is known."""

    def freed(self, block: MemoryBlock) -> None:
        """Note that a block is not in use any more."""

    def segment(self, action: SegmentAction, block: MemoryBlock) -> None:
        """Note that the device has given a segment, which is one block, or has it back."""


Free = tuple[int, int, MemoryBlock]
"""A free block, with its size and its address before it, by which they are sorted."""


class _Noted(deque[MemoryBlock]):
    """Blocks that were freed, each of which is noted."""

    def __init__(self, blocks: Iterable[MemoryBlock], freed: Callable[[MemoryBlock], None]) -> None:
        super().__init__(blocks)
        self._freed = freed

    def append(self, block: MemoryBlock) -> None:
        self._freed(block)
        super().append(block)


class CachingAllocator:
    """The blocks of one process on one device.

    ``reserve`` takes the bytes of a segment from the device, and raises :class:`DeviceFullError`
    if too few are free; ``release`` returns them. Expandable segments have addresses for all of a
    device's ``capacity_bytes``.
    """

    def __init__(
        self,
        reserve: Callable[[int], None],
        release: Callable[[int], None],
        capacity_bytes: int = 1 << 40,
        settings: AllocatorSettings | None = None,
    ) -> None:
        self._reserve = reserve
        self._release = release
        self._capacity_bytes = capacity_bytes
        self.settings = settings or AllocatorSettings()
        self._free: dict[Any, list[Free]] = {}
        """The free blocks of each pool, sorted by size and then by address."""
        self._unmapped: dict[Any, list[tuple[int, MemoryBlock]]] = {}
        """The blocks without memory of each pool's expandable segments, sorted by address."""
        self._next_address = 0
        self._num_changes = 0
        """The number of changes of the free blocks."""
        self.in_use: dict[MemoryBlock, None] = {}
        """Blocks in order, as nothing else about them is."""
        self.returned: deque[MemoryBlock] = deque()
        """Blocks that were freed and are not in a free list yet."""
        self._amounts = Amounts()
        self.num_retries = 0
        self.num_failures = 0
        self.most_bytes: int | None = None
        """The most bytes that it may reserve, however many the device has."""
        self.when_reserved: Callable[[], None] | None = None
        """Called after each segment that the device gives it."""
        self.recorder: BlockObserver | None = None

    def record(self, recorder: BlockObserver) -> None:
        """Let all that it does from now on be noted."""
        self.recorder = recorder
        self.returned = _Noted(self.returned, recorder.freed)

    def leave(self) -> None:
        """Let go of the run, at its end: blocks may outlive it."""
        self.when_reserved = self.recorder = None
        self.returned = deque(self.returned)
        self._free.clear()
        self._unmapped.clear()
        for block in self.in_use:
            block.pool = block.before = block.after = None

    @property
    def amounts(self) -> Amounts:
        """Its statistics, up to date."""
        for block in self.in_use:
            self._count_again(block)
        return self._amounts

    def allocate(self, size_bytes: int, stream: Any = None, label: str = "") -> MemoryBlock:
        """Return a block for a request of more than 0 bytes on a stream.

        Raises:
            DeviceFullError: The device has no room, even after freeing the cached segments.
        """
        returned = self.returned
        if len(returned) == 1:
            same = returned[0]
            if (
                same.fits_since == self._num_changes
                and same.asked_bytes == size_bytes
                and same.pool[0] is stream
            ):
                returned.popleft()
                # It was freed and is in use again: that cannot change any peak.
                same.num_again += 1
                same.label = label
                return same
        size = -(-size_bytes // ROUNDING) * ROUNDING
        is_small = size <= SMALL
        pool = (stream, is_small)
        free = self._free.get(pool)
        if free is None:
            free = self._free[pool] = []
        # Expandable segments are chosen and split by other rules.
        is_expandable = self.settings.expandable_segments
        is_usual = not (is_expandable or self._unmapped)
        block = None
        if is_usual and len(returned) == 1:
            block = self._taken_back(pool, size, free)
        if block is None:
            if returned:
                self.settle()
            position = bisect_left(free, (size,))
            if not is_usual:
                position = expandable.best(free, position, is_expandable)
            block = free.pop(position)[2] if position < len(free) else self._new_segment(pool, size)
            rest = block.size - size
            if rest and (is_small or is_expandable or rest > SMALL):
                expandable.put_in(free, self._part(block, size))
            block.is_free = False
            self._num_changes += 1
        block.label = label
        block.asked_bytes = size_bytes
        self.in_use[block] = None
        amounts = self._amounts
        amounts.allocated_bytes.current += block.size
        amounts.requested_bytes.current += size_bytes
        amounts.allocations.current += 1
        return block

    def _taken_back(self, pool: Any, size: int, free: list[Free]) -> MemoryBlock | None:
        """Return the only freed block, if a request would get exactly that block.

        Programs drop a result and make another one like it: merging the block with its neighbour
        and splitting it again would change nothing.
        """
        block, after = self.returned[0], self.returned[0].after
        before = block.before
        if block.size != size or block.pool != pool or (before is not None and before.is_free):
            return None
        rest = after.size if after is not None and after.is_free else 0
        if rest and size > SMALL >= rest:
            return None
        position = bisect_left(free, (size,))
        if rest and position < len(free) and free[position][2] is after:
            position += 1
        if position < len(free) and free[position] < (size + rest, block.address):
            return None
        self._count_out(self.returned.popleft())
        block.fits_since = self._num_changes
        return block

    def _count_out(self, block: MemoryBlock) -> None:
        if block.num_again:
            self._count_again(block)
        del self.in_use[block]
        amounts = self._amounts
        amounts.allocated_bytes.drop(block.size)
        amounts.requested_bytes.drop(block.asked_bytes)
        amounts.allocations.drop(1)

    def _count_again(self, block: MemoryBlock) -> None:
        count, block.num_again = block.num_again, 0
        amounts = self._amounts
        amounts.allocated_bytes.freed += count * block.size
        amounts.requested_bytes.freed += count * block.asked_bytes
        amounts.allocations.freed += count

    def settle(self) -> None:
        """Move freed blocks to the free lists, merged with their free neighbours."""
        self._num_changes += 1
        returned, free = self.returned, self._free
        while returned:
            block = returned.popleft()
            self._count_out(block)
            self._put_away(block, free[block.pool])

    def _put_away(self, block: MemoryBlock, free: list[Free]) -> MemoryBlock:
        """Add a block to the free ones; return it, or what it is now a part of."""
        after, before = block.after, block.before
        if after is not None and after.is_free:
            expandable.take_out(free, after)
            self._join(block, after)
        if before is not None and before.is_free:
            expandable.take_out(free, before)
            self._join(before, block)
            block = before
        expandable.put_in(free, block)
        return block

    def segments(self) -> list[list[MemoryBlock]]:
        """Return the blocks of each segment, all in the order of addresses.

        Of expandable segments each part with memory is one.
        """
        self.settle()
        blocks = [*self.in_use, *(triple[2] for free in self._free.values() for triple in free)]
        firsts = [block for block in blocks if block.before is None or not block.before.is_mapped]
        memory_blocks = []
        for first in sorted(firsts, key=lambda memory_block: memory_block.address):
            segment: list[MemoryBlock] = []
            block: MemoryBlock | None = first
            while block is not None and block.is_mapped:
                segment.append(block)
                block = block.after
            memory_blocks.append(segment)
        return memory_blocks

    def empty_cache(self) -> None:
        """Return the segments that hold no block in use to the device."""
        self.settle()
        for (stream, _), free in self._free.items():
            if isinstance(stream, tuple) and stream[0].num_users:
                continue
            for memory_block in [triple[2] for triple in free if triple[2].is_expandable]:
                self._unmap(memory_block, free)
            whole = [
                entry
                for entry in free
                if entry[2].before is entry[2].after is None and not entry[2].is_expandable
            ]
            for entry in whole:
                free.remove(entry)
                if self.recorder is not None:
                    self.recorder.segment("segment_free", entry[2])
                self._release(entry[0])
                self._amounts.reserved_bytes.drop(entry[0])
                self._amounts.segments.drop(1)

    def _new_segment(self, pool: Any, size: int) -> MemoryBlock:
        take = self._grow if self.settings.expandable_segments else self._take_segment
        try:
            return take(pool, size)
        except DeviceFullError:
            self.num_retries += 1
            self.empty_cache()
            try:
                return take(pool, size)
            except DeviceFullError:
                self.num_failures += 1
                raise

    def _take_segment(self, pool: Any, size: int) -> MemoryBlock:
        segment = _segment_for(size)
        self._take(segment)
        self._amounts.segments.current += 1
        block = MemoryBlock(self, pool, self._next_address, segment)
        # A gap, so that segments are never adjacent.
        self._next_address += segment + ROUNDING
        if self.recorder is not None:
            self.recorder.segment("segment_alloc", block)
        return block

    def _grow(self, pool: Any, size: int) -> MemoryBlock:
        """Return a block of at least ``size`` bytes of an expandable segment, not in a free list.

        What was mapped when the device turns out to be full stays, as free blocks.
        """
        self._check_limit(_segment_for(size))
        free, unmapped = self._free[pool], self._unmapped.setdefault(pool, [])
        block = expandable.room_for(size, unmapped) or self._new_addresses(pool, unmapped)
        if not block.is_mapped:
            block = self._map(block, min(block.size, size), free)
        while block.size < size:
            assert block.after is not None
            block = self._map(block.after, min(block.after.size, size - block.size), free)
        expandable.take_out(free, block)
        return block

    def _new_addresses(self, pool: Any, unmapped: list[tuple[int, MemoryBlock]]) -> MemoryBlock:
        first = expandable.aligned(self._next_address)
        size = expandable.addresses_of(self._capacity_bytes, pool)
        self._next_address = first + size + ROUNDING
        block = MemoryBlock(self, pool, first, size)
        block.is_expandable, block.is_mapped, block.is_free = True, False, False
        insort(unmapped, (first, block))
        return block

    def _map(self, block: MemoryBlock, size: int, free: list[Free]) -> MemoryBlock:
        """Map at least ``size`` bytes at a block's begin; return the free block that has them."""
        piece = expandable.piece_of(block)
        mapped = -(-size // piece) * piece
        self._take(mapped)
        unmapped = self._unmapped[block.pool]
        unmapped.remove((block.address, block))
        if mapped < block.size:
            rest = self._part(block, mapped)
            rest.is_mapped = rest.is_free = False
            insort(unmapped, (rest.address, rest))
        block.is_mapped = True
        if self.recorder is not None:
            self.recorder.segment("segment_map", block)
        return self._put_away(block, free)

    def _unmap(self, block: MemoryBlock, free: list[Free]) -> None:
        """Give the pieces that lie wholly in a free block back to the device."""
        first, last = expandable.whole_pieces(block)
        if first >= last:
            return
        expandable.take_out(free, block)
        if first > block.address:
            inner = self._part(block, first - block.address)
            expandable.put_in(free, block)
            block = inner
        if last < block.address + block.size:
            expandable.put_in(free, self._part(block, last - block.address))
        block.is_free = block.is_mapped = False
        if self.recorder is not None:
            self.recorder.segment("segment_unmap", block)
        self._release(block.size)
        self._amounts.reserved_bytes.drop(block.size)
        unmapped, before, after = self._unmapped[block.pool], block.before, block.after
        if after is not None and not after.is_mapped:
            unmapped.remove((after.address, after))
            self._join(block, after)
        if before is not None and not before.is_mapped:
            unmapped.remove((before.address, before))
            self._join(before, block)
            block = before
        if block.before is not None or block.after is not None:
            insort(unmapped, (block.address, block))

    def _check_limit(self, size: int) -> None:
        most = self.most_bytes
        if most is not None and self._amounts.reserved_bytes.current + size > most:
            raise DeviceFullError

    def _take(self, segment: int) -> None:
        self._check_limit(segment)
        self._reserve(segment)
        self._amounts.reserved_bytes.current += segment
        if self.when_reserved is not None:
            self.when_reserved()

    def _part(self, block: MemoryBlock, size: int) -> MemoryBlock:
        """Cut a block to a size, and return the rest of it."""
        rest = MemoryBlock(self, block.pool, block.address + size, block.size - size)
        rest.before, rest.after = block, block.after
        if rest.after is not None:
            rest.after.before = rest
        block.after = rest
        block.size = size
        if block.is_expandable:
            rest.is_expandable = True
        return rest

    def _join(self, block: MemoryBlock, after: MemoryBlock) -> None:
        block.size += after.size
        block.after = after.after
        if after.after is not None:
            after.after.before = block


def _segment_for(size: int) -> int:
    """Return how large a segment is that is taken for a request."""
    if size <= SMALL:
        return SMALL_SEGMENT
    if size < OWN_SEGMENT:
        return LARGE_SEGMENT
    return -(-size // SEGMENT_ROUNDING) * SEGMENT_ROUNDING
