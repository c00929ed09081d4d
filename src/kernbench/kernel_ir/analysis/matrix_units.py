"""Which matrix unit of a GPU a product of Triton runs on."""

from __future__ import annotations

from enum import Enum

from kernbench.kernel_ir.analysis.pipelining import DOTS
from kernbench.kernel_ir.text.ir import Function, Op, Value

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
