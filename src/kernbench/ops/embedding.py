"""Rows of a table by index, and the gradient of that."""

from __future__ import annotations

import math

import triton
import triton.language as tl

from kernbench.errors import UsageError
from kernbench.ops.base.kernel import kernel, new_result
from kernbench.ops.base.layout import block
from kernbench.runtime_api import Tensor


@kernel
def gather_rows(
    out_ptr, weight_ptr, indices_ptr, first, V, M, N, weight_v, weight_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """``out[m] = weight[indices[m] - first]``, or zeros where ``weight`` has no such row."""
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.load(indices_ptr + m, mask=m < M, other=-1).to(tl.int64) - first
    there = (row >= 0) & (row < V) & (m < M)
    mask = there[:, None] & (n < N)[None, :]
    at = row[:, None] * weight_v + n[None, :] * weight_n
    values = tl.load(weight_ptr + at, mask=mask, other=0.0)
    tl.store(
        out_ptr + m[:, None] * N + n[None, :], values, mask=(m < M)[:, None] & (n < N)[None, :]
    )


@kernel
def sum_rows_by_index(
    out_ptr, grad_ptr, indices_ptr, first, V, M, N,
    BLOCK_V: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """``out[v] = sum of grad[m] where indices[m] - first == v``: a one-hot matrix times grad.

    No atomics: each program owns its rows, so the order of the sum is always the same.
    """
    v = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_V, BLOCK_N), dtype=tl.float32)
    for start in range(0, M, BLOCK_M):
        m = start + tl.arange(0, BLOCK_M)
        row = tl.load(indices_ptr + m, mask=m < M, other=-1).to(tl.int64) - first
        mask = (m < M)[:, None] & (n < N)[None, :]
        grad = tl.load(grad_ptr + m[:, None] * N + n[None, :], mask=mask, other=0.0)
        # A masked index could equal a row when first is negative: grad is 0 there.
        one_hot = (v[:, None] == row[None, :]).to(grad.dtype)
        acc = tl.dot(one_hot, grad, acc, input_precision="ieee")
    mask = (v < V)[:, None] & (n < N)[None, :]
    tl.store(out_ptr + v[:, None] * N + n[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask)


def embedding(weight: Tensor, indices: Tensor, start: int = 0) -> Tensor:
    """Return ``weight[indices - start]``; an index outside the table gives a row of zeros.

    ``start`` is the index of the table's first row: a rank's part of a vocabulary.

    Raises:
        UsageError: ``weight`` is no matrix, or ``indices`` are no integers.
    """
    if len(weight.shape) != 2:
        raise UsageError(f"an embedding table has 2 dims, but got shape {tuple(weight.shape)}")
    if indices.dtype.is_floating_point:
        raise UsageError(f"indices must be integers, but got {indices.dtype}")
    shape = (*indices.shape, weight.shape[1])
    out = new_result(shape, weight.dtype, weight)
    count, columns = math.prod(indices.shape), weight.shape[1]
    if math.prod(shape) == 0:
        return out
    block_m, block_n = block(count, 1, 32), block(columns, 16, 256)
    out.context.launch(
        "embedding", gather_rows, out, weight, indices.contiguous(), start, weight.shape[0],
        count, columns, *weight.stride(),
        grid=(triton.cdiv(columns, block_n), triton.cdiv(count, block_m)),
        BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip
    return out


def embedding_backward(grad: Tensor, indices: Tensor, num_rows: int, start: int = 0) -> Tensor:
    """Return the gradient of ``embedding`` with respect to its table of ``num_rows`` rows.

    Raises:
        UsageError: ``grad`` is not ``indices`` with one more dim.
    """
    if tuple(grad.shape[:-1]) != tuple(indices.shape) or len(grad.shape) != len(indices.shape) + 1:
        raise UsageError(
            f"grad of an embedding must have the shape of indices {tuple(indices.shape)} and one "
            f"more dim, but got {tuple(grad.shape)}"
        )
    columns = grad.shape[-1]
    out = new_result((num_rows, columns), grad.dtype, grad)
    if math.prod(out.shape) == 0:
        return out
    block_v, block_n = block(num_rows, 16, 64), block(columns, 16, 128)
    out.context.launch(
        "embedding_backward", sum_rows_by_index, out, grad.contiguous(), indices.contiguous(),
        start, num_rows, math.prod(indices.shape), columns,
        grid=(triton.cdiv(columns, block_n), triton.cdiv(num_rows, block_v)),
        BLOCK_V=block_v, BLOCK_M=32, BLOCK_N=block_n,
    )  # fmt: skip
    return out
