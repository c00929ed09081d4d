"""Scans: cumulative sums, products, maxima.

Along rows, a block of 512 threads has some of them, and twice its width of each under way; shared
memory combines what is there in a tree, and the total goes on to the next part of the row
(``tensor_kernel_scan_innermost_dim`` of ``ScanUtils.cuh``). Across rows, a thread goes down its
column (``tensor_kernel_scan_outer_dim``).
"""

from __future__ import annotations

from kernbench.library_kernels.blocks import BlockLaunch, Sweep

_THREADS = 512
_LEAST_WIDTH = 4
"""The binary logarithm of the fewest threads that share a row."""
_RESIDENT = 3
"""Blocks of a PE, by registers."""
_STEP_CYCLES = 80
"""A step of the tree in shared memory, with a barrier of 16 warps."""
_PAGE_BYTES = 1024
_SHORT_RUNS = 0.64
"""Share of a stream's bandwidth that parts of rows reach which are shorter than a page of DRAM, and
thousands of rows at a time: 32,768 rows of as many floats, 128 bytes each, take 4.64 to 4.69 ms on
H100, 7.33 on H100 PCIe, 18.5 on L40S (KernelBench level1/90 at 509ed996, 6e6fca9c, 3396fc0c,
4082b873): 54 to 59 % of their peaks."""


def scan(outer: int, cols: int, inner: int, itemsize: int, out_itemsize: int) -> BlockLaunch:
    """Return the launch of a scan over ``cols``; ``inner`` elements lie inside of each step.

    ``out_itemsize`` are the bytes of all results of an element: of its index, too.
    """
    elements, share = outer * cols * inner, 1.0
    if inner > 1:
        threads = min(_THREADS, inner)
        blocks = outer * -(-inner // threads)
        sweep = Sweep(
            loaded_bytes=elements * itemsize / blocks,
            under_way=threads * itemsize,
            stored_bytes=elements * out_itemsize / blocks,
        )
    else:
        wide = (9 + max(cols - 1, 0).bit_length() - max(outer - 1, 0).bit_length()) // 2
        wide = min(max(wide, _LEAST_WIDTH), 9)
        threads, rows = _THREADS, _THREADS >> wide
        blocks = -(-outer // rows)
        trips = -(-cols // (2 << wide))
        if 2 * itemsize << wide < _PAGE_BYTES:
            share = _SHORT_RUNS
        sweep = Sweep(
            loaded_bytes=elements * itemsize / blocks,
            under_way=elements * itemsize / blocks / trips,
            stored_bytes=elements * out_itemsize / blocks,
            serial_cycles=(wide + 3) * _STEP_CYCLES,
        )
    return BlockLaunch(
        name="scan",
        blocks=blocks,
        threads=threads,
        sweeps=(sweep,),
        most_resident=_RESIDENT,
        hbm_read_bytes=elements * itemsize,
        hbm_written_bytes=elements * out_itemsize,
        hbm_share=share,
    )
