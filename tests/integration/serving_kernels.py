"""Kernels with the addresses of those that serve models: pages, experts, a modulo of a length."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gather_rows(x, index, y, stride, TOGETHER: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr):
    at = tl.load(index + tl.program_id(0) * ROWS + tl.arange(0, ROWS))
    column = tl.arange(0, D)
    if TOGETHER:
        source = x + (at[:, None] * stride + column[None, :])
    else:
        source = x + at[:, None] * stride + column[None, :]
    tl.store(y + tl.program_id(0), tl.sum(tl.load(source).to(tl.float32)))


@triton.jit
def split_sums(
    x, y, rows, columns, n, MODULO: tl.constexpr, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr
):
    row = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    total = tl.zeros([XBLOCK, RBLOCK], tl.float32)
    for start in tl.range(0, columns, RBLOCK):
        column = start + tl.arange(0, RBLOCK)[None, :]
        at = column + columns * row
        source = at % n if MODULO else at
        mask = (column < columns) & (row < rows) & (at < n)
        total += tl.load(x + source, mask, other=0.0)
    tl.store(y + row, tl.sum(total, 1)[:, None], row < rows)


@triton.jit
def paged_decode(
    q, keys, values, pages, o, length, s_page, s_token, scale,
    PAGE: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """One token of a sequence, and all heads that share a head of the cache."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, D)
    rows = (sequence * tl.num_programs(1) + head) * GROUP + tl.arange(0, GROUP)
    query = tl.load(q + (rows[:, None] * D + d[None, :]))
    top = tl.full([GROUP], float("-inf"), tl.float32)
    below = tl.zeros([GROUP], tl.float32)
    total = tl.zeros([GROUP, D], tl.float32)
    for start in range(0, length, T):
        at = start + tl.arange(0, T)
        page = tl.load(pages + sequence * (length // PAGE) + at // PAGE).to(tl.int64)
        inside = (at % PAGE) * s_token + head * D
        k = tl.load(keys + (page[None, :] * s_page + inside[None, :] + d[:, None]))
        v = tl.load(values + (d[None, :] + (inside[:, None] + page[:, None] * s_page)))
        score = tl.dot(query, k) * scale
        now = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp(score - now[:, None])
        shrunk = tl.exp(top - now)
        total = total * shrunk[:, None] + tl.dot(weight.to(v.dtype), v)
        below = below * shrunk + tl.sum(weight, 1)
        top = now
    tl.store(o + (rows[:, None] * D + d[None, :]), (total / below[:, None]).to(o.dtype.element_ty))


@triton.jit
def paged_prefill(
    q, keys, values, pages, o, length, s_page, s_token, scale,
    PAGE: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, T: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """Tokens of one prompt, causal; a tile holds all query heads of ``BQ`` tokens."""
    block, head = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, D)
    m = tl.arange(0, BQ * GROUP)
    token = block * BQ + m // GROUP
    heads = tl.num_programs(1) * GROUP
    lines = token[:, None] * (heads * D) + (head * GROUP + m % GROUP)[:, None] * D + d[None, :]
    query = tl.load(q + lines)
    below = tl.zeros([BQ * GROUP], tl.float32)
    total = tl.zeros([BQ * GROUP, D], tl.float32)
    for start in range(0, (block + 1) * BQ, T):
        at = start + tl.arange(0, T)
        page = tl.load(pages + at // PAGE).to(tl.int64)
        inside = (at % PAGE) * s_token + head * D
        k = tl.load(keys + (page[None, :] * s_page + (inside[None, :] + d[:, None])))
        v = tl.load(values + (page[:, None] * s_page + (inside[:, None] + d[None, :])))
        score = tl.dot(query, k) * scale
        weight = tl.where(at[None, :] <= token[:, None], tl.exp(score), 0.0)
        below += tl.sum(weight, 1)
        total += tl.dot(weight.to(v.dtype), v)
    tl.store(o + lines, (total / below[:, None]).to(o.dtype.element_ty))


@triton.jit
def expert_rows(
    x, w, c, tokens, experts, num_tokens, n, k, top,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Rows of ``x`` that are sorted by expert, times that expert's matrix."""
    block, column = tl.program_id(1), tl.program_id(0)
    token = tl.load(tokens + block * BM + tl.arange(0, BM)).to(tl.int64)
    valid = token < num_tokens
    expert = tl.load(experts + block).to(tl.int64)
    at = (column * BN + tl.arange(0, BN).to(tl.int64)) % n
    inner = tl.arange(0, BK)
    a_ptrs = x + (token[:, None] // top * k + inner[None, :])
    b_ptrs = w + (expert * n * k + (inner[:, None] + at[None, :] * k))
    total = tl.zeros([BM, BN], tl.float32)
    for start in range(tl.cdiv(k, BK)):
        a = tl.load(a_ptrs, mask=valid[:, None] & (inner[None, :] < k - start * BK), other=0.0)
        b = tl.load(b_ptrs, mask=inner[:, None] < k - start * BK, other=0.0)
        total += tl.dot(a, b)
        a_ptrs += BK
        b_ptrs += BK
    out = c + (token[:, None] * n + (column * BN + tl.arange(0, BN))[None, :])
    tl.store(out, total.to(c.dtype.element_ty), mask=valid[:, None])


@triton.jit
def decode_4bits(codes, table, y, B: tl.constexpr):
    """Numbers by their 4-bit codes, as in quantized weights."""
    at = tl.program_id(0) * B + tl.arange(0, B)
    code = tl.load(codes + at)
    tl.store(y + at, tl.load(table + code))


@triton.jit
def gathered_sums(x, index, y, k, HOW: tl.constexpr, ROWS: tl.constexpr, BK: tl.constexpr):
    """Sums of rows that data names, part by part; ``HOW`` the addresses come about."""
    at = tl.load(index + tl.program_id(0) * ROWS + tl.arange(0, ROWS))
    inner = tl.arange(0, BK)
    pointers = x + (at[:, None] * k + inner[None, :])
    offsets = at[:, None] * k + inner[None, :]
    total = tl.zeros([ROWS, BK], tl.float32)
    for part in range(tl.cdiv(k, BK)):
        mask = inner[None, :] < k - part * BK
        if HOW == "pointers move":
            total += tl.load(pointers, mask, other=0.0)
            pointers += BK
        elif HOW == "offsets move":
            total += tl.load(x + offsets, mask, other=0.0)
            offsets += BK
        elif HOW == "from the start":
            total += tl.load(pointers + part * BK, mask, other=0.0)
        else:
            column = part * BK + inner
            total += tl.load(x + (column[None, :] + at[:, None] * k), mask, other=0.0)
    tl.atomic_add(y + (inner[None, :] + at[:, None] // 16 * BK), total)


@triton.jit
def scaled_products(
    a, b, rows, columns, c, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """A product with scales for each row of A, each block of B and each ``BK`` of K."""
    of_group = GROUP * tl.cdiv(N, BN)
    first = tl.program_id(0) // of_group * GROUP
    height = min(tl.cdiv(M, BM) - first, GROUP)
    m = (first + tl.program_id(0) % height) * BM + tl.arange(0, BM)
    n = tl.program_id(0) % of_group // height * BN + tl.arange(0, BN)
    k, steps = tl.arange(0, BK), tl.cdiv(K, BK)
    x_at, y_at = a + (m[:, None] * K + k[None, :]), b + (n[None, :] * K + k[:, None])
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(steps):
        x, y = tl.load(x_at), tl.load(y_at)
        row, column = tl.load(rows + m * steps + step), tl.load(columns + n // BK * steps + step)
        total += tl.dot(x, y) * row[:, None] * column[None, :]
        x_at += BK
        y_at += BK
    tl.store(c + (m[:, None] * N + n[None, :]), total.to(tl.bfloat16))
