"""The rotary kernel."""

from __future__ import annotations

import torch
from torch import Tensor


def apply_rotary(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    interleaved: bool = False,
    inplace: bool = False,
    conjugate: bool = False,
) -> Tensor:
    """Return ``x``, ``(batch, length, heads, size)`` or with ``cu_seqlens`` by tokens, rotated."""
    out = x if inplace else torch.empty_like(x)
    offset, offsets = (
        (0, seqlen_offsets) if isinstance(seqlen_offsets, Tensor) else (seqlen_offsets, None)
    )
    torch.ops.flash_attn._rotary(
        x, cos, sin, offset, offsets, cu_seqlens, interleaved, conjugate, out
    )
    return out
