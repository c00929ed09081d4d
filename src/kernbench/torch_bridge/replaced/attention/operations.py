"""A GPU's operations of attention, called for operands that they take.

They are called in eager mode, and traced by the compiler into its graphs.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's users know

from kernbench.torch_bridge.costs.attention import HALVES, WIDEST_FLASH

_aten: Any = torch.ops.aten
ALIGNED_BIAS = 16
"""Elements that rows of a bias, and of its gradient, take a multiple of."""


def flash_takes(query: Any, key: Any, value: Any, attn_mask: Any, is_causal: bool) -> bool:
    """Return whether operands are those of flash attention on the newest of devices."""
    if attn_mask is not None or query.dtype not in HALVES:
        return False
    if is_causal and query.size(-2) != key.size(-2):
        return False
    return bool(query.size(-1) == value.size(-1) and query.size(-1) <= WIDEST_FLASH)


def fused(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    flash_is_allowed: bool,
) -> Any:
    """Return attention by flash attention where that takes operands, or memory-efficient.

    What is called depends on operands alone, so that a run can be timed again on another machine:
    kernels of cuDNN, and others that a device takes instead, are the same two operations.
    """
    if flash_is_allowed and flash_takes(query, key, value, attn_mask, is_causal):
        flash = _aten._scaled_dot_product_flash_attention.default
        return flash(query, key, value, dropout_p, is_causal, scale=scale)[0]
    key, value = for_each_head(query, key), for_each_head(query, value)
    bias = None if attn_mask is None else _bias(query, key, attn_mask)
    keeps = query.requires_grad or key.requires_grad or value.requires_grad
    keeps = torch.is_grad_enabled() and (keeps or (bias is not None and bias.requires_grad))
    # What torch.jit.trace records is compared with a trace without gradients.
    keeps = keeps or torch.jit.is_tracing()
    efficient = _aten._scaled_dot_product_efficient_attention.default
    return efficient(query, key, value, bias, keeps, dropout_p, is_causal, scale=scale)[0]


def attend_from_last(
    query: Any, key: Any, value: Any, dropout_p: float, scale: float | None
) -> Any:
    """Return causal attention whose last query sees all keys, as flash attention's kernels are."""
    flash = _aten._scaled_dot_product_flash_attention.default
    return flash(query, key, value, dropout_p, True, scale=scale)[0]


def for_each_head(query: Any, value: Any) -> Any:
    """Return keys or values for each head of queries."""
    if query.size(-3) == value.size(-3):
        return value
    return value.repeat_interleave(query.size(-3) // value.size(-3), -3)


def by_products(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Any:
    """Return attention as products and a softmax, as PyTorch composes it.

    Raises:
        RuntimeError: In PyTorch's words, of operands that it refuses.
    """
    math = _aten._scaled_dot_product_attention_math.default
    mask = None if attn_mask is None else _added(query, attn_mask)
    argument = (query, key, value, mask, dropout_p, is_causal)
    return math(*argument, scale=scale, enable_gqa=enable_gqa)[0]


def _added(query: Any, attn_mask: Any) -> Any:
    """Return a mask as numbers to add to scores."""
    if attn_mask.dtype == torch.bool:
        none = torch.zeros_like(attn_mask, dtype=query.dtype)
        return none.masked_fill(attn_mask.logical_not(), float("-inf"))
    return attn_mask if attn_mask.dtype == query.dtype else attn_mask.to(query.dtype)


def _bias(query: Any, key: Any, attn_mask: Any) -> Any:
    """Return a mask as numbers to add, for each row of queries, in aligned memory."""
    bias = _added(query, attn_mask)
    keys = bias.size(-1)
    if keys > 1 and keys % ALIGNED_BIAS:
        bias = F.pad(bias, (0, ALIGNED_BIAS - keys % ALIGNED_BIAS))[..., :keys]
    return bias.expand(query.size(0), query.size(1), query.size(2), key.size(2))
