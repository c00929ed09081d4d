"""Rotary embeddings."""

from __future__ import annotations

from typing import Any

import torch
from flash_attn.ops.triton.rotary import apply_rotary
from torch import Tensor


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, offsets: Any, ends: Any, longest: Any,
        interleaved: bool, inplace: bool,
    ) -> Any:  # fmt: skip
        out = apply_rotary(x, cos, sin, offsets, ends, longest, interleaved, inplace)
        ctx.save_for_backward(cos, sin, ends, offsets if isinstance(offsets, Tensor) else None)
        ctx.rest = (None if isinstance(offsets, Tensor) else offsets, longest, interleaved, inplace)
        if inplace:
            ctx.mark_dirty(x)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        cos, sin, ends, offsets = ctx.saved_tensors
        number, longest, interleaved, inplace = ctx.rest
        at = number if offsets is None else offsets
        clone = grad.clone() if inplace and not interleaved else grad
        rotary = apply_rotary(clone, cos, sin, at, ends, longest, interleaved, inplace, True)
        return rotary, None, None, None, None, None, None, None


def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
) -> Tensor:
    """Return ``x``, ``(batch, length, heads, size)``, rotated by ``(length, rotated / 2)``."""
    emb: Tensor = _Rotate.apply(
        x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved, inplace
    )
    return emb


apply_rotary_emb_func = apply_rotary_emb


def apply_rotary_emb_torch(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> Tensor:
    """Return the same by operations of PyTorch."""
    size = 2 * cos.shape[-1]
    turned, rest = x[..., :size], x[..., size:]
    cos, sin = (item.unsqueeze(-2) for item in (cos, sin))
    if interleaved:
        first, second = turned[..., ::2], turned[..., 1::2]
        pair = first * cos - second * sin, first * sin + second * cos
        return torch.cat((torch.stack(pair, -1).flatten(-2), rest), -1)
    first, second = turned.chunk(2, -1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos, rest), -1)


class RotaryEmbedding(torch.nn.Module):
    """Rotates queries and keys, with cosines and sines that it keeps."""

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        interleaved: bool = False,
        scale_base: float | None = None,
        pos_idx_in_fp32: bool = True,
        device: Any = None,
    ) -> None:
        super().__init__()
        if scale_base is not None:
            raise NotImplementedError(
                "flash_attn: scale_base (xPos) is not a part of kernbench's stand-in"
            )
        self.dim, self.base, self.interleaved = dim, float(base), interleaved
        exponents = torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim
        self.register_buffer("inv_freq", 1.0 / self.base**exponents, persistent=False)
        self._kept = 0
        self._cos = self._sin = self.inv_freq

    def _tables(self, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
        if length > self._kept or self._cos.device != like.device or self._cos.dtype != like.dtype:
            self._kept = length
            places = torch.arange(length, device=like.device, dtype=torch.float32)
            angles = torch.outer(places, self.inv_freq.to(like.device))
            self._cos, self._sin = angles.cos().to(like.dtype), angles.sin().to(like.dtype)
        return self._cos, self._sin

    def forward(
        self,
        qkv: Tensor,
        kv: Tensor | None = None,
        seqlen_offset: int | Tensor = 0,
        max_seqlen: int | None = None,
        **rest: Any,
    ) -> Any:
        """Rotate ``(batch, length, 3, heads, size)``, or queries and ``kv`` of two."""
        length = qkv.shape[1] if max_seqlen is None else max_seqlen
        offset = seqlen_offset if isinstance(seqlen_offset, int) else 0
        cos, sin = self._tables(length + offset, qkv)
        if kv is None:
            return apply_rotary_emb_qkv_(
                qkv, cos, sin, interleaved=self.interleaved, seqlen_offsets=seqlen_offset
            )
        q = apply_rotary_emb(
            qkv, cos, sin, self.interleaved, inplace=True, seqlen_offsets=seqlen_offset
        )
        return q, apply_rotary_emb_kv_(
            kv, cos, sin, interleaved=self.interleaved, seqlen_offsets=seqlen_offset
        )


class _RotatePacked(torch.autograd.Function):
    """Rotates the first of what is packed before the heads, in place, with one kernel."""

    @staticmethod
    def forward(
        ctx: Any, packed: Tensor, count: int, cos: Tensor, sin: Tensor, offsets: Any,
        interleaved: bool,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(cos, sin, offsets if isinstance(offsets, Tensor) else None)
        ctx.rest = (None if isinstance(offsets, Tensor) else offsets, count, interleaved)
        _rotate_packed(packed, count, cos, sin, offsets, interleaved, False)
        ctx.mark_dirty(packed)
        return packed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        cos, sin, offsets = ctx.saved_tensors
        number, count, interleaved = ctx.rest
        grad = grad.clone() if not grad.is_contiguous() else grad
        at = number if offsets is None else offsets
        _rotate_packed(grad, count, cos, sin, at, interleaved, True)
        return grad, None, None, None, None, None


def _rotate_packed(
    packed: Tensor, count: int, cos: Tensor, sin: Tensor, offsets: Any, interleaved: bool,
    back: bool,
) -> None:  # fmt: skip
    rotated = packed[:, :, :count].flatten(2, 3)
    apply_rotary(rotated, cos, sin, offsets, interleaved=interleaved, inplace=True, conjugate=back)


def apply_rotary_emb_qkv_(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    cos_k: Tensor | None = None,
    sin_k: Tensor | None = None,
    interleaved: bool = False,
    seqlen_offsets: int | Tensor = 0,
    num_heads_q: int | None = None,
) -> Tensor:
    """Rotate the queries and keys of ``(batch, length, 3, heads, size)`` in place."""
    if cos_k is not None or sin_k is not None or num_heads_q is not None:
        raise NotImplementedError(
            "flash_attn: cos_k, sin_k and num_heads_q are not a part of kernbench's stand-in"
        )
    apply_rotary_emb_qkv: Tensor = _RotatePacked.apply(
        qkv, 2, cos, sin, seqlen_offsets, interleaved
    )
    return apply_rotary_emb_qkv


def apply_rotary_emb_kv_(
    kv: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    seqlen_offsets: int | Tensor = 0,
) -> Tensor:
    """Rotate the keys of ``(batch, length, 2, heads, size)`` in place."""
    apply_rotary_emb_kv: Tensor = _RotatePacked.apply(kv, 1, cos, sin, seqlen_offsets, interleaved)
    return apply_rotary_emb_kv
