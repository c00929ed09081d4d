"""Elementwise operations of operands that are unlike: broadcast, transposed, of several dtypes.

ATen's vectorized kernel takes none of them. A thread of a block of 128 finds the place of an
element in each operand, loads it, computes and stores, and only then goes on to the next of its
four (``launch_unrolled_kernel`` and ``launch_legacy_kernel`` of ``CUDALoops.cuh``).
"""

from __future__ import annotations

from dataclasses import replace

from kernbench.library_kernels.blocks import BlockLaunch, Sweep

_THREADS, _ELEMENTS = 128, 4
ELEMENTS_OF_BLOCK = _THREADS * _ELEMENTS
_PLACE_CYCLES = 400
"""What the places of an element take, its conversion and its bounds. With it an A100 waits 900 ns
for an element where PyTorch's developers measured conversions to take 870 (pull request 195542),
and broadcast divisions (KernelBench level1/36, 37 and 39 at 6e6fca9c) stream 2.5 TB/s on an
H100."""
_FROM_CACHE = 0.65
"""The share of such sectors that another block has not left in the PE: with it a copy of planes to
channels-last is as fast as ``conv_copy``, which was fitted on an RTX 3090."""


def unlike(
    elements: int, read_bytes: float, written_bytes: float, spread_bytes: float = 0.0
) -> BlockLaunch:
    """Return the launch that makes so many elements; ``spread_bytes`` come in sectors besides."""
    loaded_bytes = read_bytes + _FROM_CACHE * spread_bytes
    launch = _launch(elements, loaded_bytes, written_bytes, _ELEMENTS, _PLACE_CYCLES)
    return replace(launch, hbm_read_bytes=read_bytes)


def alike(elements: int, read_bytes: float, written_bytes: float) -> BlockLaunch:
    """Return the launch that makes so many elements of operands that lie alike, all at a time."""
    return _launch(elements, read_bytes, written_bytes, 1, 0)


def _launch(
    elements: int, read_bytes: float, written_bytes: float, trips: int, trip_cycles: float
) -> BlockLaunch:
    blocks = max(1, -(-elements // ELEMENTS_OF_BLOCK))
    sweep = Sweep(
        loaded_bytes=read_bytes / blocks,
        under_way=read_bytes / blocks / trips,
        stored_bytes=written_bytes / blocks,
        serial_cycles=trip_cycles,
    )
    return BlockLaunch(
        name="elementwise",
        blocks=blocks,
        threads=_THREADS,
        sweeps=(sweep,) if read_bytes else (),
        hbm_read_bytes=read_bytes,
        hbm_written_bytes=written_bytes,
    )
