"""Scaled dot-product attention without the matrix of scores: prefill, decode over a KV cache.

A program keeps a tile of queries and walks over the keys, with a running maximum and sum per row
(Source: Dao, "FlashAttention-2", 2023, algorithm 1). For few queries over many keys the keys are
split over programs, and a second kernel merges what they found ("Flash-Decoding", 2023); the query
heads that share a key head are then rows of one tile.

Names of dims: B batch, H query heads, G key heads, Q queries, K keys, D head size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from kernbench.dtypes import float32
from kernbench.errors import UsageError
from kernbench.ops.base.kernel import Memo, kernel, new_result, prepare
from kernbench.ops.base.layout import Ints, block, next_power_of_2
from kernbench.ops.base.promotion import compute_dtype, require_float
from kernbench.runtime_api import Tensor

_PREPARED = Memo()
"""Prepared launches, keyed by the layouts of their tensors and the options."""

NUM_STAGES = 2
_TILE_BYTES = 16 * 1024
"""Most bytes of a tile of keys."""
_PROGRAMS = 128
"""How many programs a split of the keys aims at."""
_KEYS_PER_SPLIT = 256
"""A split is no shorter."""


@triton.jit
def _walk(
    acc, total, top, q, k_ptrs, v_ptrs, mask_ptrs, begin, end, rows, limits, inside,
    scale, Sk, k_s, v_s, mask_k,
    CAUSAL: tl.constexpr, RAGGED: tl.constexpr, ACC: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Process the keys from ``begin`` to ``end``; ``rows`` attend to those below their ``limits``.

    With RAGGED false every row of the tile sees all of them.
    """
    n = tl.arange(0, BLOCK_N)
    for start in range(begin, end, BLOCK_N):
        keys = start + n
        if RAGGED:
            k = tl.load(
                k_ptrs + start * k_s, mask=inside[:, None] & (keys < Sk)[None, :], other=0.0
            )
            v = tl.load(
                v_ptrs + start * v_s, mask=(keys < Sk)[:, None] & inside[None, :], other=0.0
            )
        else:
            k = tl.load(k_ptrs + start * k_s, mask=inside[:, None], other=0.0)
            v = tl.load(v_ptrs + start * v_s, mask=inside[None, :], other=0.0)
        scores = tl.dot(q, k, input_precision="ieee", out_dtype=ACC) * scale
        if mask_ptrs is not None:
            here = rows[:, None] & (keys < Sk)[None, :]
            scores += tl.load(mask_ptrs + start * mask_k, mask=here, other=0.0).to(ACC)
        if RAGGED:
            scores = tl.where((keys < Sk)[None, :], scores, float("-inf"))
            if CAUSAL:
                scores = tl.where(keys[None, :] < limits[:, None], scores, float("-inf"))
        peak = tl.maximum(top, tl.max(scores, axis=1))
        # A row that has seen no key yet has no maximum to subtract.
        shift = tl.where(peak == float("-inf"), 0.0, peak)
        weights = tl.exp(scores - shift[:, None])
        shrunk = tl.exp(top - shift)
        total = total * shrunk + tl.sum(weights, axis=1)
        acc = tl.dot(
            weights.to(v.dtype), v, acc * shrunk[:, None], input_precision="ieee", out_dtype=ACC
        )
        top = peak
    return acc, total, top


@kernel
def attention_forward(
    out_ptr, lse_ptr, q_ptr, k_ptr, v_ptr, mask_ptr, scale, first, H, Sq, Sk, D, part,
    out_part, out_b, out_h, out_s, lse_part, lse_b, lse_h, q_b, q_h, q_s, q_d,
    k_b, k_h, k_s, k_d, v_b, v_h, v_s, v_d, mask_b, mask_h, mask_q, mask_k,
    GROUP: tl.constexpr, PACK: tl.constexpr, CAUSAL: tl.constexpr, ACC: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """``out = softmax(q @ k.T * scale + mask) @ v`` over the keys of one part, and log sums.

    Query 0 is at position ``first`` among the keys; with CAUSAL it sees them up to itself. PACK
    heads that share a key head are neighbouring rows of a tile. GROUP is how many share one.
    """
    heads = H // PACK
    b = (tl.program_id(1) // heads).to(tl.int64)
    h = tl.program_id(1) % heads * PACK
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    inside = d < D
    n = tl.arange(0, BLOCK_N)
    if PACK == 1:
        query, q_at, head_at, mask_at = m, m * q_s, m * 0, m * mask_q
    else:
        query, head_at = m // PACK, m % PACK
        q_at = query * q_s + head_at * q_h
        mask_at = query * mask_q + head_at * mask_h
    rows = query < Sq
    limits = query + first + 1
    q_ptrs = q_ptr + b * q_b + h * q_h + q_at[:, None] + d[None, :] * q_d
    q = tl.load(q_ptrs, mask=rows[:, None] & inside[None, :], other=0.0)
    k_ptrs = k_ptr + b * k_b + h // GROUP * k_h + d[:, None] * k_d + n[None, :] * k_s
    v_ptrs = v_ptr + b * v_b + h // GROUP * v_h + n[:, None] * v_s + d[None, :] * v_d
    mask_ptrs = None
    if mask_ptr is not None:
        mask_ptrs = mask_ptr + b * mask_b + h * mask_h + mask_at[:, None] + n[None, :] * mask_k

    begin = tl.program_id(2) * part
    end = min(begin + part, Sk)
    seen_by_all = end
    if CAUSAL:
        lowest = tl.program_id(0) * BLOCK_M // PACK
        highest = min((tl.program_id(0) * BLOCK_M + BLOCK_M - 1) // PACK, Sq - 1)
        seen_by_all = min(end, lowest + first + 1)
        end = min(end, highest + first + 1)
    whole = begin + max(seen_by_all - begin, 0) // BLOCK_N * BLOCK_N

    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=ACC)
    total = tl.zeros((BLOCK_M,), dtype=ACC)
    top = tl.full((BLOCK_M,), float("-inf"), dtype=ACC)
    acc, total, top = _walk(
        acc, total, top, q, k_ptrs, v_ptrs, mask_ptrs, begin, whole, rows, limits, inside,
        scale, Sk, k_s, v_s, mask_k, CAUSAL, False, ACC, BLOCK_N,
    )  # fmt: skip
    acc, total, top = _walk(
        acc, total, top, q, k_ptrs, v_ptrs, mask_ptrs, whole, end, rows, limits, inside,
        scale, Sk, k_s, v_s, mask_k, CAUSAL, True, ACC, BLOCK_N,
    )  # fmt: skip

    empty = total == 0.0
    result = acc / tl.where(empty, 1.0, total)[:, None]
    out_at = query * out_s + head_at * out_h
    out_ptrs = out_ptr + tl.program_id(2) * out_part + b * out_b + h * out_h
    tl.store(
        out_ptrs + out_at[:, None] + d[None, :], result.to(out_ptr.dtype.element_ty),
        mask=rows[:, None] & inside[None, :],
    )  # fmt: skip
    if lse_ptr is not None:
        lse = tl.where(empty, float("-inf"), top + tl.log(tl.where(empty, 1.0, total)))
        lse_ptrs = lse_ptr + tl.program_id(2) * lse_part + b * lse_b + h * lse_h
        tl.store(lse_ptrs + query + head_at * lse_h, lse, mask=rows)


@kernel
def attention_merge(
    out_ptr, lse_ptr, parts_ptr, sums_ptr, M, H, Sq, D, part, out_b, out_h, out_s,
    PARTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Merge ``parts[s, b, h, q, d]`` of the keys, whose log sums are ``sums[s, b, h, q]``.

    ``part`` is the number of rows of a part.
    """
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    rows = m < M
    top = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    for s in tl.static_range(PARTS):
        top = tl.maximum(top, tl.load(sums_ptr + s * part + m, mask=rows, other=float("-inf")))
    shift = tl.where(top == float("-inf"), 0.0, top)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    for s in tl.static_range(PARTS):
        lse = tl.load(sums_ptr + s * part + m, mask=rows, other=float("-inf"))
        weight = tl.exp(lse - shift)
        total += weight
        at = (s * part + m)[:, None] * D + d[None, :]
        acc += weight[:, None] * tl.load(
            parts_ptr + at, mask=rows[:, None] & (d < D)[None, :], other=0.0
        )
    total_or_1 = tl.where(total == 0.0, 1.0, total)
    head, query = m // Sq, m % Sq
    out_at = head // H * out_b + head % H * out_h + query * out_s
    tl.store(
        out_ptr + out_at[:, None] + d[None, :],
        (acc / total_or_1[:, None]).to(out_ptr.dtype.element_ty),
        mask=rows[:, None] & (d < D)[None, :],
    )
    if lse_ptr is not None:
        lse = tl.where(total == 0.0, float("-inf"), top + tl.log(total_or_1))
        tl.store(lse_ptr + m, lse, mask=rows)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of one attention, checked."""

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    width: int

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.heads // self.key_heads

    def blocks(self, itemsize: int) -> dict[str, int]:
        """Return the tile: rows of queries, keys, and the head size."""
        width = max(next_power_of_2(self.width), 16)
        pack = self.pack
        keys = min(128, max(16, _TILE_BYTES // (width * itemsize)))
        return {
            "BLOCK_M": block(self.queries * pack, 16, 128 if width <= 128 else 64),
            "BLOCK_N": block(self.keys, 16, keys),
            "BLOCK_D": width,
        }

    @property
    def pack(self) -> int:
        """Heads that share a tile: those of one key head, where there are few queries."""
        return self.group if self.queries * self.group <= 64 else 1

    def parts(self, rows: int) -> int:
        """Return how many programs share the keys of ``rows`` rows."""
        programs = -(-self.queries * self.pack // rows) * self.batch
        programs *= self.heads // self.pack
        return max(1, min(_PROGRAMS // programs, -(-self.keys // _KEYS_PER_SPLIT)))


def attention(
    q_BHQD: Tensor,
    k_BGKD: Tensor,
    v_BGKD: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    query_offset: int | None = None,
    scale: float | None = None,
    num_splits: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Return ``softmax(q @ k.T * scale + mask) @ v``, as torch's scaled_dot_product_attention.

    Query heads may be a multiple of the key heads: then so many in a row share one. All are read
    through their strides, so a KV cache with room for more keys is passed as a view.

    Args:
        q_BHQD: Queries; the result is like it.
        k_BGKD: Keys.
        v_BGKD: Values.
        mask: Floating point, added to the scores; broadcasts to (B, H, Q, K).
        causal: A query sees the keys up to its own position.
        query_offset: The position of the first query among the keys; ``K - Q`` when None, so that
            the last query sees all keys. torch's ``is_causal`` is 0.
        scale: ``1 / sqrt(D)`` when None.
        num_splits: Programs that share the keys of a tile of queries; by size when None.
        out: Where the result goes; its last dim must be contiguous.

    Rows that see no key are 0.

    Raises:
        UsageError: Shapes or dtypes do not fit; names them.
    """
    return _forward(q_BHQD, k_BGKD, v_BGKD, mask, causal, query_offset, scale, num_splits, out)[0]


def attention_with_lse(
    q_BHQD: Tensor,
    k_BGKD: Tensor,
    v_BGKD: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    query_offset: int | None = None,
    scale: float | None = None,
    num_splits: int | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return :func:`attention` and the logarithm of each row's sum, (B, H, Q) in float32.

    That is what :func:`attention_backward` needs of the forward pass.
    """
    lse = q_BHQD.context.empty(tuple(q_BHQD.shape[:3]), dtype=float32)
    return _forward(
        q_BHQD, k_BGKD, v_BGKD, mask, causal, query_offset, scale, num_splits, out, lse
    )  # fmt: skip


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    query_offset: int | None,
    scale: float | None,
    num_splits: int | None,
    out: Tensor | None,
    lse: Tensor | None = None,
) -> tuple[Tensor, Any]:
    sizes = check_sizes(q, k, v, mask)
    if out is None:
        out = new_result(tuple(q.shape), q.dtype, q)
    _check_out(out, q)
    if math.prod(q.shape) == 0:
        return out, lse
    blocks = sizes.blocks(q.dtype.itemsize)
    parts = sizes.parts(blocks["BLOCK_M"]) if num_splits is None else num_splits
    if parts < 1:
        raise UsageError(f"attention: num_splits must be at least 1, but got {parts}")
    rows = sizes.batch * sizes.heads * sizes.queries
    target, sums = out, lse
    if parts > 1:
        target = new_result((parts, *q.shape), float32, q)
        sums = q.context.empty((parts, *q.shape[:3]), dtype=float32)
    launch_forward(sizes, target, sums, (q, k, v, mask), causal, query_offset, scale, parts, blocks)
    if parts > 1:
        merge_blocks = {"BLOCK_M": block(rows, 1, 16), "BLOCK_D": blocks["BLOCK_D"]}
        q.context.launch(
            "attention_merge", attention_merge, out, lse, target, sums,
            rows, sizes.heads, sizes.queries, sizes.width, rows, *out.stride()[:3],
            grid=(triton.cdiv(rows, merge_blocks["BLOCK_M"]),), PARTS=parts, **merge_blocks,
        )  # fmt: skip
    return out, lse


def launch_forward(
    sizes: Sizes,
    out: Tensor,
    lse: Tensor | None,
    operands: tuple[Tensor, Tensor, Tensor, Tensor | None],
    causal: bool,
    query_offset: int | None,
    scale: float | None,
    parts: int,
    blocks: dict[str, int],
) -> None:
    """Launch the kernel over the keys; with several parts each has an ``out`` of its own."""
    q, k, v, mask = operands
    tensors = (out, lse, *operands)
    key = (
        tuple([None if t is None else (t.shape, t.stride(), t.dtype) for t in tensors]),
        causal, query_offset, scale, parts,
    )  # fmt: skip
    prepared = _PREPARED.get(key)
    if prepared is None:
        first = first_query(sizes, query_offset)
        out_strides = out.stride() if parts > 1 else (0, *out.stride())
        lse_strides: Ints = (0, 0, 0)
        if lse is not None:
            lse_strides = lse.stride()[:3] if parts > 1 else (0, *lse.stride()[:2])
        part = triton.cdiv(triton.cdiv(sizes.keys, parts), blocks["BLOCK_N"]) * blocks["BLOCK_N"]
        numbers = (
            scale_of(sizes, scale), first, sizes.heads, sizes.queries, sizes.keys, sizes.width,
            part, *out_strides[:4], *lse_strides, *q.stride(), *k.stride(), *v.stride(),
            *mask_strides(sizes, mask),
        )  # fmt: skip
        constants = {
            "GROUP": sizes.group,
            "PACK": sizes.pack,
            "CAUSAL": causal,
            "ACC": compute_dtype(q.dtype),
            **blocks,
        }
        heads = sizes.heads // sizes.pack
        grid = (
            triton.cdiv(sizes.queries * sizes.pack, blocks["BLOCK_M"]),
            sizes.batch * heads,
            parts,
        )
        prepared = prepare(
            attention_forward, tensors, numbers, grid, constants, num_stages=NUM_STAGES
        )
        _PREPARED.keep(key, prepared)
    prepared.launch("attention", tensors, q.context)


def first_query(sizes: Sizes, query_offset: int | None) -> int:
    """Return the position of the first query among the keys."""
    return sizes.keys - sizes.queries if query_offset is None else query_offset


def scale_of(sizes: Sizes, scale: float | None) -> float:
    """Return the factor of the scores."""
    return sizes.width**-0.5 if scale is None else float(scale)


def mask_strides(sizes: Sizes, mask: Tensor | None) -> Ints:
    """Return the strides of a mask as if it had shape (B, H, Q, K)."""
    if mask is None:
        return (0, 0, 0, 0)
    target = (sizes.batch, sizes.heads, sizes.queries, sizes.keys)
    own = [0 if size == 1 else step for size, step in zip(mask.shape, mask.stride(), strict=True)]
    return (0,) * (len(target) - len(own)) + tuple(own)


def check_sizes(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Sizes:
    """Return the sizes of an attention.

    Raises:
        UsageError: Shapes or dtypes do not fit each other.
    """
    shapes = [tuple(t.shape) for t in (q, k, v)]
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        require_float(f"attention ({name})", tensor)
        if len(tensor.shape) != 4:
            raise UsageError(
                f"attention needs {name} of 4 dims (batch, heads, tokens, head size), but got "
                f"shape {tuple(tensor.shape)}"
            )
        if tensor.dtype != q.dtype:
            raise UsageError(f"attention needs equal dtypes, but got {q.dtype} and {tensor.dtype}")
    batch, heads, queries, width = shapes[0]
    if shapes[1] != shapes[2] or shapes[1][0] != batch or shapes[1][3] != width:
        raise UsageError(
            f"attention of q {shapes[0]}, k {shapes[1]} and v {shapes[2]}: k and v must have one "
            "shape, with the batch and the head size of q"
        )
    key_heads, keys = shapes[1][1:3]
    if key_heads < 1 or heads % key_heads:
        raise UsageError(
            f"attention: the query heads ({heads}) must be a multiple of the key heads "
            f"({key_heads})"
        )
    if mask is not None:
        require_float("attention (mask)", mask)
        full = (batch, heads, queries, keys)
        shape = tuple(mask.shape)
        padded = (1,) * (4 - len(shape)) + shape
        if len(shape) > 4 or any(a not in (1, b) for a, b in zip(padded, full, strict=True)):
            raise UsageError(f"attention: a mask of shape {shape} does not broadcast to {full}")
    return Sizes(batch, heads, key_heads, queries, keys, width)


def _check_out(out: Tensor, q: Tensor) -> None:
    if tuple(out.shape) != tuple(q.shape) or out.dtype != q.dtype:
        raise UsageError(
            f"attention gives shape {tuple(q.shape)} of {q.dtype}, but out has "
            f"{tuple(out.shape)} of {out.dtype}"
        )
    if math.prod(out.shape) and out.stride()[-1] != 1 and out.shape[-1] > 1:
        raise UsageError(f"attention: the last dim of out has stride {out.stride()[-1]}, not 1")
