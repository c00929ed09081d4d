"""The gradients of scaled dot-product attention, without a matrix of scores.

Source: Dao, "FlashAttention-2", 2023, algorithm 2. One kernel goes over the keys of a tile of
queries (for q), one over the queries of a tile of keys (for k and v), so that nothing is summed by
atomics and the bits are the same every time.

Names of dims as in :mod:`kernbench.ops.attention`.
"""

from __future__ import annotations

import math
from typing import Any

import triton
import triton.language as tl

from kernbench.dtypes import float32
from kernbench.errors import UsageError
from kernbench.ops.attention import (
    NUM_STAGES,
    Sizes,
    check_sizes,
    first_query,
    mask_strides,
    scale_of,
)
from kernbench.ops.base.kernel import kernel, new_result
from kernbench.ops.base.layout import block
from kernbench.ops.base.promotion import compute_dtype
from kernbench.runtime_api import Tensor


@kernel
def attention_delta(
    delta_ptr, grad_ptr, out_ptr, M, H, Sq, D, grad_b, grad_h, grad_s, grad_d,
    out_b, out_h, out_s, out_d, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """``delta[b, h, q] = sum over d of grad * out``, in float32."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    mask = (m < M)[:, None] & (d < D)[None, :]
    head, query = m // Sq, m % Sq
    grad_at = head // H * grad_b + head % H * grad_h + query * grad_s
    out_at = head // H * out_b + head % H * out_h + query * out_s
    grad = tl.load(grad_ptr + grad_at[:, None] + d[None, :] * grad_d, mask=mask, other=0.0)
    out = tl.load(out_ptr + out_at[:, None] + d[None, :] * out_d, mask=mask, other=0.0)
    delta = tl.sum(grad.to(tl.float32) * out.to(tl.float32), axis=1)
    tl.store(delta_ptr + m, delta, mask=m < M)


@triton.jit
def _weights(q, k, lse, mask, scale, visible, ACC: tl.constexpr):
    """Recompute the softmax of a tile of scores: ``exp(q @ k * scale + mask - lse)``."""
    scores = tl.dot(q, k, input_precision="ieee", out_dtype=ACC) * scale
    if mask is not None:
        scores += mask.to(ACC)
    # A row that sees no key has a sum of 0, and weights of 0.
    known = lse != float("-inf")
    weights = tl.exp(scores - tl.where(known, lse, 0.0)[:, None])
    return tl.where(visible & known[:, None], weights, 0.0)


@kernel
def attention_grad_q(
    gq_ptr, q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, delta_ptr, mask_ptr,
    scale, first, H, Sq, Sk, D,
    gq_b, gq_h, gq_s, q_b, q_h, q_s, q_d, k_b, k_h, k_s, k_d, v_b, v_h, v_s, v_d,
    grad_b, grad_h, grad_s, grad_d, mask_b, mask_h, mask_q, mask_k,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, ACC: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """``gq = sum over keys of weights * (grad @ v.T - delta) * scale @ k``, a tile of queries."""
    b, h = tl.program_id(1) // H, tl.program_id(1) % H
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    rows, inside = m < Sq, d < D
    tile = rows[:, None] & inside[None, :]
    q_ptrs = q_ptr + b * q_b + h * q_h + m[:, None] * q_s + d[None, :] * q_d
    q = tl.load(q_ptrs, mask=tile, other=0.0)
    grad_ptrs = grad_ptr + b * grad_b + h * grad_h + m[:, None] * grad_s + d[None, :] * grad_d
    grad = tl.load(grad_ptrs, mask=tile, other=0.0)
    row = tl.program_id(1) * Sq + m
    lse = tl.load(lse_ptr + row, mask=rows, other=float("-inf"))
    delta = tl.load(delta_ptr + row, mask=rows, other=0.0)
    k_ptrs = k_ptr + b * k_b + h // GROUP * k_h + d[:, None] * k_d + n[None, :] * k_s
    v_ptrs = v_ptr + b * v_b + h // GROUP * v_h + d[:, None] * v_d + n[None, :] * v_s
    mask_ptrs = mask_ptr
    if mask_ptr is not None:
        mask_ptrs = mask_ptr + b * mask_b + h * mask_h + m[:, None] * mask_q + n[None, :] * mask_k
    end = Sk
    if CAUSAL:
        end = min(Sk, min(tl.program_id(0) * BLOCK_M + BLOCK_M, Sq) + first)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=ACC)
    for start in range(0, end, BLOCK_N):
        keys = start + n
        here = inside[:, None] & (keys < Sk)[None, :]
        k = tl.load(k_ptrs + start * k_s, mask=here, other=0.0)
        v = tl.load(v_ptrs + start * v_s, mask=here, other=0.0)
        visible = rows[:, None] & (keys < Sk)[None, :]
        added = None
        if mask_ptr is not None:
            added = tl.load(mask_ptrs + start * mask_k, mask=visible, other=0.0)
        if CAUSAL:
            visible = visible & (keys[None, :] <= m[:, None] + first)
        weights = _weights(q, k, lse, added, scale, visible, ACC)
        slope = tl.dot(grad, v, input_precision="ieee", out_dtype=ACC) - delta[:, None]
        slope = weights * slope
        acc = tl.dot(slope.to(k.dtype), tl.trans(k), acc, input_precision="ieee", out_dtype=ACC)
    gq_ptrs = gq_ptr + b * gq_b + h * gq_h + m[:, None] * gq_s + d[None, :]
    tl.store(gq_ptrs, (acc * scale).to(gq_ptr.dtype.element_ty), mask=tile)


@kernel
def attention_grad_kv(
    gk_ptr, gv_ptr, q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, delta_ptr, mask_ptr,
    scale, first, H, Sq, Sk, D,
    gk_b, gk_h, gk_s, gv_b, gv_h, gv_s,
    q_b, q_h, q_s, q_d, k_b, k_h, k_s, k_d, v_b, v_h, v_s, v_d,
    grad_b, grad_h, grad_s, grad_d, mask_b, mask_h, mask_q, mask_k,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, ACC: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile of keys and values, over all query heads that share them."""
    key_heads = H // GROUP
    b, g = tl.program_id(1) // key_heads, tl.program_id(1) % key_heads
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    columns, inside = n < Sk, d < D
    k_ptrs = k_ptr + b * k_b + g * k_h + d[:, None] * k_d + n[None, :] * k_s
    v_ptrs = v_ptr + b * v_b + g * v_h + d[:, None] * v_d + n[None, :] * v_s
    k = tl.load(k_ptrs, mask=inside[:, None] & columns[None, :], other=0.0)
    v = tl.load(v_ptrs, mask=inside[:, None] & columns[None, :], other=0.0)
    begin = 0
    if CAUSAL:
        # The first query that sees the tile's first key, back to a whole tile of queries.
        begin = max(tl.program_id(0) * BLOCK_N - first, 0) // BLOCK_M * BLOCK_M
    gk = tl.zeros((BLOCK_N, BLOCK_D), dtype=ACC)
    gv = tl.zeros((BLOCK_N, BLOCK_D), dtype=ACC)
    for share in range(GROUP):
        h = g * GROUP + share
        for start in range(begin, Sq, BLOCK_M):
            queries = start + m
            rows = queries < Sq
            here = rows[:, None] & inside[None, :]
            at = queries[:, None] * q_s + d[None, :] * q_d
            q = tl.load(q_ptr + b * q_b + h * q_h + at, mask=here, other=0.0)
            at = queries[:, None] * grad_s + d[None, :] * grad_d
            grad = tl.load(grad_ptr + b * grad_b + h * grad_h + at, mask=here, other=0.0)
            row = (b * H + h) * Sq + queries
            lse = tl.load(lse_ptr + row, mask=rows, other=float("-inf"))
            delta = tl.load(delta_ptr + row, mask=rows, other=0.0)
            visible = rows[:, None] & columns[None, :]
            added = None
            if mask_ptr is not None:
                at = queries[:, None] * mask_q + n[None, :] * mask_k
                added = tl.load(mask_ptr + b * mask_b + h * mask_h + at, mask=visible, other=0.0)
            if CAUSAL:
                visible = visible & (n[None, :] <= queries[:, None] + first)
            weights = _weights(q, k, lse, added, scale, visible, ACC)
            gv = tl.dot(
                tl.trans(weights.to(grad.dtype)), grad, gv, input_precision="ieee", out_dtype=ACC
            )
            slope = tl.dot(grad, v, input_precision="ieee", out_dtype=ACC) - delta[:, None]
            slope = (weights * slope).to(q.dtype)
            gk = tl.dot(tl.trans(slope), q, gk, input_precision="ieee", out_dtype=ACC)
    here = columns[:, None] & inside[None, :]
    gk_ptrs = gk_ptr + b * gk_b + g * gk_h + n[:, None] * gk_s + d[None, :]
    tl.store(gk_ptrs, (gk * scale).to(gk_ptr.dtype.element_ty), mask=here)
    gv_ptrs = gv_ptr + b * gv_b + g * gv_h + n[:, None] * gv_s + d[None, :]
    tl.store(gv_ptrs, gv.to(gv_ptr.dtype.element_ty), mask=here)


def attention_backward(
    grad_BHQD: Tensor,
    q_BHQD: Tensor,
    k_BGKD: Tensor,
    v_BGKD: Tensor,
    out_BHQD: Tensor,
    lse_BHQ: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    query_offset: int | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v.

    ``out_BHQD`` and ``lse_BHQ`` are what :func:`~kernbench.ops.attention_with_lse` returned, the
    options those that it was given. A mask gets no gradient.

    Raises:
        UsageError: Shapes or dtypes do not fit; names them.
    """
    sizes = check_sizes(q_BHQD, k_BGKD, v_BGKD, mask)
    for name, tensor in (("the gradient", grad_BHQD), ("out", out_BHQD)):
        if tuple(tensor.shape) != tuple(q_BHQD.shape) or tensor.dtype != q_BHQD.dtype:
            raise UsageError(
                f"attention_backward: {name} must have the shape and dtype of q, "
                f"{tuple(q_BHQD.shape)} of {q_BHQD.dtype}, but is {tuple(tensor.shape)} of "
                f"{tensor.dtype}"
            )
    if tuple(lse_BHQ.shape) != tuple(q_BHQD.shape[:3]) or lse_BHQ.dtype != float32:
        raise UsageError(
            f"attention_backward: lse must be {tuple(q_BHQD.shape[:3])} of float32, but is "
            f"{tuple(lse_BHQ.shape)} of {lse_BHQ.dtype}"
        )
    q, k, v = q_BHQD, k_BGKD, v_BGKD
    grads = [new_result(tuple(tensor.shape), tensor.dtype, tensor) for tensor in (q, k, v)]
    if math.prod(q.shape) == 0:
        for grad in grads:
            grad.zero_()
        return grads[0], grads[1], grads[2]
    lse = lse_BHQ.contiguous()
    delta = _delta(sizes, grad_BHQD, out_BHQD)
    first = first_query(sizes, query_offset)
    numbers = (scale_of(sizes, scale), first, sizes.heads, sizes.queries, sizes.keys, sizes.width)
    strides = (*q.stride(), *k.stride(), *v.stride(), *grad_BHQD.stride())
    strides += mask_strides(sizes, mask)
    # Half the rows of forward, as twice as much is held.
    blocks = sizes.blocks(q.dtype.itemsize)
    blocks |= {"BLOCK_M": block(sizes.queries, 16, 64), "BLOCK_N": min(blocks["BLOCK_N"], 64)}
    options: dict[str, Any] = {
        "GROUP": sizes.group,
        "CAUSAL": causal,
        "ACC": compute_dtype(q.dtype),
        "num_stages": NUM_STAGES,
        **blocks,
    }
    operands = (q, k, v, grad_BHQD, lse, delta, mask)
    q.context.launch(
        "attention_grad_q", attention_grad_q, grads[0], *operands, *numbers,
        *grads[0].stride()[:3], *strides,
        grid=(triton.cdiv(sizes.queries, blocks["BLOCK_M"]), sizes.batch * sizes.heads),
        **options,
    )  # fmt: skip
    q.context.launch(
        "attention_grad_kv", attention_grad_kv, grads[1], grads[2], *operands, *numbers,
        *grads[1].stride()[:3], *grads[2].stride()[:3], *strides,
        grid=(triton.cdiv(sizes.keys, blocks["BLOCK_N"]), sizes.batch * sizes.key_heads),
        **options,
    )  # fmt: skip
    return grads[0], grads[1], grads[2]


def _delta(sizes: Sizes, grad: Tensor, out: Tensor) -> Tensor:
    delta = grad.context.empty(tuple(grad.shape[:3]), dtype=float32)
    rows = sizes.batch * sizes.heads * sizes.queries
    block_d = block(sizes.width, 16, 1024)
    block_m = block(rows, 1, max(4096 // block_d, 1))
    grad.context.launch(
        "attention_delta", attention_delta, delta, grad, out,
        rows, sizes.heads, sizes.queries, sizes.width, *grad.stride(), *out.stride(),
        grid=(triton.cdiv(rows, block_m),), BLOCK_M=block_m, BLOCK_D=block_d,
    )  # fmt: skip
    return delta
