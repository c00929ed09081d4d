"""How the elements of a tile lie in the threads of a GPU, as far as that says what reducing costs.

Triton lays a tile as its widest load brings it: each thread has some elements next to each other,
the lanes of a warp go on from there, then the warps of the block, and what is left lies in further
registers of each thread. A tile that a product leaves lies otherwise.
"""

from __future__ import annotations

import math
from enum import Enum

from kernbench.kernel_ir.analysis.live_tiles import DOTS
from kernbench.kernel_ir.text.ir import Function, Op, Region, Value

_ACCESS_BYTES = 16
"""The widest access of one thread."""
_LOADS = ("tt.load", "tt.descriptor_load", "tt.experimental_descriptor_load")


def vectors_of_reductions(body: Region) -> dict[Op, int]:
    """Return for each ``tt.reduce`` how many elements of its tile each thread has in a row.

    0 where the tile is what a product left, or made of it.
    """
    known: dict[Value, int] = {}
    reductions: dict[Op, int] = {}
    _visit(body, known, reductions)
    return reductions


def _visit(region: Region, known: dict[Value, int], reductions: dict[Op, int]) -> None:
    for op in (op for block in region.blocks for op in block.ops):
        widths = [known[operand] for operand in op.operands if operand in known]
        width = None if not widths else 0 if 0 in widths else max(widths)
        if op.name in DOTS:
            width = 0
        elif op.name in _LOADS and op.results[0].type.dtype is not None:
            width = max(_ACCESS_BYTES // op.results[0].type.dtype.itemsize, 1)
        if op.name == "tt.reduce":
            dtype = op.operands[0].type.dtype
            itemsize = 4 if dtype is None else dtype.itemsize
            reductions[op] = max(_ACCESS_BYTES // itemsize, 1) if width is None else width
        last: tuple[Value, ...] = ()
        for inner in op.regions:
            if op.name == "scf.for":
                carried = zip(op.operands[3:], inner.entry.args[1:], strict=False)
                known.update({arg: known[init] for init, arg in carried if init in known})
            _visit(inner, known, reductions)
            last = inner.entry.ops[-1].operands if inner.blocks and inner.entry.ops else ()
        for result, value in zip(op.results, last, strict=False):
            if value in known:
                known[result] = known[value]
        if width is not None:
            known.update((value, width) for value in op.results if value not in known)


def reduced_bits(
    shape: tuple[int, ...], axis: int, vector: int, lanes: int, num_warps: int
) -> tuple[int, int, int]:
    """Return how often a reduction halves a tile inside of threads, among lanes, among warps.

    >>> reduced_bits((8192,), 0, 4, 32, 8)
    (5, 5, 3)
    >>> reduced_bits((32, 2, 16), 1, 4, 32, 4)
    (0, 1, 0)
    """
    inner = log2(math.prod(shape[axis + 1 :]))
    first, last = inner, inner + log2(shape[axis])
    size = log2(math.prod(shape))
    threads = min(log2(lanes * num_warps), size)
    own = min(log2(vector), size - threads)
    of_lanes = _overlap(first, last, own, own + min(log2(lanes), threads))
    of_warps = _overlap(first, last, own + log2(lanes), own + threads)
    return last - first - of_lanes - of_warps, of_lanes, of_warps


def _overlap(first: int, last: int, begin: int, end: int) -> int:
    return max(0, min(last, end) - max(first, begin))


def log2(count: int) -> int:
    """Return how often a count can be halved, rounded up to a power of two."""
    return max(count - 1, 0).bit_length()


NO_CUDA = 0
"""The architecture of GPUs whose matrix units take operands from registers, and which are not
CUDA's: AMD's."""
_WGMMA, _TENSOR_MEMORY_ENDS = 90, 120
_LEAST_ROWS = 64
_GROUP_WARPS = 4


class MatrixUnit(Enum):
    """Where a product's operands come from."""

    REGISTERS = "mma"
    """Each warp multiplies fragments that it has loaded to its registers."""
    SHARED = "wgmma"
    """Four warps together; the unit reads shared memory itself."""


def matrix_unit(cuda_architecture: int, num_warps: int, rows: int) -> MatrixUnit:
    """Return the unit of products with ``rows`` rows: Triton's choice.

    Units that read shared memory are those of 9.0 (wgmma) and of 10.x (tcgen05), for tiles of 64
    rows or more in blocks of whole groups of four warps; 12.x has none.
    """
    grouped = num_warps % _GROUP_WARPS == 0 and rows >= _LEAST_ROWS
    if grouped and _WGMMA <= cuda_architecture < _TENSOR_MEMORY_ENDS:
        return MatrixUnit.SHARED
    return MatrixUnit.REGISTERS


def multiplies_as_float16(cuda_architecture: int, unit: MatrixUnit) -> bool:
    """Return whether products of 8-bit floats are products of float16 there.

    ``mma`` of 8-bit floats is emulated on 9.0 and 10.x: operands are converted first. Before 8.9
    Triton converts them itself.
    """
    native = cuda_architecture in (NO_CUDA, 89) or cuda_architecture >= _TENSOR_MEMORY_ENDS
    return unit is MatrixUnit.REGISTERS and not native


def chained_product(function: Function) -> Op | None:
    """Return the last product whose first factor is computed of another product; None without."""
    computed, last = set[Value](), None
    for op in function.body.walk():
        if op.name in DOTS and op.operands[0] in computed:
            last = op
        if op.name in DOTS or not computed.isdisjoint(op.operands):
            computed.update(op.results)
    return last


def lies_across(shape: tuple[int, ...], cuda_architecture: int, num_warps: int) -> bool:
    """Return whether all warps lie side by side over the columns of products that are chained.

    So Triton has them for ``mma`` where the last product's ``shape`` has more columns than rows:
    factors that were computed cross to other warps. Else they lie one below the other, and such a
    factor stays where it is. Source: ``warpsPerTileV2`` of ``AccelerateMatmul.cpp``.
    """
    rows, columns = shape[-2:]
    unit = matrix_unit(cuda_architecture, num_warps, rows)
    is_cuda = cuda_architecture != NO_CUDA
    return is_cuda and unit is MatrixUnit.REGISTERS and rows < columns
