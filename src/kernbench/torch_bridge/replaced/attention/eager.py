"""``scaled_dot_product_attention`` of device tensors, in eager mode.

C++ has them on the host, or without data, and would choose the host's operation, or plain ones.
What is called here is a GPU's, with data and without: what a program sees of it (policies of
checkpoints, dispatch modes, counts of FLOPs) is what it sees there.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's users know
from torch import Tensor
from torch.nested._internal.sdpa import jagged_scaled_dot_product_attention

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.costs.attention import (
    CUDNN,
    EFFICIENT,
    FLASH,
    MATH,
    AttentionCall,
    allows,
    chosen_kind,
    refusal,
)
from kernbench.torch_bridge.device.autocast import cast_as_asked
from kernbench.torch_bridge.device.tensors import device_of
from kernbench.torch_bridge.placement.names import DEVICE_TYPE
from kernbench.torch_bridge.processes.process import current
from kernbench.torch_bridge.replaced.attention import operations, values

_C: Any = torch._C
_attention: Any = F.scaled_dot_product_attention
_can_use: Any = torch.backends.cuda.can_use_flash_attention
_BIASES = "torch.nn.attention.bias"
_SWITCHES = ("flash", "mem_efficient", "cudnn", "overrideable", "math")


def install(patches: Patches) -> None:
    """Let device tensors have attention as a GPU has it.

    Afterwards what was allowed before is allowed again: a program of one process shares the flags
    of the process that it runs in.
    """
    for kind in _SWITCHES:
        is_allowed = getattr(_C, f"_get_{kind}_sdp_enabled")()
        patches.on_close(getattr(_C, f"_set_sdp_use_{kind}"), is_allowed)
    values.install(patches)
    # Not imported here: with it comes all of Dynamo, which then does not see what is replaced.
    for item in filter(None, (torch.backends.cuda, sys.modules.get(_BIASES))):
        patches.set(item, "can_use_flash_attention", _can_use_flash)
    patches.set(F, "scaled_dot_product_attention", scaled_dot_product_attention)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention of device tensors by a GPU's operation; of others, as before."""
    cast = (query, key, value, attn_mask)
    is_ours = any(device_of(item).type == DEVICE_TYPE for item in cast[:3])
    if not is_ours or query.is_nested:
        # What C++ has does not take ragged tensors; it asks their class, which this stands before.
        is_ragged = query.is_nested and query.layout is torch.jagged
        known = jagged_scaled_dot_product_attention if is_ragged else _attention
        product: Tensor = known(*cast, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        return product
    # Before anything is looked at, as CUDA's autocast casts them, masks too.
    cast = cast_as_asked(*cast)
    _check(*cast)
    kind = chosen_kind(_call_of(*cast, dropout_p, is_causal, enable_gqa), _capability())
    if kind == MATH:
        composed: Tensor = operations.by_products(
            *cast, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return composed
    flash = allows(FLASH) or allows(CUDNN)
    attention: Tensor = operations.fused(
        *cast, dropout_p, is_causal, scale=scale, flash_is_allowed=flash
    )
    return attention


def _can_use_flash(params: Any, debug: bool = False) -> bool:
    """``can_use_flash_attention``, as a causal bias asks that is aligned with the last key.

    Where the device has memory-efficient attention instead, it is the same operation, as of others.
    """
    if device_of(params.query).type != DEVICE_TYPE:
        flag: bool = _can_use(params, debug)
        return flag
    triple = (params.query, params.key, params.value)
    call = _call_of(*triple, params.attn_mask, params.dropout, params.is_causal, params.enable_gqa)
    return params.query.shape[-1] == params.value.shape[-1] and any(
        allows(kind) and not refusal(kind, call, _capability()) for kind in (FLASH, EFFICIENT)
    )


def _capability() -> int | None:
    return current().session.run.machine.spec.cuda_architecture


def _call_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool,
) -> AttentionCall:
    triple = (query, key, value)
    dtype = query.dtype
    if torch.is_autocast_enabled(DEVICE_TYPE) and dtype.is_floating_point:
        dtype = torch.get_autocast_dtype(DEVICE_TYPE)
    return AttentionCall(
        query=tuple(query.shape),
        key=tuple(key.shape),
        value=tuple(value.shape),
        dtype=dtype,
        masked=attn_mask is not None,
        causal=is_causal,
        grouped=enable_gqa,
        differentiated=torch.is_grad_enabled() and any(item.requires_grad for item in triple),
        dropout=dropout_p,
        rows_are_dense=all(item.dim() and item.stride(-1) == 1 for item in triple),
    )


def _check(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None) -> None:
    """Refuse what PyTorch refuses of attention, in its words.

    Source: ``validate_sdpa_input`` of PyTorch's ``transformers/attention.cpp``.
    """
    named = {"query": query, "key": key, "value": value}
    for what, result in (
        ("dtype", [item.dtype for item in named.values()]),
        ("device type", [device_of(item) for item in named.values()]),
    ):
        if len(set(result)) > 1:
            of = what.split()[0]
            text = ", ".join(f"{name}.{of}: {it}" for name, it in zip(named, result, strict=True))
            raise RuntimeError(
                f"Expected query, key, and value to have the same {what}, but got {text} instead."
            )
    if min(item.dim() for item in named.values()) < 2:
        raise RuntimeError(
            "Expected query, key, and value to all be  at least 2 dimensional, but got query.dim: "
            f"{query.dim()} key.dim: {key.dim()} and value.dim: {value.dim()} instead."
        )
    if attn_mask is not None and attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise RuntimeError(
            "Expected attn_mask dtype to be bool or float or to match query dtype, but got "
            f"attn_mask.dtype: {attn_mask.dtype} and  query.dtype: {query.dtype} instead."
        )
