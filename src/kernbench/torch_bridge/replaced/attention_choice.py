"""The kinds of attention that a program allows: all of CUDA's fast ones are flash attention.

PyTorch's choice for the CPU, which is used here, knows only flash attention and plain operations: a
program that allows only memory-efficient or cuDNN attention would have no choice. Whether a GPU has
kernels for a call at all is asked here.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's users know
from torch import Tensor

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.costs.attention import MATH, AttentionCall, chosen_kind
from kernbench.torch_bridge.device.tensors import device_of
from kernbench.torch_bridge.placement.names import DEVICE_TYPE
from kernbench.torch_bridge.processes.process import current

_C: Any = torch._C
_attention = F.scaled_dot_product_attention
_set_flash = _C._set_sdp_use_flash
_is_flash_allowed = _C._get_flash_sdp_enabled
_FLASH = "flash"
_KINDS = (_FLASH, "mem_efficient", "cudnn")
_OTHERS = ("overrideable", "math")


def install(patches: Patches) -> None:
    """Let C++ allow flash attention while the program allows any fast kind.

    Afterwards what was allowed before is allowed again: a program of one process shares the flags
    of the process that it runs in.
    """
    for kind in (*_KINDS, *_OTHERS):
        is_allowed = getattr(_C, f"_get_{kind}_sdp_enabled")()
        patches.on_close(getattr(_C, f"_set_sdp_use_{kind}"), is_allowed)
    allowed = {kind: getattr(_C, f"_get_{kind}_sdp_enabled")() for kind in _KINDS}
    for kind in _KINDS:
        set_kind = getattr(_C, f"_set_sdp_use_{kind}")

        def allow(enabled: bool, kind: str = kind, set_kind: Any = set_kind) -> None:
            set_kind(enabled)
            allowed[kind] = enabled
            _set_flash(any(allowed.values()))

        patches.set(_C, f"_set_sdp_use_{kind}", allow)
    patches.set(_C, "_get_flash_sdp_enabled", lambda: allowed[_FLASH])
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
    """Attention of tensors with data: plain operations where the GPU has no kernels for a call."""
    options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
    given = (query, key, value, attn_mask)
    is_ours = any(device_of(each).type == DEVICE_TYPE for each in (query, key, value))
    if not is_ours or kind_of(*given, dropout_p, is_causal, enable_gqa) != MATH:
        return _attention(*given, dropout_p, is_causal, **options)
    return by_products(*given, dropout_p, is_causal, **options)


def by_products(*args: Any, **options: Any) -> Tensor:
    """Attention as products and a softmax, as PyTorch composes it."""
    before = _is_flash_allowed()
    _set_flash(False)
    try:
        return _attention(*args, **options)
    finally:
        _set_flash(before)


def kind_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool,
) -> str:
    """Return the kind of kernels that the GPU runs for a call.

    Raises:
        RuntimeError: The program allows none that takes the call, or nothing could.
    """
    given = (query, key, value)
    _check(*given, attn_mask)
    dtype = query.dtype
    if torch.is_autocast_enabled(DEVICE_TYPE) and dtype.is_floating_point:
        dtype = torch.get_autocast_dtype(DEVICE_TYPE)
    call = AttentionCall(
        query=tuple(query.shape),
        key=tuple(key.shape),
        value=tuple(value.shape),
        dtype=dtype,
        masked=attn_mask is not None,
        causal=is_causal,
        grouped=enable_gqa,
        differentiated=torch.is_grad_enabled() and any(each.requires_grad for each in given),
        dropout=dropout_p,
        rows_are_dense=all(each.dim() and each.stride(-1) == 1 for each in given),
    )
    return chosen_kind(call, current().session.run.machine.spec.cuda_architecture)


def _check(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None) -> None:
    """Refuse what PyTorch refuses of attention, in its words.

    Source: ``validate_sdpa_input`` of PyTorch's ``transformers/attention.cpp``.
    """
    named = {"query": query, "key": key, "value": value}
    for what, found in (
        ("dtype", [each.dtype for each in named.values()]),
        ("device type", [device_of(each) for each in named.values()]),
    ):
        if len(set(found)) > 1:
            of = what.split()[0]
            each = ", ".join(f"{name}.{of}: {it}" for name, it in zip(named, found, strict=True))
            raise RuntimeError(
                f"Expected query, key, and value to have the same {what}, but got {each} instead."
            )
    if min(each.dim() for each in named.values()) < 2:
        raise RuntimeError(
            "Expected query, key, and value to all be  at least 2 dimensional, but got query.dim: "
            f"{query.dim()} key.dim: {key.dim()} and value.dim: {value.dim()} instead."
        )
    if attn_mask is not None and attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise RuntimeError(
            "Expected attn_mask dtype to be bool or float or to match query dtype, but got "
            f"attn_mask.dtype: {attn_mask.dtype} and  query.dtype: {query.dtype} instead."
        )
