"""Norms of groups and of channels: moments by a block each, then an operation on all elements.

Sources: ``group_norm_kernel.cu``, ``batch_norm_collect_statistics_kernel`` and
``batch_norm_transform_input_kernel`` of ``Normalization.cuh``.
"""

from __future__ import annotations

from kernbench.library_kernels.aten.rows import moments_of
from kernbench.library_kernels.aten.unlike import unlike
from kernbench.library_kernels.blocks import BlockLaunch, Sweep

_MOST_THREADS = 512
_WITH_WIDE_LOADS = 90
"""The first architecture whose threads have 16 bytes under way there, and not 8. 64 channels take
0.58 and 8.77 ms on H100, 11.5 on H100 PCIe, 1.32 on A100, 1.24 on A6000 and 1.28 and 23.5 on L40S
(KernelBench level1/33 at dacd881c, 6e6fca9c, 3396fc0c, 80c03d44, 87fc84ca, 4082b873)."""
_TRANSFORMS = 256 << 10
"""Blocks that transform an image at most, those of all channels together."""


def group_norm(groups: int, channels: int, elements: int, itemsize: int) -> tuple[BlockLaunch, ...]:
    """Return the launches of a group norm; ``groups`` and ``channels`` are of the whole batch.

    Moments by a block for each group, a scale and a shift for each channel, and their broadcast
    over all elements.
    """
    size = elements * itemsize
    return (
        moments_of(groups, size // groups, itemsize),
        unlike(channels, 4 * channels * itemsize, 2 * channels * itemsize),
        unlike(elements, size + 2 * channels * itemsize, size),
    )


def batch_norm(
    batch: int, channels: int, positions: int, itemsize: int, trains: bool
) -> tuple[BlockLaunch, ...]:
    """Return the launches of a batch norm of contiguous planes, without the vendor's library."""
    size = batch * channels * positions * itemsize
    across = _threads(positions)
    collected = BlockLaunch(
        name="batch_norm_statistics",
        blocks=channels,
        threads=across * (_MOST_THREADS // across),
        sweeps=(Sweep(loaded_bytes=size / channels, under_way=_MOST_THREADS * itemsize),),
        hbm_read_bytes=size,
    )
    across = max(_threads(positions // 4), min(_threads(positions), 64))
    along = max(64 // across, 1)
    blocks = channels * max(1, min(_TRANSFORMS // channels, -(-batch // along)))
    transformed = BlockLaunch(
        name="batch_norm_transform",
        blocks=blocks,
        threads=across * along,
        sweeps=(
            Sweep(
                loaded_bytes=size / blocks,
                under_way=across * along * itemsize,
                stored_bytes=size / blocks,
            ),
        ),
        hbm_read_bytes=size,
        hbm_written_bytes=size,
    )
    return (collected, transformed) if trains else (transformed,)


def by_channel(
    channels: int, read_bytes: float, written_bytes: float, architecture: int
) -> BlockLaunch:
    """Return the launch of cuDNN's norm of float32 planes that trains, forward or backward.

    A block has a channel, which its kernels say in their names (``bn_fw_tr_1C11``).
    """
    thread_bytes = 16 if architecture >= _WITH_WIDE_LOADS else 8
    return BlockLaunch(
        name="batch_norm_by_channel",
        blocks=channels,
        threads=_MOST_THREADS,
        sweeps=(
            Sweep(
                loaded_bytes=read_bytes / channels,
                under_way=_MOST_THREADS * thread_bytes,
                stored_bytes=written_bytes / channels,
            ),
        ),
        hbm_read_bytes=read_bytes,
        hbm_written_bytes=written_bytes,
    )


def _threads(elements: int) -> int:
    """Return the threads that ATen has for so many elements."""
    return next((number for number in (32, 64, 128, 256) if elements <= number), _MOST_THREADS)
