"""Which kernels scaled dot-product attention can run on a GPU, as PyTorch 2.13 asks.

Source: ``sdp_utils.cpp`` of PyTorch's ``aten/src/ATen/native/transformers/cuda``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernbench.library_kernels import CUDNN_FIRST

_C: Any = torch._C
FLASH, EFFICIENT, CUDNN = "flash2", "efficient", "cudnn"
MATH = "math"
OLDEST = 80
"""Compute capability from which on flash attention and cuDNN's run."""
_OLDEST_OF_HALVES = 70
"""From which on memory-efficient attention takes halves to the engine for them."""
WIDEST_FLASH = 256
WIDEST_CUDNN = {90: 256}
"""Head size that cuDNN takes at most, by compute capability; 128 elsewhere."""
_SMALL_MEMORY = (86, 89, 120)
"""Where a block has too little shared memory for flash attention's gradients of wide heads."""
HALVES = (torch.float16, torch.bfloat16)

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """What the choice depends on: shapes are (batch, heads, length, head size)."""

    query: Shape
    key: Shape
    value: Shape
    dtype: torch.dtype
    masked: bool
    causal: bool
    grouped: bool
    """Whether the program lets heads of queries share those of keys (``enable_gqa``)."""
    differentiated: bool
    dropout: float
    rows_are_dense: bool
    """Whether elements of a row lie side by side."""


def priority(capability: int) -> tuple[str, ...]:
    """Return the kinds of kernels in the order that PyTorch asks them in."""
    asked = os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED", "0") != "1"
    first = asked and capability in CUDNN_FIRST
    rest = (FLASH, EFFICIENT)
    return (CUDNN, *rest) if first else (*rest, CUDNN)


def allows(kind: str) -> bool:
    """Whether the program allows a kind at present (``sdpa_kernel``)."""
    flag: bool = getattr(_C, f"_get_{_SWITCHES[kind]}_sdp_enabled")()
    return flag


_SWITCHES = {FLASH: "flash", EFFICIENT: "mem_efficient", CUDNN: "cudnn", MATH: "math"}


def chosen_kind(call: AttentionCall, capability: int | None) -> str:
    """Return the kind of kernels of a call; ``MATH`` are products and a softmax.

    Machines without a compute capability take each call with any kernels that are allowed.

    Raises:
        RuntimeError: None that the program allows takes the call, in PyTorch's words.
    """
    refused = {}
    for kind in priority(capability or 0):
        if not allows(kind):
            refused[kind] = "the program does not allow it"
            continue
        refused[kind] = refusal(kind, call, capability)
        if not refused[kind]:
            return kind
    if allows(MATH):
        return MATH
    names = {FLASH: "flash attention", EFFICIENT: "memory-efficient", CUDNN: "cuDNN"}
    why = "; ".join(f"{names[kind]}: {text}" for kind, text in refused.items())
    if not any(map(allows, refused)):
        raise RuntimeError(
            "No viable backend for scaled_dot_product_attention was found. This is likely due to "
            "turning off both the math kernel and the fused kernels."
        )
    raise RuntimeError(f"No available kernel. Aborting execution. ({why})")


def refusal(kind: str, call: AttentionCall, capability: int | None) -> str:
    """Return why kernels do not take a call, empty if they do."""
    if any(len(item) != 4 for item in (call.query, call.key, call.value)):
        return "query, key and value must have four dimensions"
    if why := _heads(call):
        return why
    if 0 in (call.query[2], call.key[2]):
        return "there are no queries or no keys"
    return "" if capability is None else _RULES[kind](call, capability)


def _heads(call: AttentionCall) -> str:
    (batch, heads, *_), (key_batch, key_heads, *_), (value_batch, value_heads, *_) = (
        call.query,
        call.key,
        call.value,
    )
    if not batch == key_batch == value_batch:
        return "query, key and value must have one batch size"
    if heads == key_heads == value_heads:
        return ""
    shared = call.grouped and key_heads == value_heads and key_heads and not heads % key_heads
    return "" if shared else "numbers of heads differ (enable_gqa lets queries share keys)"


def _flash(call: AttentionCall, capability: int) -> str:
    size = call.query[3]
    wide = call.differentiated and capability in _SMALL_MEMORY and size > 192
    for holds, why in (
        (capability < OLDEST, f"a GPU of compute capability {capability} has none"),
        (call.dtype not in HALVES, f"it takes float16 and bfloat16, not {call.dtype}"),
        (call.masked, "it takes no attn_mask"),
        (not size == call.key[3] == call.value[3], "head sizes of query, key and value differ"),
        (size > WIDEST_FLASH, f"its heads have {WIDEST_FLASH} elements at most, not {size}"),
        (wide and (size <= 224 or call.dropout > 0), f"no gradients of heads of {size} elements"),
        (call.causal and call.query[2] != call.key[2], "is_causal with other lengths of keys"),
        (not call.rows_are_dense, "elements of a row must lie side by side"),
    ):
        if holds:
            return why
    return ""


def _efficient(call: AttentionCall, capability: int) -> str:
    taken = (torch.float16, torch.float32, *((torch.bfloat16,) if capability >= OLDEST else ()))
    if call.dtype not in taken:
        return f"it takes {', '.join(map(str, taken))}, not {call.dtype}"
    if not call.rows_are_dense:
        return "elements of a row must lie side by side"
    if call.query[1] != call.key[1]:
        return "queries do not share keys in it"
    step = head_step(call.dtype, capability)
    if call.query[3] != call.key[3] or any(
        not query[3] or query[3] % step for query in (call.query, call.value)
    ):
        return f"head sizes must be multiples of {step}, the same of query and key"
    return ""


def head_step(dtype: torch.dtype, capability: int) -> int:
    """Return what head sizes are multiples of in memory-efficient attention."""
    if capability >= OLDEST:
        return 16 // dtype.itemsize
    return 8 if capability >= _OLDEST_OF_HALVES and dtype in HALVES else 1


def _cudnn(call: AttentionCall, capability: int) -> str:
    widest = WIDEST_CUDNN.get(capability, 128)
    sizes = (call.query[3], call.value[3])
    for holds, why in (
        (capability < OLDEST, f"a GPU of compute capability {capability} has none"),
        (call.dtype not in HALVES, f"it takes float16 and bfloat16, not {call.dtype}"),
        (call.query[3] != call.key[3], "head sizes of query and key differ"),
        (
            any(size > widest or size % 8 for size in sizes),
            f"head sizes must be multiples of 8 up to {widest}",
        ),
        (call.key[2] == 1, "it does not take a single key"),
        (_is_deterministic(), "it is not deterministic"),
        (not call.rows_are_dense, "elements of a row must lie side by side"),
    ):
        if holds:
            return why
    return ""


def _is_deterministic() -> bool:
    asked: bool = _C._get_deterministic_algorithms()
    return asked and not _C._get_deterministic_algorithms_warn_only()


_RULES: dict[str, Callable[[AttentionCall, int], str]] = {
    FLASH: _flash,
    EFFICIENT: _efficient,
    CUDNN: _cudnn,
}


def kinds_allowed(kinds: Sequence[str]) -> tuple[str, ...]:
    """Return those of kinds that the program allows at present."""
    return tuple(filter(allows, kinds))
