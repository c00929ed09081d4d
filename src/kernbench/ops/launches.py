"""The launches of an operation, for timing kernels without running them.

The functions of this package take tensors and launch; these take anything that Triton accepts as a
pointer, and sizes, and return what would be launched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import triton
from triton.runtime.errors import OutOfResources

from kernbench.dtypes import DType
from kernbench.ops.base import scalar_functions as fn
from kernbench.ops.base.promotion import compute_dtype
from kernbench.ops.base.rows import row_blocks
from kernbench.ops.elementwise import elementwise_flat
from kernbench.ops.fused import residual_norm_rows
from kernbench.ops.normalization import layer_norm_rows, softmax_rows
from kernbench.ops.products.gemm_tiles import GemmTile, sum_parts, sum_parts_launch

_BLOCK = 1024
_EPS = 1e-5

# What every element is, and of how many operands.
_ELEMENTWISE = {
    "add": (fn.add, 2),
    "mul": (fn.mul, 2),
    "relu": (fn.relu, 1),
    "relu_squared": (fn.relu_squared, 1),
    "gelu": (fn.gelu, 1),
    "silu_mul": (fn.silu_mul, 2),
}
ELEMENTWISE_OPS = frozenset(_ELEMENTWISE)
ROW_OPS = frozenset({"softmax", "layernorm", "rmsnorm", "add_rmsnorm"})


@dataclass(frozen=True, slots=True)
class KernelCall:
    """``kernel[grid](*args, **options)``."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    options: Mapping[str, Any]

    def on_device(self) -> None:
        """Launch it on Triton's active driver, compiled as a GPU needs it.

        The same function, but specialized on sizes, strides and addresses that are multiples of 16,
        without which a GPU's compiler cannot use wide accesses.

        Raises:
            LookupError: It needs more of a resource than the device has.
        """
        try:
            _specialized(self.kernel)[self.grid](*self.args, **self.options)
        except OutOfResources as error:
            raise LookupError(str(error)) from None


@cache
def _specialized(kernel: Any) -> Any:
    return triton.jit(kernel.fn)


def product_call(
    a: Any, b: Any, out: Any, sizes: tuple[int, int, int], dtype: DType, tile: GemmTile
) -> KernelCall:
    """Return the GEMM of two row-major matrices, sizes M, N, K; with split-K, of its parts."""
    m, n, k = sizes
    pointers, numbers = tile.arguments((a, b, out), sizes, (k, 1, n, 1), n)
    return KernelCall(tile.kernel, tile.grid(m, n), (*pointers, *numbers), tile.constants(dtype))


def sum_parts_call(out: Any, parts: Any, size: int, split: int) -> KernelCall:
    """Return the launch that sums the parts of split-K."""
    grid, options = sum_parts_launch(size, split)
    return KernelCall(sum_parts, grid, (out, parts, size), options)


def elementwise_call(
    op: str, out: Any, operands: Sequence[Any], dtype: DType, size: int
) -> KernelCall:
    """Return one of :data:`ELEMENTWISE_OPS` on ``size`` consecutive elements.

    It takes as many of ``operands`` as it needs: two at most.
    """
    function, count = _ELEMENTWISE[op]
    slots = (*operands[:count], *(None,) * (3 - count))
    options = {"COMPUTE": compute_dtype(dtype), "FUNCTION": function, "BLOCK": _BLOCK}
    return KernelCall(elementwise_flat, (triton.cdiv(size, _BLOCK),), (out, *slots, size), options)


def rows_call(
    op: str,
    out: Any,
    operands: Sequence[Any],
    dtype: DType,
    rows: int,
    cols: int,
) -> KernelCall:
    """Return one of :data:`ROW_OPS`.

    ``operands`` are the rows, then a weight, then a bias or (for ``add_rmsnorm``) a residual; an
    operation takes what it needs.
    """
    x, weight, other = operands[0], *operands[1:3]
    blocks = row_blocks(rows, cols)
    options = {"COMPUTE": compute_dtype(dtype), **blocks}
    strides = (rows, cols, cols, 1, cols, 1)
    kernel: Any
    args: tuple[Any, ...]
    if op == "softmax":
        kernel, args = softmax_rows, (out, x, *strides)
    elif op in ("rmsnorm", "add_rmsnorm"):
        total, residual = (x, other) if op == "add_rmsnorm" else (None, None)
        kernel = residual_norm_rows
        args = (total, out, x, None, residual, weight, None, _EPS, rows, cols, cols, 1, cols, 1)
        options["CENTRED"] = False
    else:
        kernel, args = layer_norm_rows, (out, x, weight, other, _EPS, *strides, 1, 1)
    return KernelCall(kernel, (triton.cdiv(rows, blocks["BLOCK_M"]),), args, options)
