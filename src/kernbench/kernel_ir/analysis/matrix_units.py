"""Which matrix unit of a GPU a product of Triton runs on."""

from __future__ import annotations

from enum import Enum

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
