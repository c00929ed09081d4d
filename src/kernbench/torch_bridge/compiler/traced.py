"""Functions that the compiler traces in the place of what C++ chooses by the device."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    """``scaled_dot_product_attention`` as the operation that the bridge computes and times.

    That has no gradient of a mask, as biases of positions have one, and no dropout: with either,
    attention is its products and its softmax.
    """
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        group = query.shape[-3] // key.shape[-3]
        key = key.repeat_interleave(group, -3)
        value = value.repeat_interleave(group, -3)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        none = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = none.masked_fill(~attn_mask, float("-inf"))
    if dropout_p or (attn_mask is not None and attn_mask.requires_grad):
        scores = query @ key.transpose(-2, -1) * (scale or query.shape[-1] ** -0.5)
        if is_causal:
            later = torch.ones_like(scores, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        if attn_mask is not None:
            scores = scores + attn_mask
        shares = functional.softmax(scores, -1).to(value.dtype)
        return functional.dropout(shares, dropout_p) @ value
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
    )[0]
