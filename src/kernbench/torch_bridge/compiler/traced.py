"""Functions that the compiler traces in the place of what C++ chooses by the device."""

from __future__ import annotations

from typing import Any

import torch

from kernbench.torch_bridge.costs.attention import (
    CUDNN,
    EFFICIENT,
    FLASH,
    HALVES,
    OLDEST,
    WIDEST_CUDNN,
    allows,
    head_step,
)
from kernbench.torch_bridge.placement.names import DEVICE_TYPE
from kernbench.torch_bridge.processes.process import current
from kernbench.torch_bridge.replaced.attention.operations import (
    attend_from_last,
    by_products,
    flash_takes,
    fused,
)

BIASES: Any = ()
"""PyTorch's causal biases, of a module that comes with Dynamo: there once something is compiled."""
_LOWER_RIGHT = 2


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
    """``scaled_dot_product_attention`` as the operation that a GPU runs (ADR-0220)."""
    if torch.is_autocast_enabled(DEVICE_TYPE):
        dtype = torch.get_autocast_dtype(DEVICE_TYPE)
        query, key, value = (_cast(item, dtype) for item in (query, key, value))
        if attn_mask is not None and not isinstance(attn_mask, BIASES):
            attn_mask = _cast(attn_mask, dtype)
    if isinstance(attn_mask, BIASES):
        if is_causal:
            raise ValueError("CausalBias should not be used with causal=True")
        queries, keys = attn_mask.seq_len_q, attn_mask.seq_len_kv
        if attn_mask.variant == _LOWER_RIGHT and queries != keys:
            return _from_last(query, key, value, queries, keys, dropout_p, scale, enable_gqa)
        attn_mask, is_causal = None, True
    kinds = _allowed()
    is_right = _are_heads(query, key, value, enable_gqa) and not (
        attn_mask is not None and is_causal
    )
    if is_right and _any_takes(query, key, value, attn_mask, is_causal, kinds):
        flash = FLASH in kinds or CUDNN in kinds
        return fused(query, key, value, attn_mask, dropout_p, is_causal, scale, flash)
    if not _allows_products():
        raise RuntimeError("No available kernel. Aborting execution.")
    argument = (query, key, value, attn_mask, dropout_p, is_causal)
    return by_products(*argument, scale, enable_gqa)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    is_cast = value.is_floating_point() and value.dtype != torch.float64
    return value.to(dtype) if is_cast else value


def _from_last(
    query: Any,
    key: Any,
    value: Any,
    queries: int,
    keys: int,
    dropout_p: float,
    scale: Any,
    enable_gqa: bool,
) -> Any:
    """Return attention with a causal mask that is aligned with the last key.

    It is flash attention's own, and that of memory-efficient attention where it is asked for it.
    """
    kinds = _allowed().replace(CUDNN, "")
    if (
        _are_heads(query, key, value, enable_gqa)
        and query.size(-1) == value.size(-1)
        and _any_takes(query, key, value, None, False, kinds)
    ):
        return attend_from_last(query, key, value, dropout_p, scale)
    seen = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
    return attention(query, key, value, seen, dropout_p, False, scale, enable_gqa)


def _are_heads(query: Any, key: Any, value: Any, enable_gqa: bool) -> bool:
    """Return whether operands are (batch, heads, length, size), in memory row by row."""
    if not (query.dim() == key.dim() == value.dim() == 4):
        return False
    if not (query.size(0) == key.size(0) == value.size(0) and query.size(-1) == key.size(-1)):
        return False
    if key.size(1) != value.size(1) or query.size(2) == 0 or key.size(2) == 0:
        return False
    if query.stride(-1) != 1 or key.stride(-1) != 1 or value.stride(-1) != 1:
        return False
    if query.size(1) == key.size(1):
        return True
    return bool(enable_gqa and query.size(1) % key.size(1) == 0)


def _any_takes(
    query: Any, key: Any, value: Any, attn_mask: Any, is_causal: bool, kinds: str
) -> bool:
    """Return whether a kernel takes a call: the rules of ``chosen_kind``, as far as it decides.

    In terms that the compiler follows for sizes which it does not know.
    """
    capability = _capability()
    if not capability:
        return kinds != ""
    half = query.dtype in HALVES
    recent = capability >= OLDEST
    if recent and FLASH in kinds and flash_takes(query, key, value, attn_mask, is_causal):
        return True
    sizes = (query.size(-1), value.size(-1))
    if recent and half and CUDNN in kinds and key.size(2) != 1:
        widest = WIDEST_CUDNN.get(capability, 128)
        if sizes[0] <= widest and sizes[1] <= widest and sizes[0] % 8 == 0 and sizes[1] % 8 == 0:
            return True
    if EFFICIENT not in kinds or query.size(1) != key.size(1):
        return False
    if query.dtype == torch.float64 or (query.dtype == torch.bfloat16 and not recent):
        return False
    step = _step(query.dtype, capability)
    return bool(sizes[0] % step == 0 and sizes[1] % step == 0)


def _allowed() -> str:
    """Return the kinds of kernels that the program allows (``sdpa_kernel``)."""
    return " ".join(filter(allows, (FLASH, EFFICIENT, CUDNN)))


def _allows_products() -> bool:
    return allows("math")


def _capability() -> int:
    """Return the device's compute capability, 0 for one that has none."""
    return current().session.run.machine.spec.cuda_architecture or 0


def _step(dtype: torch.dtype, capability: int) -> int:
    return head_step(dtype, capability)


_constant: tuple[Any, ...] = (_allowed, _allows_products, _capability, _step)
for _each in _constant:
    # The compiler calls them as it traces, and has in its graph what they return.
    _each._dynamo_marked_constant = True
