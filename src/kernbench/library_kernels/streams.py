"""Launches that only move bytes: copies, sums of partial results."""

from __future__ import annotations

import math

from kernbench.library_kernels.work import LibraryKernel, Tiles, Trip

_TILE_BYTES = 8192
_RESIDENT = 8
_COLUMNS, _ROWS_AT_A_TIME = 16, 256
"""The columns and rows of a block that sums columns, which has 32 rows of threads with 8 elements
each under way."""


def stream(
    name: str, read_bytes: float, written_bytes: float, trips: int = 1, warm: bool = True
) -> LibraryKernel:
    """Return a launch that reads and writes so many bytes once.

    A tile reads its bytes in ``trips`` steps, one after another. ``warm``: it was launched before.
    """
    count = max(1, round((read_bytes + written_bytes) / _TILE_BYTES))
    trip = Trip(loaded_bytes=read_bytes / count / trips)
    return LibraryKernel(
        name=name,
        tiles=(Tiles(count=count, trips=trips, trip=trip, stored_bytes=written_bytes / count),),
        resident=_RESIDENT,
        hbm_read_bytes=read_bytes,
        hbm_written_bytes=written_bytes,
        warm=warm,
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
