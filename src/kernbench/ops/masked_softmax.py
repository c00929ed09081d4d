"""The softmax of a stored matrix of attention scores, scaled and masked in the same kernel.

For stacks that keep the scores; :func:`kernbench.ops.attention` does not.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from kernbench.errors import UsageError
from kernbench.ops.base.kernel import kernel, new_result
from kernbench.ops.base.layout import row_blocks
from kernbench.ops.base.promotion import compute_dtype, require_float
from kernbench.runtime_api import Tensor


@kernel
def masked_softmax_rows(
    out_ptr, x_ptr, lengths_ptr, scale, first, M, Q, N, rows,
    CAUSAL: tl.constexpr, COMPUTE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """``out[m] = softmax(x[m] * scale)`` over the keys that query ``m % Q`` attends to, else 0.

    Of sequence ``m // rows`` it sees the first ``lengths[m // rows]``.
    """
    m = (tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    n = tl.arange(0, BLOCK_N)[None, :]
    mask = (m < M) & (n < N)
    x = tl.load(x_ptr + m * N + n, mask=mask, other=float("-inf")).to(COMPUTE) * scale
    if CAUSAL:
        x = tl.where(n <= m % Q + first, x, float("-inf"))
    if lengths_ptr is not None:
        lengths = tl.load(lengths_ptr + m // rows, mask=m < M, other=1)
        x = tl.where(n < lengths, x, float("-inf"))
    powers = tl.exp(x - tl.max(x, axis=1)[:, None])
    result = powers / tl.sum(powers, axis=1)[:, None]
    tl.store(out_ptr + m * N + n, result.to(out_ptr.dtype.element_ty), mask=mask)


@kernel
def softmax_backward_rows(
    out_ptr, grad_ptr, y_ptr, scale, M, N,
    COMPUTE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """``out[m] = y[m] * (grad[m] - sum(grad[m] * y[m])) * scale``."""
    m = (tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    n = tl.arange(0, BLOCK_N)[None, :]
    mask = (m < M) & (n < N)
    grad = tl.load(grad_ptr + m * N + n, mask=mask, other=0.0).to(COMPUTE)
    y = tl.load(y_ptr + m * N + n, mask=mask, other=0.0).to(COMPUTE)
    result = y * (grad - tl.sum(grad * y, axis=1)[:, None]) * scale
    tl.store(out_ptr + m * N + n, result.to(out_ptr.dtype.element_ty), mask=mask)


def masked_softmax(
    scores_BHQK: Tensor,
    scale: float = 1.0,
    causal: bool = False,
    lengths_B: Tensor | None = None,
) -> Tensor:
    """Return ``softmax(scores * scale)`` over the last dim.

    With ``causal`` the last query sees all keys, the one before it all but one, and so on. With
    ``lengths_B``, integers from 1 on, sequence b (of the first dim) has so many keys, and what
    follows is padding.

    Raises:
        UsageError: There are fewer than 2 dims, with ``causal`` fewer keys than queries, or not one
            length for each sequence.
    """
    _check("masked_softmax", scores_BHQK)
    if lengths_B is not None and (
        tuple(lengths_B.shape) != tuple(scores_BHQK.shape[:1]) or not lengths_B.is_contiguous()
    ):
        raise UsageError(
            f"masked_softmax: lengths must be contiguous, one for each of {scores_BHQK.shape[0]} "
            f"sequences, but got shape {tuple(lengths_B.shape)}"
        )
    queries, keys = scores_BHQK.shape[-2:]
    if causal and keys < queries:
        raise UsageError(
            f"masked_softmax: the first of {queries} queries attend to none of {keys} keys; causal "
            "needs as many keys as queries"
        )
    out = new_result(tuple(scores_BHQK.shape), scores_BHQK.dtype, scores_BHQK)
    rows = math.prod(scores_BHQK.shape[:-1])
    if rows * keys == 0:
        return out
    blocks = row_blocks(rows, keys)
    out.context.launch(
        "masked_softmax", masked_softmax_rows, out, scores_BHQK.contiguous(), lengths_B,
        float(scale), keys - queries, rows, queries, keys, rows // scores_BHQK.shape[0],
        grid=(triton.cdiv(rows, blocks["BLOCK_M"]),),
        CAUSAL=causal, COMPUTE=compute_dtype(out.dtype), **blocks,
    )  # fmt: skip
    return out


def softmax_backward(grad: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
    """Return the gradient of ``softmax(x * scale)`` with respect to x; ``y`` was its result.

    Raises:
        UsageError: The shapes differ.
    """
    _check("softmax_backward", grad)
    if tuple(grad.shape) != tuple(y.shape):
        raise UsageError(
            f"softmax_backward: the gradient has shape {tuple(grad.shape)}, the result "
            f"{tuple(y.shape)}"
        )
    out = new_result(tuple(y.shape), y.dtype, y)
    rows, columns = math.prod(y.shape[:-1]), y.shape[-1]
    if rows * columns == 0:
        return out
    blocks = row_blocks(rows, columns)
    out.context.launch(
        "softmax_backward", softmax_backward_rows, out, grad.contiguous(), y.contiguous(),
        float(scale), rows, columns, grid=(triton.cdiv(rows, blocks["BLOCK_M"]),),
        COMPUTE=compute_dtype(out.dtype), **blocks,
    )  # fmt: skip
    return out


def _check(name: str, scores: Tensor) -> None:
    require_float(name, scores)
    if len(scores.shape) < 2:
        raise UsageError(f"{name} needs at least 2 dims, but got shape {tuple(scores.shape)}")
