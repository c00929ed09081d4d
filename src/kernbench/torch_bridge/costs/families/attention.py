"""The time of scaled dot-product attention: of PyTorch's kernels, or of kernbench's own.

A machine whose library has the kernels that PyTorch ships with (FlashAttention 2, the
memory-efficient ones, cuDNN's) is timed as they are; others run kernbench's own flash kernels.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch

from kernbench.dtypes import DType
from kernbench.library_kernels import (
    AttentionProblem,
    LibraryKernel,
    attention_kernels,
    flash_backward_launches,
    flash_launches,
)
from kernbench.torch_bridge.base.dtypes import kernel_dtype
from kernbench.torch_bridge.base.operation_timing import OperationTiming
from kernbench.torch_bridge.costs.attention import EFFICIENT, FLASH, OwnAttention, own_kernels
from kernbench.torch_bridge.costs.library import timing_of_library
from kernbench.torch_bridge.costs.operations import OperationCosts
from kernbench.torch_bridge.costs.registry import Family, OperationCall

_PREFIX = "aten._scaled_dot_product_"
_MASKS = ("attn_bias", "attn_mask")
Shape = tuple[int, ...]
_aten: Any = torch.ops.aten
_FROM_LAST = frozenset(
    {
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_flash_attention_backward.default,
    }
)
"""Operations whose causal mask is aligned with the last key, as that of the kernels is."""


class _AttentionCall(NamedTuple):
    shapes: tuple[Shape, Shape, Shape]
    """Those of queries, keys and values: (batch, heads, length, head size)."""
    dtype: DType
    causal: bool
    masked: bool
    from_last: bool
    """Whether a causal mask is aligned with the last key."""
    allowed: tuple[str, ...]
    """The kinds of kernels that the program allows."""


def _key(costs: OperationCosts, call: OperationCall) -> _AttentionCall | None:
    """Return a pass; None if it is not one that kernels can do."""
    kwargs: dict[str, Any] = dict(zip(_names(call.func), call.args, strict=False)) | call.kwargs
    if "attention_math" in call.name or "query" not in kwargs:
        return None
    query, key, value = kwargs["query"], kwargs["key"], kwargs["value"]
    dtype = kernel_dtype(query.dtype)
    if query.dim() != 4 or key.shape[:-1] != value.shape[:-1] or dtype is None:
        return None
    if not query.numel() or not key.numel() or not value.numel():
        return None
    causal = bool(kwargs.get("is_causal"))
    masked = any(kwargs.get(mask) is not None for mask in _MASKS)
    # Where flash attention is called itself: PyTorch never asks it for the other corner.
    from_last = causal and call.func in _FROM_LAST and query.shape[2] != key.shape[2]
    shapes = (tuple(query.shape), tuple(key.shape), tuple(value.shape))
    asked = _AttentionCall(shapes, dtype, causal, masked, from_last, ())
    return asked._replace(allowed=costs.attention.of_pass(asked, "backward" in call.name))


def _kernels(
    costs: OperationCosts, name: str, problem: _AttentionCall, sip_id: int
) -> OperationTiming | None:
    """Return the schedules of PyTorch's own kernels, of kernbench's where the library lacks them.

    These take values of the size of keys.
    """
    kernels = _of_library(costs, name, problem, sip_id)
    query, key, value = problem.shapes
    if kernels is not None or key != value:
        return kernels
    offset = key[2] - query[2] if problem.from_last else 0
    own = OwnAttention(
        query, key, problem.dtype, problem.causal, problem.masked, "backward" in name, offset
    )
    return costs.once(own_kernels, name, own, sip_id)


def _of_library(
    costs: OperationCosts, name: str, asked: _AttentionCall, sip_id: int
) -> OperationTiming | None:
    architecture, library = costs.machine.spec.kernel_library, costs.library
    if architecture is None or library is None:
        return None
    shapes, dtype, causal, masked, from_last, allowed = asked
    sip = costs.machine.sip_at(sip_id)
    problem = _problem(shapes, dtype, causal, from_last)
    direction = "backward" if "backward" in name else "forward"
    (_, _, queries, _), (_, _, keys, _), _ = shapes
    ragged = causal and queries != keys and not from_last
    if from_last:
        # A bias asks for these two, in this order, on every device.
        allowed = tuple(kind for kind in (FLASH, EFFICIENT) if kind in allowed)
    backend = costs.attention.chosen(name, problem, masked, ragged, allowed)
    launches = _of_pytorch(architecture, f"{backend}_{direction}", problem, sip.num_pes)
    if not launches:
        return None
    return timing_of_library(_name_of(backend, direction), launches, sip, library)


def _name_of(backend: str, direction: str) -> str:
    """Return what a GPU's dispatcher calls the operation that runs a kind of kernels."""
    kind = _SHOWN.get(backend, backend)
    return f"{_PREFIX}{kind}_attention{'_backward' if direction == 'backward' else ''}"


_SHOWN = {FLASH: "flash"}


@cache
def _names(func: Any) -> tuple[str, ...]:
    return tuple(argument.name for argument in func._schema.arguments)


def _problem(
    shapes: tuple[Shape, Shape, Shape], dtype: Any, causal: bool, from_last: bool
) -> AttentionProblem:
    (batch, heads, q_len, head_dim), (_, kv_heads, kv_len, _), (*_, value_dim) = shapes
    if from_last:
        # Queries before all keys see none.
        q_len = min(q_len, kv_len)
    elif causal:
        # PyTorch's causal mask is aligned with the first key: nobody sees those after the queries.
        kv_len = min(kv_len, q_len)
    width = dtype.itemsize
    return AttentionProblem(
        batch=batch,
        q_len=q_len,
        kv_len=kv_len,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=value_dim,
        causal=causal and q_len <= kv_len,
        dtype="tf32" if width > 2 else dtype.name,
        q_bytes=width,
        kv_bytes=width,
    )


def _of_pytorch(
    architecture: str, name: str, problem: AttentionProblem, num_pes: int
) -> tuple[LibraryKernel, ...]:
    """Return the launches of a pass; none where the architecture lacks the kernel."""
    kernel = attention_kernels(architecture).get(name)
    if kernel is None:
        return ()
    if name.endswith("backward"):
        launches = flash_backward_launches(problem, kernel)
    else:
        launches = flash_launches(problem, kernel, num_pes)
    if problem.q_len > 1:
        return launches
    # The keys of a single query come from a step before: the cache has not kept them.
    return tuple(replace(launch, warm=False) for launch in launches)


FAMILY = Family(
    matches=lambda func: str(func._overloadpacket).startswith(_PREFIX),
    key=_key,
    kernels=_kernels,
    # Keys and values; a backward is given the gradient first, and what was kept for it.
    cold=lambda call: (
        call.args[1:5] if call.func._schema.name.endswith("backward") else call.args[1:3]
    ),
)
