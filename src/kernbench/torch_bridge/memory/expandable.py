"""Expandable segments: addresses of a pool to which memory of the device is mapped as it is needed.

A segment has addresses for all of a device. Memory is mapped at them in pieces of one size, so that
free parts at its end grow, and goes back in whole pieces wherever it is free. Blocks without memory
are in the list of neighbours, too. Source: ``find_expandable_block``, ``map_block``,
``unmap_block`` and ``get_free_block`` of PyTorch's ``c10/cuda/CUDACachingAllocator.cpp``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernbench.torch_bridge.memory.allocator import Free, MemoryBlock

_PIECES = {True: 2 << 20, False: 20 << 20}
"""How much is mapped at a time in pools of small requests, and of large ones."""
_PARTS_OF_DEVICE = (9, 8)
"""How many times the device's bytes a segment has addresses for."""


def piece_of(block: MemoryBlock) -> int:
    """Return in how many bytes memory is mapped to a block's segment."""
    return _PIECES[block.pool[1]]


def addresses_of(capacity_bytes: int, pool: Any) -> int:
    """Return how many addresses a segment of a pool has."""
    piece = _PIECES[pool[1]]
    more, one = _PARTS_OF_DEVICE
    return -(-capacity_bytes * more // one // piece) * piece


def aligned(address: int) -> int:
    """Return where the next segment may begin: at a whole number of pieces of either size."""
    return -(-address // _PIECES[False]) * _PIECES[False]


def best(free: list[Free], position: int, is_asked: bool) -> int:
    """Return which free block is taken, given the first that is large enough.

    An expandable one counts with the addresses behind it: one with fewer is taken first. Without
    expandable segments (``is_asked=False``) none of theirs is.
    """
    if not is_asked:
        while position < len(free) and free[position][2].is_expandable:
            position += 1
        return position
    while (
        position + 1 < len(free)
        and free[position][2].is_expandable
        and _with_room(free[position + 1][2]) < _with_room(free[position][2])
    ):
        position += 1
    return position


def _with_room(block: MemoryBlock) -> int:
    after = block.after
    return block.size + (after.size if after is not None and not after.is_mapped else 0)


def room_for(size: int, unmapped: list[tuple[int, MemoryBlock]]) -> MemoryBlock | None:
    """Return the first free block, with or without memory, from which on there are ``size`` bytes.

    ``unmapped`` are a pool's blocks without memory, in the order of addresses.
    """
    for _, block in unmapped:
        before = block.before
        first = before if before is not None and before.is_free else block
        bytes_here, memory_block = 0, first
        while (
            memory_block is not None
            and bytes_here < size
            and (memory_block.is_free or not memory_block.is_mapped)
        ):
            bytes_here += memory_block.size
            memory_block = memory_block.after  # type: ignore[assignment]
        if bytes_here >= size:
            return first
    return None


def whole_pieces(block: MemoryBlock) -> tuple[int, int]:
    """Return where the pieces that lie wholly in a block begin and end."""
    piece = piece_of(block)
    return -(-block.address // piece) * piece, (block.address + block.size) // piece * piece


def take_out(free: list[Free], block: MemoryBlock) -> None:
    """Remove a block from a list of free ones."""
    free.pop(bisect_left(free, (block.size, block.address)))


def put_in(free: list[Free], block: MemoryBlock) -> None:
    """Add a block to a list of free ones."""
    block.is_free = True
    insort(free, (block.size, block.address, block))
