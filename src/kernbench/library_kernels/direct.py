"""Convolutions of float32 planes for which cuDNN has no kernel that fills tiles.

Its heuristics are not published: these are taken to be their choice where measured times of seven
boards ask for them, and each is timed by what its threads do.
"""

from __future__ import annotations

import math

from kernbench.library_kernels.blocks import LANES, BlockLaunch, Sweep
from kernbench.library_kernels.convolution import Convolution, ConvolutionPass

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
"""Issue slots of a thread for each multiplication in cuDNN's kernel for any groups, whose loads are
for one product alone. KernelBench level3/29 (49 channels), less its other kernels and at the clock
that power leaves, asks for 30 to 44 on six boards, level3/25 and 26 for 65 to 105 on a T4."""


def direct_launch(
    name: str, conv: Convolution, has_narrow: bool, gathered: float
) -> BlockLaunch | None:
    """Return the launch of a convolution by threads alone; None where a kernel with tiles does it.

    ``has_narrow``: whether gradients of few channels have one. ``gathered``: how many elements of
    few channels a PE gathers in a clock for its tensor cores; 0 where these do not multiply them.
    """
    if not conv.planar or conv.itemsize != _WIDE or conv.is_depthwise:
        return None
    work = _of_image(conv) if conv.dims < _VOLUME else _of_volume(conv, has_narrow, gathered)
    if work is None:
        return None
    threads, clocks = work
    blocks, (read, written) = math.ceil(threads / _THREADS), conv.moved
    loaded = max(read / blocks, 1.0)
    sweep = Sweep(loaded_bytes=loaded, under_way=loaded, stored_bytes=written / blocks)
    return BlockLaunch(
        name=name,
        blocks=blocks,
        threads=_THREADS,
        sweeps=(sweep,),
        issue_cycles=clocks * _THREADS,
        multiplies="float32",
        hbm_read_bytes=read,
        hbm_written_bytes=written,
    )


def _of_image(conv: Convolution) -> tuple[float, float] | None:
    """Return how many threads make an element of groups each, and the clocks of a PE of each.

    None where a kernel has tiles: tensor cores want channels in fours, in float32 a group has to
    make as many as it takes.
    """
    number, result = conv.widths
    is_even = number % _AT_ONCE == result % _AT_ONCE == 0
    if conv.groups == 1 or (is_even and (conv.dtype != "float32" or number == result)):
        return None
    products = conv.groups * number * result * conv.taps * conv.out_positions
    threads = conv.moved[1] / conv.itemsize
    return threads, products / threads * _PRODUCT_SLOTS / LANES


def _of_volume(conv: Convolution, has_narrow: bool, gathered: float) -> tuple[float, float] | None:
    """Return the same where threads try all taps for an element, or gather a patch each."""
    if conv.which is ConvolutionPass.TO_INPUT:
        by_vector = conv.dtype == "float32" or (conv.in_channels < _NARROW and not has_narrow)
        if conv.groups > 1 or (conv.strided and by_vector):
            slots = _GROUP_TAP_SLOTS if conv.groups > 1 else _TAP_SLOTS
            return conv.in_positions * conv.in_channels, conv.taps * slots / LANES
    elif conv.which is ConvolutionPass.FORWARD and conv.in_channels <= _FEW and conv.groups == 1:
        clocks = 1 / gathered if gathered else _ELEMENT_CLOCKS + conv.out_channels / _COLUMNS
        return conv.out_positions, conv.in_channels * conv.taps * clocks
    return None
