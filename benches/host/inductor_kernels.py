"""Kernels as PyTorch's compiler writes them, with the host's side of each.

All elements of an operation are numbered, and the number is divided where rows or heads matter.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

XBLOCK = 1024


@triton.jit
def poi_fused_add_mul_silu(in0, in1, in2, out, xnumel, XBLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    x2 = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    x0 = x2 % 1024
    a = tl.load(in0 + x2, None) + tl.load(in1 + x0, None, eviction_policy="evict_last")
    tl.store(out + x2, a * tl.sigmoid(a) * tl.load(in2 + x2, None), None)


def gated(torch: Any, x: Any, bias: Any, y: Any) -> Any:
    out = torch.empty_like(x)
    count = x.numel()
    poi_fused_add_mul_silu[(count // XBLOCK,)](x, bias, y, out, count, XBLOCK=XBLOCK)
    return out


@triton.jit
def per_fused_softmax(in0, out, xnumel, r0_numel, XBLOCK: tl.constexpr, R0_BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    x0 = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    r0_1 = tl.arange(0, R0_BLOCK)[None, :]
    a = tl.broadcast_to(tl.load(in0 + (r0_1 + 1024 * x0), None), [XBLOCK, R0_BLOCK])
    powers = tl.exp(a - tl.max(a, 1)[:, None])
    tl.store(out + (r0_1 + 1024 * x0), powers / tl.sum(powers, 1)[:, None], None)


def softmax(torch: Any, x: Any) -> Any:
    out = torch.empty_like(x)
    rows, width = x.shape
    per_fused_softmax[(rows,)](x, out, rows, width, XBLOCK=1, R0_BLOCK=width)
    return out


@triton.jit
def red_fused_mean_mul_pow_rsqrt(  # type: ignore[no-untyped-def]
    in0, in1, out, xnumel, r0_numel, XBLOCK: tl.constexpr, R0_BLOCK: tl.constexpr
):
    x0 = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    xmask = x0 < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    total = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_1 = r0_offset + r0_base
        mask = (r0_1 < r0_numel) & xmask
        a = tl.load(in0 + (r0_1 + 4096 * x0), mask, eviction_policy="evict_last", other=0.0)
        total = tl.where(mask, total + a * a, total)
    scale = tl.rsqrt(tl.sum(total, 1)[:, None] / 4096.0 + 1e-05)
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_1 = r0_offset + r0_base
        mask = (r0_1 < r0_numel) & xmask
        a = tl.load(in0 + (r0_1 + 4096 * x0), mask, eviction_policy="evict_first", other=0.0)
        w = tl.load(in1 + r0_1, r0_1 < r0_numel, eviction_policy="evict_last", other=0.0)
        tl.store(out + (r0_1 + 4096 * x0), a * scale * w, mask)


def rms_norm(torch: Any, x: Any, weight: Any) -> Any:
    out = torch.empty_like(x)
    rows, width = x.shape
    red_fused_mean_mul_pow_rsqrt[(rows,)](
        x, weight, out, rows, width, XBLOCK=1, R0_BLOCK=2048
    )  # fmt: skip
    return out


@triton.jit
def poi_fused_clone(in0, out, xnumel, XBLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    x4 = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    x0, x1, x2, x3 = x4 % 64, (x4 // 64) % 1024, (x4 // 65536) % 12, x4 // 786432
    tl.store(out + x4, tl.load(in0 + (x0 + 64 * x2 + 768 * x1 + 786432 * x3), None), None)


def heads_first(torch: Any, x: Any) -> Any:
    """Return (batch, 1024, 12, 64) as (batch, 12, 1024, 64)."""
    out = torch.empty(x.shape[0], 12, 1024, 64)
    poi_fused_clone[(x.numel() // XBLOCK,)](x, out, x.numel(), XBLOCK=XBLOCK)
    return out


@triton.jit
def poi_fused_cat_view(in0, in1, in2, out, xnumel, XBLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Three tensors beside each other, two of them with heads first."""
    x3 = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    xmask = x3 < xnumel
    x0, x1, x2 = x3 % 768, (x3 // 768) % 3, x3 // 2304
    at = 64 * (x2 % 1024) + 65536 * (x0 // 64) + 786432 * (x2 // 1024) + (x0 % 64)
    a = tl.load(in0 + (x0 + 768 * x2), (x1 < 1) & xmask, other=0.0)
    b = tl.load(in1 + at, (x1 >= 1) & (x1 < 2) & xmask, other=0.0)
    c = tl.load(in2 + at, (x1 >= 2) & xmask, other=0.0)
    tl.store(out + x3, tl.where(x1 < 1, a, tl.where(x1 < 2, b, c)), xmask)
