"""Convolutions of volumes without a tensor-core kernel of cuDNN: float32 planes in three dims.

Which kernel cuDNN takes is its heuristics' choice, which nobody publishes. These two are taken to
be its choice where measured times of seven boards ask for them, and each is timed by what its
threads do.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kernbench.library_kernels.blocks import LANES, BlockLaunch, Sweep
from kernbench.library_kernels.convolution import ConvolutionPass

if TYPE_CHECKING:
    from kernbench.library_kernels.convolution import Convolution

_VOLUME = 3
_WIDE = 4
_THREADS = 256
_TAP_SLOTS, _GROUP_TAP_SLOTS = 54, 30
"""Issue slots of a thread for each tap of its window: divisions by strides, tests, the products of
those few taps that a stride leaves. KernelBench level2/50, 58, 60 and 96 on A100, A6000, T4 at
80c03d44 and 7c914ea7 (27 taps: 50 to 60; 45 for 125 taps, level2/78 on H100 at 6e6fca9c); kernels
for groups: level1/72 (105 taps: 28 to 36 on A100, H100, A6000 and T4)."""
_NARROW = 32
"""Channels that a tile of a tensor-core kernel for gradients has, but on Hopper."""
_FEW = 8
"""Channels up to which elements of patches are gathered one by one: 32 bytes."""
_COLUMNS = 32
"""Multiplications of a gathered element in a clock of a PE, without tensor cores."""


def volume_launch(
    name: str, conv: Convolution, has_narrow: bool, gathered: float
) -> BlockLaunch | None:
    """Return the launch of a convolution of volumes; None where a tensor-core kernel does it.

    ``has_narrow``: whether gradients of few channels have one. ``gathered``: how many elements of
    patches of few channels a PE gathers in a clock for its tensor cores; 0 where these do not
    multiply them.
    """
    if conv.dims != _VOLUME or not conv.planar or conv.itemsize != _WIDE or conv.is_depthwise:
        return None
    if conv.which is ConvolutionPass.TO_INPUT:
        by_vector = conv.dtype == "float32" or (conv.in_channels < _NARROW and not has_narrow)
        if conv.groups > 1 or (conv.strided and by_vector):
            return _gradient(name, conv)
    elif conv.which is ConvolutionPass.FORWARD and conv.in_channels <= _FEW and conv.groups == 1:
        return _gathered(name, conv, gathered)
    return None


def _gradient(name: str, conv: Convolution) -> BlockLaunch:
    """Return a launch whose threads make an element each, and try all taps for it."""
    blocks = math.ceil(conv.in_positions * conv.in_channels / _THREADS)
    slots = _GROUP_TAP_SLOTS if conv.groups > 1 else _TAP_SLOTS
    cycles = conv.taps * slots * _THREADS / LANES
    return _launch(name, blocks, cycles, conv.out_bytes, conv.in_bytes)


def _gathered(name: str, conv: Convolution, gathered: float) -> BlockLaunch:
    """Return a launch whose threads gather a patch each, an element of it at a time."""
    blocks = math.ceil(conv.out_positions / _THREADS)
    clocks = 1 / gathered if gathered else 1 + conv.out_channels / _COLUMNS
    cycles = conv.in_channels * conv.taps * clocks * _THREADS
    return _launch(name, blocks, cycles, conv.in_bytes, conv.out_bytes)


def _launch(name: str, blocks: int, cycles: float, read: int, written: int) -> BlockLaunch:
    loaded = max(read / blocks, 1.0)
    sweep = Sweep(loaded_bytes=loaded, under_way=loaded, stored_bytes=written / blocks)
    return BlockLaunch(
        name=name,
        blocks=blocks,
        threads=_THREADS,
        sweeps=(sweep,),
        issue_cycles=cycles,
        hbm_read_bytes=read,
        hbm_written_bytes=written,
    )
