"""ATen's kernels of windows over planes: a thread makes one result out of its window.

So its pooling (``DilatedMaxPool2d.cu``, ``AveragePool2d.cu``, ``DilatedMaxPool3d.cu``,
``AveragePool3d.cu``), and its convolution of each channel by itself (``DepthwiseConv2d.cu``). A
thread divides its number into batch, channel and position, and then goes through the window: a row
of it waits for memory or the shared cache, the elements of a row come out of the PE's own cache one
after another. Windows that overlap are read again, but not out of HBM.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernbench.library_kernels.blocks import LANES, BlockLaunch, Sweep

_PLACE_CLOCKS = 320
"""Issue slots in which a thread finds its place by whole divisions, and stores: with the next two,
KernelBench level1/83 and 85 (windows of 3 and 21) and 41 (of 8) on H100, and 46 (of 27), all at
6e6fca9c, with A6000's (7c914ea7) in view."""
_TAP_CLOCKS = 11
"""Those for each element of a window: its place, whether it is inside, load, sum or comparison."""
_FAR_TAP_CLOCKS = 25
"""The same with places in 64 bits, as in windows of three dims."""
_UNROLLED = 0.7
"""Share of these slots where a kernel is built for a window, whose loops are then gone: 1, 3 and 5
of depthwise ones. EfficientNet-B4 in float32 with planes on A100 and V100 (nv-dle, batches of 64 to
256) is 8 to 10 % too slow with all slots, and 4 to 8 % too fast with half of them."""
_NEAR_CYCLES = 33
"""Until a load from the PE's own cache is there (Jia et al., arXiv 1804.06826, table 3.1; 28 to 33
from Volta on)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """A launch that makes a result of each window."""

    results: int
    window: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    read_bytes: int
    """Bytes of the planes, each element once."""
    written_bytes: int
    threads: int
    multiplies: str = ""
    """The dtype that it multiplies on a board that this slows down."""
    unrolled: bool = False
    """Whether the kernel is built for this window."""


def window_launch(name: str, windows: Windows) -> BlockLaunch:
    """Return the blocks that go over windows."""
    *outer, row = windows.window
    rows = math.prod(outer)
    blocks = max(math.ceil(windows.results / windows.threads), 1)
    under_way = windows.threads * windows.strides[-1] * windows.itemsize
    loaded = rows * under_way
    tap_clocks = _TAP_CLOCKS if len(windows.window) < 3 else _FAR_TAP_CLOCKS
    slots = (_PLACE_CLOCKS + rows * row * tap_clocks) * (_UNROLLED if windows.unrolled else 1)
    return BlockLaunch(
        name=name,
        blocks=blocks,
        threads=windows.threads,
        sweeps=(
            Sweep(
                loaded_bytes=loaded,
                under_way=under_way,
                stored_bytes=windows.written_bytes / blocks,
                cached=max(1 - windows.read_bytes / (blocks * loaded), 0.0),
                serial_cycles=row * _NEAR_CYCLES,
            ),
        ),
        issue_cycles=slots * windows.threads / LANES,
        multiplies=windows.multiplies,
        hbm_read_bytes=windows.read_bytes,
        hbm_written_bytes=windows.written_bytes,
    )
