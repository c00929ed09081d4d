"""Quantisation of activations: a block of threads per row, in one pass or in two.

With a scale that is known, a row is read and written once. With one per row, the row is read for
its maximum first; the second pass finds what the cache still has of it.
"""

from __future__ import annotations

from kernbench.kernel_time import still_there
from kernbench.library_kernels import LibraryKernel, Tiles, Trip

_OVERLAP = 3.0
"""As products: blocks start and end alone."""
_BLOCKS_PER_PE = 8
"""Blocks of 256 threads that share a PE: how many rows are between their passes at a time. Their
time is that of one after another: ``tile_ns`` is what a block adds to those beside it."""


def quantize_rows(
    name: str, rows: int, cols: int, written_bytes: float, cold: float = 1.0
) -> LibraryKernel:
    """Return the kernel that quantises an input of 16 bits, a block of threads per row.

    ``written_bytes`` are of an element of the result, ``cold`` is the share of the input that comes
    from HBM.
    """
    row = Trip(loaded_bytes=2.0 * cols)
    return LibraryKernel(
        name=name,
        tiles=(Tiles(count=rows, trips=1, trip=row, stored_bytes=written_bytes * cols),),
        hbm_read_bytes=2.0 * rows * cols * cold,
        hbm_written_bytes=written_bytes * rows * cols * cold,
        overlap=_OVERLAP,
    )


def scale_and_quantize_rows(
    name: str, rows: int, cols: int, written_bytes: float, cold: float, missed: float
) -> LibraryKernel:
    """Return the kernel that finds a scale per row first, and reads the row again to apply it.

    ``missed`` is the share of the second reading that comes from HBM; the rest is as for
    :func:`quantize_rows`.
    """
    row = Trip(loaded_bytes=2.0 * cols)
    return LibraryKernel(
        name=name,
        tiles=(Tiles(count=rows, trips=2, trip=row, stored_bytes=written_bytes * cols),),
        hbm_read_bytes=2.0 * rows * cols * cold * (1 + missed),
        hbm_written_bytes=written_bytes * rows * cols * cold,
        overlap=_OVERLAP,
    )


def missed_again(rows: int, cols: int, num_pes: int, held_bytes: float) -> float:
    """Return which share of an input HBM brings again to a second pass over each row.

    Rows that all PEs work on at a time stay in the cache up to ``held_bytes``, and are gone from
    twice as many on.
    """
    active = min(rows, num_pes * _BLOCKS_PER_PE) * 2.0 * cols
    return 1.0 - still_there(active / max(held_bytes, 1.0))
