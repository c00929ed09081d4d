"""Launches that only move bytes: copies, conversions, sums of partial results."""

from __future__ import annotations

from kernbench.library_kernels.work import LibraryKernel, Tiles, Trip

_TILE_BYTES = 8192
_RESIDENT = 8


def stream(name: str, read_bytes: float, written_bytes: float) -> LibraryKernel:
    """Return a launch that reads and writes so many bytes once, and that was launched before."""
    count = max(1, round((read_bytes + written_bytes) / _TILE_BYTES))
    trip = Trip(loaded_bytes=read_bytes / count)
    return LibraryKernel(
        name=name,
        tiles=(Tiles(count=count, trips=1, trip=trip, stored_bytes=written_bytes / count),),
        resident=_RESIDENT,
        hbm_read_bytes=read_bytes,
        hbm_written_bytes=written_bytes,
        warm=True,
    )
