"""A matrix product with a given tile: what an autotuner chooses among.

:func:`kernbench.ops.matmul` picks a tile that is good enough. A vendor's library has a list of
kernels and takes the fastest one; :class:`GemmTile` is one entry of such a list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from kernbench.dtypes import DType, float32
from kernbench.errors import UsageError
from kernbench.kernel_time import SharedCache
from kernbench.ops.base.kernel import Memo, kernel, new_result, prepare, require_dims
from kernbench.ops.base.layout import Ints
from kernbench.ops.base.promotion import compute_dtype, require_float
from kernbench.runtime_api import LaunchAttributes, Tensor


@kernel
def gemv_tiles(
    a_ptr, b_ptr, bias_ptr, c_ptr, M, N, K, steps,
    a_m, a_k, b_k, b_n, bias_n, c_split, c_m, c_n,
    ACTIVATION: tl.constexpr, ACC: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """``C[s] = activation(A[:, part s] @ B[part s, :] + bias)``, part ``s = program_id(1)`` of K.

    Each program has BLOCK_N columns of one row. It keeps a sum per row of its tile of B, so that
    programs reduce across rows once. A bias or an activation goes with a single part.
    """
    num_n = tl.cdiv(N, BLOCK_N)
    pid = tl.program_id(0)
    m = pid // num_n
    n = pid % num_n * BLOCK_N + tl.arange(0, BLOCK_N)
    first_k = tl.program_id(1) * steps * BLOCK_K
    k = tl.arange(0, BLOCK_K)

    a_ptrs = a_ptr + m * a_m + (first_k + k) * a_k
    b_ptrs = b_ptr + (first_k + k[:, None]) * b_k + n[None, :] * b_n
    acc = tl.zeros((BLOCK_K, BLOCK_N), dtype=ACC)
    for step in tl.range(0, steps, num_stages=STAGES):
        left = K - first_k - step * BLOCK_K
        a = tl.load(a_ptrs, mask=k < left, other=0.0)
        b = tl.load(b_ptrs, mask=(k[:, None] < left) & (n[None, :] < N), other=0.0)
        acc += a.to(ACC)[:, None] * b.to(ACC)
        a_ptrs += BLOCK_K * a_k
        b_ptrs += BLOCK_K * b_k
    row = tl.sum(acc, axis=0)
    if bias_ptr is not None:
        row += tl.load(bias_ptr + n * bias_n, mask=n < N, other=0.0).to(ACC)
    if ACTIVATION is not None:
        row = ACTIVATION(row)
    c = c_ptr + tl.program_id(1) * c_split + m * c_m + n * c_n
    tl.store(c, row.to(c_ptr.dtype.element_ty), mask=n < N)


_SUM_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class GemmTile:
    """One configuration of a GEMM kernel; sizes are powers of two, 16 or more.

    One with ``block_m`` 1 is of :func:`gemv_tiles`, which uses no matrix engine.
    """

    block_m: int
    block_n: int
    block_k: int = 64
    block_n2: int = 0
    """Columns of a second piece of the tile, so that its width need not be a power of two."""
    split_k: int = 1
    """Programs that share one tile of C, each with a part of K."""
    group: int = 8
    num_stages: int = 3

    @property
    def columns(self) -> int:
        return self.block_n + self.block_n2

    @property
    def is_vector(self) -> bool:
        """Whether a program computes one row of C without dots."""
        return self.block_m == 1

    @property
    def kernel(self) -> Any:
        """The kernel that this is a configuration of."""
        return gemv_tiles if self.is_vector else gemm_tiles

    @property
    def sum_bytes(self) -> int:
        """Bytes of the accumulator of a program: a tile of C, or of B for a vector."""
        return 4 * self.columns * (self.block_k if self.is_vector else self.block_m)

    def steps(self, k: int) -> int:
        """Return how many tiles of K one program processes."""
        return -(-k // (self.block_k * self.split_k))

    def grid(self, m: int, n: int) -> tuple[int, int]:
        return triton.cdiv(m, self.block_m) * triton.cdiv(n, self.columns), self.split_k

    def arguments(
        self, tensors: tuple[Any, Any, Any], sizes: Ints, strides: Ints, out_stride: int
    ) -> tuple[tuple[Any, ...], Ints]:
        """Return the pointers and the numbers that :attr:`kernel` takes: a, b, c; M, N, K.

        ``strides`` are of a row and a column of a, then of b; those of c in a row are 1.
        """
        a, b, c = tensors
        m, n, k = sizes
        of_c = (m * n, out_stride, 1)
        if self.is_vector:
            return (a, b, None, c), (m, n, k, self.steps(k), *strides, 0, *of_c)
        return (a, b, c), (m, n, k, self.steps(k), *strides, *of_c)

    def constants(self, dtype: DType, wide: bool = False) -> dict[str, Any]:
        """Return the constexprs and options of :attr:`kernel`; wide: for any extent."""
        if self.is_vector:
            return {
                "ACTIVATION": None,
                "ACC": compute_dtype(dtype),
                "BLOCK_N": self.block_n,
                "BLOCK_K": self.block_k,
                "STAGES": self.num_stages,
                "num_stages": self.num_stages,
            }
        return {
            "ACC": compute_dtype(dtype),
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "BLOCK_N2": self.block_n2,
            "BLOCK_K": self.block_k,
            "GROUP": self.group,
            "WIDE": wide,
            "num_stages": self.num_stages,
        }

    def __str__(self) -> str:
        split = f" split-K {self.split_k}" if self.split_k > 1 else ""
        return f"{self.block_m}x{self.columns}x{self.block_k}{split} {self.num_stages} stages"


@kernel
def gemm_tiles(
    a_ptr, b_ptr, c_ptr, M, N, K, steps, a_m, a_k, b_k, b_n, c_split, c_m, c_n,
    ACC: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_N2: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """``C[s] = A[:, part s] @ B[part s, :]`` with part ``s = program_id(1)`` of K.

    With WIDE offsets of rows and columns have 64 bits.

    Programs go through C in bands of GROUP tiles in M. A tile has BLOCK_N columns and then BLOCK_N2
    more, which share its rows of A.
    """
    num_m = tl.cdiv(M, BLOCK_M)
    num_n = tl.cdiv(N, BLOCK_N + BLOCK_N2)
    pid = tl.program_id(0)
    first_m = pid // (GROUP * num_n) * GROUP
    band = min(num_m - first_m, GROUP)
    m = (first_m + pid % (GROUP * num_n) % band) * BLOCK_M + tl.arange(0, BLOCK_M)
    first_n = (pid % (GROUP * num_n) // band) * (BLOCK_N + BLOCK_N2)
    first_k = tl.program_id(1) * steps * BLOCK_K
    k = tl.arange(0, BLOCK_K)
    n = first_n + tl.arange(0, BLOCK_N)
    if WIDE:
        m, n, first_k = m.to(tl.int64), n.to(tl.int64), first_k.to(tl.int64)

    a_ptrs = a_ptr + m[:, None] * a_m + (first_k + k[None, :]) * a_k
    b_ptrs = b_ptr + (first_k + k[:, None]) * b_k + n[None, :] * b_n
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC)
    if BLOCK_N2:
        n2 = first_n + BLOCK_N + tl.arange(0, BLOCK_N2)
        if WIDE:
            n2 = n2.to(tl.int64)
        b2_ptrs = b_ptr + (first_k + k[:, None]) * b_k + n2[None, :] * b_n
        acc2 = tl.zeros((BLOCK_M, BLOCK_N2), dtype=ACC)
    for step in range(steps):
        left = K - first_k - step * BLOCK_K
        a = tl.load(a_ptrs, mask=(m[:, None] < M) & (k[None, :] < left), other=0.0)
        b = tl.load(b_ptrs, mask=(k[:, None] < left) & (n[None, :] < N), other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee", out_dtype=ACC)
        a_ptrs += BLOCK_K * a_k
        b_ptrs += BLOCK_K * b_k
        if BLOCK_N2:
            b2 = tl.load(b2_ptrs, mask=(k[:, None] < left) & (n2[None, :] < N), other=0.0)
            acc2 = tl.dot(a, b2, acc2, input_precision="ieee", out_dtype=ACC)
            b2_ptrs += BLOCK_K * b_k
    c = c_ptr + tl.program_id(1) * c_split + m[:, None] * c_m
    rows = m[:, None] < M
    dtype = c_ptr.dtype.element_ty
    tl.store(c + n[None, :] * c_n, acc.to(dtype), mask=rows & (n[None, :] < N))
    if BLOCK_N2:
        tl.store(c + n2[None, :] * c_n, acc2.to(dtype), mask=rows & (n2[None, :] < N))


@kernel
def sum_parts(out_ptr, parts_ptr, size, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    """``out[i] = sum over s of parts[s, i]``, in the order of ``s``."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.load(parts_ptr + at, mask=at < size, other=0.0)
    for part in tl.static_range(1, SPLIT):
        acc += tl.load(parts_ptr + part * size + at, mask=at < size, other=0.0)
    tl.store(out_ptr + at, acc.to(out_ptr.dtype.element_ty), mask=at < size)


def sum_parts_launch(size: int, split: int) -> tuple[tuple[int], dict[str, Any]]:
    """Return the grid of :func:`sum_parts` and its constexprs."""
    return (triton.cdiv(size, _SUM_BLOCK),), {"SPLIT": split, "BLOCK": _SUM_BLOCK}


def matmul_tiled(a: Tensor, b: Tensor, tile: GemmTile) -> Tensor:
    """Return ``a @ b`` of two matrices, computed with the given tile.

    With ``split_k`` above 1, parts are summed in float32 by a second kernel, which starts as the
    first one ends and finds in the cache what that holds of the parts.

    Raises:
        UsageError: They are not matrices, or their inner sizes or dtypes differ.
    """
    for operand in (a, b):
        require_dims("matmul_tiled", operand, 2)
        require_float("matmul_tiled", operand)
    if len(a.shape) > 2 or len(b.shape) > 2 or a.shape[1] != b.shape[0] or a.dtype != b.dtype:
        raise UsageError(
            f"matmul_tiled needs two matrices whose inner sizes and dtypes match, but got "
            f"{tuple(a.shape)} of {a.dtype} and {tuple(b.shape)} of {b.dtype}"
        )
    m, k = a.shape
    n = b.shape[1]
    out = new_result((m, n), a.dtype, a)
    if 0 not in (m, n):
        sizes, strides = (m, n, k), (*a.stride(), *b.stride())
        launch_tiles("matmul_tiled", (a, b, out), sizes, strides, n, tile)
    return out


def is_wide(sizes: tuple[int, int, int], strides: tuple[int, ...], out_stride: int) -> bool:
    """Return whether an element of a product's tensors lies 2^31 elements behind the first."""
    m, n, k = sizes
    a_m, a_k, b_k, b_n = strides
    return max(m * a_m + k * a_k, k * b_k + n * b_n, m * out_stride + n) > 1 << 31


_PREPARED = Memo()
"""The launches of each product, by sizes, strides, dtypes and tile."""


def launch_tiles(
    name: str,
    tensors: tuple[Tensor, Tensor, Tensor],
    sizes: tuple[int, int, int],
    strides: tuple[int, ...],
    out_stride: int,
    tile: GemmTile,
) -> None:
    """Launch a tile's kernel for ``tensors`` a, b and out, and what sums the parts of K.

    ``sizes`` are M, N, K, ``strides`` of a row and a column of a, then of b. The result's rows are
    ``out_stride`` apart; with ``split_k`` above 1 that is N.
    """
    a, b, out = tensors
    m, n, _ = sizes
    key = (a.dtype, out.dtype, sizes, strides, out_stride, tile)
    parts = new_result((tile.split_k, m, n), float32, a) if tile.split_k > 1 else out
    prepared = _PREPARED.get(key)
    if prepared is None:
        pointers, numbers = tile.arguments((a, b, parts), sizes, strides, out_stride)
        options = tile.constants(a.dtype, is_wide(sizes, strides, out_stride))
        stages = options.pop("num_stages")
        grid = tile.grid(m, n)
        product = prepare(tile.kernel, pointers, numbers, grid, options, num_stages=stages)
        summing = None
        if tile.split_k > 1:
            sum_grid, constants = sum_parts_launch(m * n, tile.split_k)
            summing = prepare(sum_parts, (out, parts), (m * n,), sum_grid, constants)
        prepared = _PREPARED.keep(key, (product, summing))
    product, summing = prepared
    pointers = (a, b, None, parts) if tile.is_vector else (a, b, parts)
    if summing is None:
        product.launch(name, pointers, out.context)
        return
    sip = out.context.machine.sip_at(out.sip_id)
    held = SharedCache(sip).result_share(4 * m * n * tile.split_k)
    product.launch(name, pointers, out.context, LaunchAttributes(cached=(("c_ptr", held),)))
    summing.launch(
        f"{name}_sum", (out, parts), out.context,
        LaunchAttributes(follows=True, cached=(("parts_ptr", held),)),
    )  # fmt: skip
