"""Attention in the manner of Triton's tutorial 06, forward and backward, for the host benches."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _attention_blocks(  # type: ignore[no-untyped-def]
    acc, total, highest, q, k_rows, v_rows, first_row, first_key, last_key, query, scale,
    HEAD: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    for start in tl.range(first_key, last_key, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        k = k_rows.load([first_row + start, 0]).T
        scores = tl.dot(q, k)
        if MASKED:
            keys = start + tl.arange(0, BLOCK_N)
            hidden = tl.where(query[:, None] >= keys[None, :], 0, -1.0e6)
            scores = scores * scale + hidden
            new_highest = tl.maximum(highest, tl.max(scores, 1))
            scores -= new_highest[:, None]
        else:
            new_highest = tl.maximum(highest, tl.max(scores, 1) * scale)
            scores = scores * scale - new_highest[:, None]
        p = tl.math.exp2(scores)
        shrink = tl.math.exp2(highest - new_highest)
        acc = acc * shrink[:, None]
        v = v_rows.load([first_row + start, 0])
        acc = tl.dot(p.to(tl.float16), v, acc)
        total = total * shrink + tl.sum(p, 1)
        highest = new_highest
    return acc, total, highest


@triton.jit
def attention(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, out_ptr, log_ptr, scale, Z, H, N_CTX,
    HEAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Softmax of a row of scores is never whole; off the diagonal blocks need no mask."""
    block = tl.program_id(0)
    head = tl.program_id(1)
    rows = Z * H * N_CTX
    q_rows = tl.make_tensor_descriptor(q_ptr, [rows, HEAD], [HEAD, 1], [BLOCK_M, HEAD])
    k_rows = tl.make_tensor_descriptor(k_ptr, [rows, HEAD], [HEAD, 1], [BLOCK_N, HEAD])
    v_rows = tl.make_tensor_descriptor(v_ptr, [rows, HEAD], [HEAD, 1], [BLOCK_N, HEAD])
    out_rows = tl.make_tensor_descriptor(out_ptr, [rows, HEAD], [HEAD, 1], [BLOCK_M, HEAD])
    first_row = head * N_CTX
    query = block * BLOCK_M + tl.arange(0, BLOCK_M)
    highest = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    total = tl.zeros([BLOCK_M], dtype=tl.float32) + 1.0
    acc = tl.zeros([BLOCK_M, HEAD], dtype=tl.float32)
    # exp2 in place of exp: one over log(2).
    scale *= 1.44269504
    q = q_rows.load([first_row + block * BLOCK_M, 0])
    unmasked = block * BLOCK_M if CAUSAL else N_CTX
    acc, total, highest = _attention_blocks(
        acc, total, highest, q, k_rows, v_rows, first_row, 0, unmasked, query, scale,
        HEAD, BLOCK_N, False,
    )  # fmt: skip
    if CAUSAL:
        acc, total, highest = _attention_blocks(
            acc, total, highest, q, k_rows, v_rows, first_row, unmasked, unmasked + BLOCK_M,
            query, scale, HEAD, BLOCK_N, True,
        )  # fmt: skip
    tl.store(log_ptr + head * N_CTX + query, highest + tl.math.log2(total))
    out_rows.store([first_row + block * BLOCK_M, 0], (acc / total[:, None]).to(tl.float16))


@triton.jit
def _keys_and_values(  # type: ignore[no-untyped-def]
    dk, dv, q_ptr, k, v, do_ptr, log_ptr, delta_ptr, stride, keys, first_query, blocks,
    HEAD: tl.constexpr, BLOCK_M: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """What some blocks of queries add to the gradients of one block of keys and values."""
    lanes = tl.arange(0, HEAD)
    first = first_query
    for _ in range(blocks):
        queries = first + tl.arange(0, BLOCK_M)
        q_t = tl.load(q_ptr + queries[None, :] * stride + lanes[:, None])
        p_t = tl.math.exp2(tl.dot(k, q_t) - tl.load(log_ptr + queries)[None, :])
        if MASKED:
            p_t = tl.where(queries[None, :] >= keys[:, None], p_t, 0.0)
        do = tl.load(do_ptr + queries[:, None] * stride + lanes[None, :])
        dv += tl.dot(p_t.to(tl.float16), do)
        dp_t = tl.dot(v, tl.trans(do)).to(tl.float32)
        ds_t = p_t * (dp_t - tl.load(delta_ptr + queries)[None, :])
        dk += tl.dot(ds_t.to(tl.float16), tl.trans(q_t))
        first += BLOCK_M
    return dk, dv


@triton.jit
def _queries(  # type: ignore[no-untyped-def]
    dq, q, k_ptr, v_ptr, do, log, delta, stride, queries, first_key, blocks,
    HEAD: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """What some blocks of keys add to the gradient of one block of queries."""
    lanes = tl.arange(0, HEAD)
    first = first_key
    for _ in range(blocks):
        keys = first + tl.arange(0, BLOCK_N)
        k_t = tl.load(k_ptr + keys[None, :] * stride + lanes[:, None])
        v_t = tl.load(v_ptr + keys[None, :] * stride + lanes[:, None])
        p = tl.math.exp2(tl.dot(q, k_t) - log)
        if MASKED:
            p = tl.where(queries[:, None] >= keys[None, :], p, 0.0)
        ds = p * (tl.dot(do, v_t).to(tl.float32) - delta[:, None])
        dq += tl.dot(ds.to(tl.float16), tl.trans(k_t))
        first += BLOCK_N
    return dq


@triton.jit
def attention_backward(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, scale, do_ptr, dq_ptr, dk_ptr, dv_ptr, log_ptr, delta_ptr,
    stride_z, stride_h, stride, H, N_CTX,
    BLOCK_SMALL: tl.constexpr, BLOCK_LARGE: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """A program does one block of keys and one of queries; k comes scaled by scale / log(2)."""
    block = tl.program_id(0)
    head = tl.program_id(2)
    base = (stride_h * (head % H) + stride_z * (head // H)).to(tl.int64)
    q_ptr += base
    k_ptr += base
    v_ptr += base
    do_ptr += base
    log_ptr += (head * N_CTX).to(tl.int64)
    delta_ptr += (head * N_CTX).to(tl.int64)
    lanes = tl.arange(0, HEAD)
    first = block * BLOCK_LARGE
    rows = first + tl.arange(0, BLOCK_LARGE)
    at = rows[:, None] * stride + lanes[None, :]
    small: tl.constexpr = BLOCK_SMALL // 2
    k = tl.load(k_ptr + at)
    v = tl.load(v_ptr + at)
    dk = tl.zeros([BLOCK_LARGE, HEAD], dtype=tl.float32)
    dv = tl.zeros([BLOCK_LARGE, HEAD], dtype=tl.float32)
    dk, dv = _keys_and_values(
        dk, dv, q_ptr, k, v, do_ptr, log_ptr, delta_ptr, stride, rows, first,
        BLOCK_LARGE // small, HEAD, small, True,
    )  # fmt: skip
    after = first + BLOCK_LARGE
    dk, dv = _keys_and_values(
        dk, dv, q_ptr, k, v, do_ptr, log_ptr, delta_ptr, stride, rows, after,
        (N_CTX - after) // BLOCK_SMALL, HEAD, BLOCK_SMALL, False,
    )  # fmt: skip
    tl.store(dv_ptr + base + at, dv.to(tl.float16))
    tl.store(dk_ptr + base + at, (dk * scale).to(tl.float16))
    q = tl.load(q_ptr + at)
    do = tl.load(do_ptr + at)
    log = tl.load(log_ptr + rows)[:, None]
    delta = tl.load(delta_ptr + rows)
    dq = tl.zeros([BLOCK_LARGE, HEAD], dtype=tl.float32)
    dq = _queries(
        dq, q, k_ptr, v_ptr, do, log, delta, stride, rows, first,
        BLOCK_LARGE // small, HEAD, small, True,
    )  # fmt: skip
    dq = _queries(
        dq, q, k_ptr, v_ptr, do, log, delta, stride, rows, 0,
        first // BLOCK_SMALL, HEAD, BLOCK_SMALL, False,
    )  # fmt: skip
    tl.store(dq_ptr + base + at, (dq * 0.6931471824645996).to(tl.float16))
