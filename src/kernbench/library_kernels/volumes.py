"""Convolutions of float32 planes for which cuDNN has no kernel that fills tiles.

Volumes, and groups of images. Its heuristics are not published: these are taken to be their choice
where measured times of seven boards ask for them, and each is timed by what its threads do.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kernbench.library_kernels.blocks import LANES, BlockLaunch, Sweep
from kernbench.library_kernels.convolution import ConvolutionPass, widths_of

if TYPE_CHECKING:
    from kernbench.library_kernels.convolution import Convolution

_VOLUME = 3
_WIDE = 4
_THREADS = 256
_TAP_SLOTS, _GROUP_TAP_SLOTS = 47, 25
"""Issue slots of a thread for each tap of its window: divisions by strides, tests, the products of
those few taps that a stride leaves; kernels for groups have fewer. KernelBench level2/13, 50, 58,
78, 96 and 100 (27 taps, 43 to 56) and level1/72 and level2/60 (groups, 23 to 29) on A100-40GB and
RTX A6000, at the clock that power leaves. A100-80GB, L40S, L4 and T4 had no part."""
_NARROW = 32
"""Channels that a tile of a tensor-core kernel for gradients has, but on Hopper."""
_FEW = 8
"""Channels up to which elements of patches are gathered one by one: 32 bytes."""
_ELEMENT_CLOCKS, _COLUMNS = 0.55, 32
"""Clocks in which a PE without tensor cores gathers an element, and multiplications of it in one
more: KernelBench level2/24 and level1/66 (16 and 64 columns) on RTX A6000, at the clock that power
leaves. L40S, L4 and T4 had no part."""


_AT_ONCE = 4
"""Channels of float32 that a kernel for groups loads at a time."""
_PRODUCT_SLOTS = 38
"""Issue slots of a thread for each of its multiplications in cuDNN's kernel for any groups
(``conv2d_grouped_direct_kernel``): its place and both loads are for one product alone. KernelBench
level3/29 (groups of 49 channels), less its other kernels and at the clock that power leaves, asks
for 30 to 44 on A100, H100, H100 PCIe, RTX A6000, L4 and L40S, and for 65 to 105 on a T4, as
level3/25 and 26 do there."""


def direct_launch(
    name: str, conv: Convolution, has_narrow: bool, gathered: float
) -> BlockLaunch | None:
    """Return the launch of a convolution by threads alone; None where a kernel with tiles does it.

    ``has_narrow``: whether gradients of few channels have one. ``gathered``: how many elements of
    few channels a PE gathers in a clock for its tensor cores; 0 where these do not multiply them.
    """
    if not conv.planar or conv.itemsize != _WIDE or conv.is_depthwise:
        return None
    if conv.dims < _VOLUME:
        return _of_groups(name, conv) if conv.groups > 1 and _has_none(conv) else None
    if conv.which is ConvolutionPass.TO_INPUT:
        by_vector = conv.dtype == "float32" or (conv.in_channels < _NARROW and not has_narrow)
        if conv.groups > 1 or (conv.strided and by_vector):
            return _gradient(name, conv)
    elif conv.which is ConvolutionPass.FORWARD and conv.in_channels <= _FEW and conv.groups == 1:
        return _gathered(name, conv, gathered)
    return None


def _has_none(conv: Convolution) -> bool:
    """Return whether there is no kernel with tiles for an image's groups.

    Tensor cores want channels in fours. In float32 a group has to make as many as it takes.
    """
    number, result = widths_of(conv)
    is_odd = number % _AT_ONCE > 0 or result % _AT_ONCE > 0
    return is_odd or (conv.dtype == "float32" and number != result)


def _of_groups(name: str, conv: Convolution) -> BlockLaunch:
    """Return a launch whose threads make an element each, one multiplication after another."""
    number, result = widths_of(conv)
    products = conv.groups * number * result * conv.taps * conv.out_positions
    elements, read, written = conv.out_positions * conv.out_channels, conv.in_bytes, conv.out_bytes
    if conv.which is ConvolutionPass.TO_INPUT:
        elements, read, written = conv.in_positions * conv.in_channels, written, read
    blocks = math.ceil(elements / _THREADS)
    return _launch(name, blocks, products / blocks * _PRODUCT_SLOTS / LANES, read, written)


def _gradient(name: str, conv: Convolution) -> BlockLaunch:
    """Return a launch whose threads make an element each, and try all taps for it."""
    blocks = math.ceil(conv.in_positions * conv.in_channels / _THREADS)
    slots = _GROUP_TAP_SLOTS if conv.groups > 1 else _TAP_SLOTS
    cycles = conv.taps * slots * _THREADS / LANES
    return _launch(name, blocks, cycles, conv.out_bytes, conv.in_bytes)


def _gathered(name: str, conv: Convolution, gathered: float) -> BlockLaunch:
    """Return a launch whose threads gather a patch each, an element of it at a time."""
    blocks = math.ceil(conv.out_positions / _THREADS)
    clocks = 1 / gathered if gathered else _ELEMENT_CLOCKS + conv.out_channels / _COLUMNS
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
        multiplies="float32",
        hbm_read_bytes=read,
        hbm_written_bytes=written,
    )
