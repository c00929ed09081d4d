"""From the tokens of a projection to the heads of attention and back: split, rotate, join.

Names of dims: B batch, S tokens of a sequence, T = B * S tokens, H query heads, G key heads,
D head size, E = (H + 2 * G) * D features of a fused projection.
"""

from __future__ import annotations

import math
from typing import Any

import triton
import triton.language as tl

from kernbench.dtypes import int32
from kernbench.errors import UsageError
from kernbench.ops.base.kernel import Memo, kernel, prepare
from kernbench.ops.base.layout import block
from kernbench.ops.base.promotion import compute_dtype, require_float
from kernbench.runtime_api import Tensor

_PREPARED = Memo()


@kernel
def move_heads(
    q_ptr, k_ptr, v_ptr, fused_ptr, bias_ptr, cos_ptr, sin_ptr, rows_ptr,
    T, S, H, G, D, first, fused_t,
    q_b, q_h, q_s, k_b, k_h, k_s, v_b, v_h, v_s,
    JOIN: tl.constexpr, COMPUTE: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Copy one head of a tile of tokens between ``fused[T, E]`` and q, k or v, a program each.

    With tables, heads of q and k are rotated by the angles of their positions, from ``first`` on;
    JOIN goes the other way, and rotates back. ``rows`` say where each token of ``fused`` belongs.
    """
    t = tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    head = tl.program_id(1)
    d = tl.arange(0, BLOCK_D)
    place = t
    if rows_ptr is not None:
        place = tl.load(rows_ptr + t, mask=t < T, other=0).to(tl.int64)
    b, s = place // S, place % S
    if head < H:
        part = q_ptr + head * q_h
        at = b * q_b + s * q_s
    elif head < H + G:
        part = k_ptr + (head - H) * k_h
        at = b * k_b + s * k_s
    else:
        part = v_ptr + (head - H - G) * v_h
        at = b * v_b + s * v_s
    fused = fused_ptr + head * D + t[:, None] * fused_t + d[None, :]
    inside = (t < T)[:, None]
    if cos_ptr is not None:
        half = D // 2
        mask = inside & (d < half)[None, :]
        angles = (first + s)[:, None] * half + d[None, :]
        here = part + at[:, None] + d[None, :]
        if JOIN:
            x = tl.load(here, mask=mask, other=0.0).to(COMPUTE)
            y = tl.load(here + half, mask=mask, other=0.0).to(COMPUTE)
        else:
            x = tl.load(fused, mask=mask, other=0.0).to(COMPUTE)
            y = tl.load(fused + half, mask=mask, other=0.0).to(COMPUTE)
            if bias_ptr is not None:
                bias = bias_ptr + head * D + d
                x += tl.load(bias, mask=d < half, other=0.0).to(COMPUTE)[None, :]
                y += tl.load(bias + half, mask=d < half, other=0.0).to(COMPUTE)[None, :]
        if head < H + G:
            cos = tl.load(cos_ptr + angles, mask=mask, other=0.0).to(COMPUTE)
            sin = tl.load(sin_ptr + angles, mask=mask, other=0.0).to(COMPUTE)
            if JOIN:
                sin = -sin
            x, y = x * cos - y * sin, y * cos + x * sin
        if JOIN:
            tl.store(fused, x.to(fused_ptr.dtype.element_ty), mask=mask)
            tl.store(fused + half, y.to(fused_ptr.dtype.element_ty), mask=mask)
        else:
            tl.store(here, x.to(q_ptr.dtype.element_ty), mask=mask)
            tl.store(here + half, y.to(q_ptr.dtype.element_ty), mask=mask)
    else:
        mask = inside & (d < D)[None, :]
        here = part + at[:, None] + d[None, :]
        if JOIN:
            x = tl.load(here, mask=mask, other=0.0)
            tl.store(fused, x.to(fused_ptr.dtype.element_ty), mask=mask)
        else:
            x = tl.load(fused, mask=mask, other=0.0)
            if bias_ptr is not None:
                bias = tl.load(bias_ptr + head * D + d, mask=d < D, other=0.0)
                x = x.to(COMPUTE) + bias.to(COMPUTE)[None, :]
            tl.store(here, x.to(q_ptr.dtype.element_ty), mask=mask)


def split_heads(
    fused_TE: Tensor,
    q_BHSD: Tensor,
    k_BGSD: Tensor,
    v_BGSD: Tensor,
    *,
    bias_E: Tensor | None = None,
    rotary: tuple[Tensor, Tensor] | None = None,
    position: int = 0,
    rows_T: Tensor | None = None,
) -> None:
    """Write the heads of a fused projection to q, k and v, which may be views of a KV cache.

    ``rotary`` are the cosines and sines of all positions, each (positions, D / 2) in float32: the
    halves of a head of q and k are rotated by them (Su et al., "RoFormer", 2021). The sequences'
    first token is at ``position``. With ``rows_T`` the tokens are packed: token t goes to row
    ``rows_T[t]`` of B * S, int32, and rows without a token are left as they are.

    Raises:
        UsageError: Shapes do not fit; names them.
    """
    heads = (q_BHSD, k_BGSD, v_BGSD)
    _move("split_heads", fused_TE, heads, bias_E, rotary, position, rows_T, join=False)


def join_heads(
    q_BHSD: Tensor,
    k_BGSD: Tensor,
    v_BGSD: Tensor,
    fused_TE: Tensor,
    *,
    rotary: tuple[Tensor, Tensor] | None = None,
    position: int = 0,
) -> None:
    """Write heads to a fused tensor, rotated back: the gradient of :func:`split_heads`.

    Raises:
        UsageError: Shapes do not fit; names them.
    """
    heads = (q_BHSD, k_BGSD, v_BGSD)
    _move("join_heads", fused_TE, heads, None, rotary, position, None, join=True)


def _move(
    name: str,
    fused: Tensor,
    heads: tuple[Tensor, Tensor, Tensor],
    bias: Tensor | None,
    rotary: tuple[Tensor, Tensor] | None,
    position: int,
    rows: Tensor | None,
    *,
    join: bool,
) -> None:
    _check(name, fused, heads, bias, rotary, position, rows)
    if 0 in fused.shape:
        return
    cos, sin = rotary or (None, None)
    tensors = (*heads, fused, bias, cos, sin, rows)
    key = (
        tuple([None if t is None else (t.shape, t.stride(), t.dtype) for t in tensors]),
        position, join,
    )  # fmt: skip
    prepared = _PREPARED.get(key)
    if prepared is None:
        q, k = heads[:2]
        _, num_heads, seq, width = q.shape
        tokens = fused.shape[0]
        columns = width // 2 if rotary else width
        blocks = {"BLOCK_T": block(tokens, 1, 32), "BLOCK_D": block(columns, 16, 1024)}
        strides: list[Any] = [step for head in heads for step in head.stride()[:3]]
        numbers = (
            tokens, seq, num_heads, k.shape[1], width, position, fused.stride()[0], *strides,
        )  # fmt: skip
        grid = (triton.cdiv(tokens, blocks["BLOCK_T"]), num_heads + 2 * k.shape[1])
        constants = {"JOIN": join, "COMPUTE": compute_dtype(fused.dtype), **blocks}
        prepared = _PREPARED.keep(key, prepare(move_heads, tensors, numbers, grid, constants))
    prepared.launch(name, tensors, fused.context)


def _check(
    name: str,
    fused: Tensor,
    heads: tuple[Tensor, Tensor, Tensor],
    bias: Tensor | None,
    rotary: tuple[Tensor, Tensor] | None,
    position: int,
    rows: Tensor | None,
) -> None:
    q = heads[0]
    require_float(name, fused)
    shapes = [tuple(head.shape) for head in heads]
    if any(len(shape) != 4 for shape in shapes) or shapes[1] != shapes[2] or (
        shapes[0][0], *shapes[0][2:]
    ) != (shapes[1][0], *shapes[1][2:]):  # fmt: skip
        raise UsageError(
            f"{name}: q, k and v must be (batch, heads, tokens, head size) and may differ "
            f"only in the heads of q, but got {', '.join(map(str, shapes))}"
        )
    batch, num_heads, seq, width = shapes[0]
    tokens = batch * seq if rows is None else math.prod(rows.shape)
    expected = (tokens, (num_heads + 2 * shapes[1][1]) * width)
    if tuple(fused.shape) != expected:
        raise UsageError(
            f"{name}: heads {shapes[0]} and {shapes[1]} make {expected} of (tokens, features), "
            f"but the fused tensor is {tuple(fused.shape)}"
        )
    for tensor in (fused, *heads):
        if tensor.dtype != q.dtype or (tensor.shape[-1] > 1 and tensor.stride()[-1] != 1):
            raise UsageError(
                f"{name}: tensors must have one dtype and consecutive elements along their last "
                f"dim, but {tensor.label} has {tensor.dtype} and strides {tensor.stride()}"
            )
    if bias is not None and (tuple(bias.shape) != expected[1:] or not bias.is_contiguous()):
        raise UsageError(
            f"{name}: the bias must be contiguous, of shape {expected[1:]}, but got "
            f"{tuple(bias.shape)}"
        )
    if rows is not None and (rows.dtype != int32 or not rows.is_contiguous()):
        raise UsageError(f"{name}: rows must be contiguous int32, but got {rows.dtype}")
    if position < 0:
        raise UsageError(f"{name}: position must be 0 or more, but got {position}")
    for table in rotary or ():
        if width % 2 or tuple(table.shape[1:]) != (width // 2,) or (
            table.shape[0] < position + seq or not table.is_contiguous()
        ):  # fmt: skip
            raise UsageError(
                f"{name}: rotary tables must be contiguous, (positions, {width / 2:g}) for at "
                f"least {position + seq} positions, but got {tuple(table.shape)}"
            )
