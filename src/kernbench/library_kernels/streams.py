"""Launches that only move bytes: copies, conversions, sums of partial results.

PyTorch's elementwise kernels load 16 bytes a thread where all operands lie alike and have one
dtype. Otherwise (a dtype is converted, an operand is broadcast or transposed) a thread finds the
place of an element, loads it, converts and stores it, and only then goes on to its next: what is
under way is an element of each thread, however narrow it is.
"""

from __future__ import annotations

import math

from kernbench.library_kernels.work import LibraryKernel, Tiles, Trip

_TILE_BYTES = 8192
_RESIDENT = 8
_THREADS, _ELEMENTS = 128, 4
"""The threads of a block that loads one element at a time, and the elements of such a thread."""
ELEMENTS_OF_BLOCK = _THREADS * _ELEMENTS
_FROM_CACHE = 0.65
"""The share of such sectors that another block has not left in the PE: with it a copy of planes to
channels-last is as fast as ``conv_copy``, which was fitted on an RTX 3090."""
_BLOCKS = 16
"""So many of them fill a PE."""
_COLUMNS, _ROWS_AT_A_TIME = 16, 256
"""The columns and rows of a block that sums columns, which has 32 rows of threads with 8 elements
each under way."""
_OVERLAP = 3.0
"""How well waits of threads and the bytes of HBM overlap."""


def stream(name: str, read_bytes: float, written_bytes: float, trips: int = 1) -> LibraryKernel:
    """Return a launch that reads and writes so many bytes once, and that was launched before.

    A tile reads its bytes in ``trips`` steps, one after another.
    """
    count = max(1, round((read_bytes + written_bytes) / _TILE_BYTES))
    trip = Trip(loaded_bytes=read_bytes / count / trips)
    return LibraryKernel(
        name=name,
        tiles=(Tiles(count=count, trips=trips, trip=trip, stored_bytes=written_bytes / count),),
        resident=_RESIDENT,
        hbm_read_bytes=read_bytes,
        hbm_written_bytes=written_bytes,
        warm=True,
    )


def scattered(
    name: str, elements: int, read_bytes: float, written_bytes: float, spread_bytes: float = 0.0
) -> LibraryKernel:
    """Return a launch that makes so many elements, of which a thread has one under way.

    ``spread_bytes`` come from the cache besides, in sectors of which a block uses a part.
    """
    count = max(1, math.ceil(elements / ELEMENTS_OF_BLOCK))
    loaded = read_bytes + _FROM_CACHE * spread_bytes
    trip = Trip(simple=_THREADS, loaded_bytes=loaded / (count * _ELEMENTS))
    return LibraryKernel(
        name=name,
        tiles=(Tiles(count=count, trips=_ELEMENTS, trip=trip, stored_bytes=written_bytes / count),),
        resident=_BLOCKS,
        hbm_read_bytes=read_bytes,
        hbm_written_bytes=written_bytes,
        overlap=_OVERLAP,
    )


def column_sums(name: str, rows: int, columns: int, itemsize: int) -> LibraryKernel:
    """Return a launch that sums the columns of two matrices, a block for each few of them.

    So many blocks as columns give: of few columns with many rows, most PEs have nothing to do, and
    a block waits for a part of the rows before it asks for the next.
    """
    trips = max(1.0, rows / _ROWS_AT_A_TIME)
    loaded = 2.0 * min(rows, _ROWS_AT_A_TIME) * _COLUMNS * itemsize
    trip = Trip(simple=3.0 * _ROWS_AT_A_TIME * _COLUMNS, loaded_bytes=loaded)
    return LibraryKernel(
        name=name,
        tiles=(Tiles(count=max(1, math.ceil(columns / _COLUMNS)), trips=trips, trip=trip),),
        resident=2,
        hbm_read_bytes=2.0 * rows * columns * itemsize,
    )
