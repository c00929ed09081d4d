"""The time of scaled dot-product attention: of PyTorch's kernels, or of kernbench's own.

A machine whose library has the kernels that PyTorch ships with (FlashAttention 2, the
memory-efficient ones, cuDNN's) is timed as they are; others run kernbench's own flash kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from kernbench.dtypes import float32
from kernbench.hardware import load_library
from kernbench.library_kernels import (
    AttentionProblem,
    attention_kernels,
    flash_backward_launches,
    flash_launches,
)
from kernbench.ops import attention, attention_backward, attention_with_lse, record_launches
from kernbench.torch_bridge.base.dtypes import kernel_dtype
from kernbench.torch_bridge.costs.attention.backends import AttentionBackends
from kernbench.torch_bridge.costs.attention.choice import EFFICIENT, FLASH
from kernbench.torch_bridge.costs.library import timing_of_library
from kernbench.torch_bridge.costs.sequences import timing_of_kernels

if TYPE_CHECKING:
    from kernbench.hardware import Machine
    from kernbench.library_kernels import LibraryKernel
    from kernbench.torch_bridge.base.operation_timing import OperationTiming

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


class AttentionCosts:
    """Schedules of attention on one machine; each is computed once."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._known: dict[Any, OperationTiming] = {}
        self._backends = AttentionBackends(machine.spec)
        self._forward: dict[Any, tuple[str, ...]] = {}
        """The kernels that the last forward pass was allowed, by its shapes: its backward pass is
        alike."""

    def timing(
        self, func: Any, name: str, args: Any, kwargs: dict[str, Any], sip_id: int
    ) -> OperationTiming | None:
        """Return the schedules of an operation; None if it is not attention that kernels can do."""
        if not name.startswith(_PREFIX) or "attention_math" in name:
            return None
        given: dict[str, Any] = dict(zip(_names(func), args, strict=False)) | kwargs
        if "query" not in given:
            return None
        query, key, value = given["query"], given["key"], given["value"]
        if query.dim() != 4 or key.shape[:-1] != value.shape[:-1]:
            return None
        if not query.numel() or not key.numel() or not value.numel():
            return None
        causal = bool(given.get("is_causal"))
        masked = any(given.get(each) is not None for each in _MASKS)
        shapes = (tuple(query.shape), tuple(key.shape), tuple(value.shape))
        # Where flash attention is called itself: PyTorch never asks it for the other corner.
        from_last = causal and func in _FROM_LAST and query.shape[2] != key.shape[2]
        found = self._of_library(name, shapes, query.dtype, causal, masked, from_last, sip_id)
        # kernbench's own kernels take values of the size of keys.
        if found is not None or key.shape != value.shape:
            return found
        return self.of_shapes(
            name,
            *shapes[:2],
            query.dtype,
            sip_id,
            causal=causal,
            masked=masked,
            backward="backward" in name,
            from_last=from_last,
        )

    def allowed(self) -> tuple[str, ...]:
        """Return the kinds of kernels that the program allows at present, on any machine."""
        return self._backends.asked()

    def allow(self, kinds: Sequence[str]) -> None:
        """Allow these kinds only, whatever is set in PyTorch."""
        self._backends.only = tuple(kinds)

    def _of_library(
        self,
        name: str,
        shapes: tuple[Shape, Shape, Shape],
        dtype: Any,
        causal: bool,
        masked: bool,
        from_last: bool,
        sip_id: int,
    ) -> OperationTiming | None:
        """Return the schedules of PyTorch's own kernels, None where the library lacks them.

        ``from_last`` says that a causal mask is aligned with the last key.
        """
        kernels_dtype = kernel_dtype(dtype)
        architecture = self._machine.spec.kernel_library
        if architecture is None or kernels_dtype is None:
            return None
        sip = self._machine.sip_at(sip_id)
        call = (shapes, kernels_dtype, causal, masked, from_last)
        if "backward" in name:
            allowed = self._forward.get(call) or self._backends.allowed()
        else:
            allowed = self._forward[call] = self._backends.allowed()
        identity = (name, call, allowed, id(sip))
        found = self._known.get(identity)
        if found is None:
            problem = _problem(shapes, kernels_dtype, causal, from_last)
            direction = "backward" if "backward" in name else "forward"
            (_, _, queries, _), (_, _, keys, _), _ = shapes
            ragged = causal and queries != keys and not from_last
            if from_last:
                # A bias asks for these two, in this order, on every device.
                allowed = tuple(kind for kind in (FLASH, EFFICIENT) if kind in allowed)
            backend = self._backends.chosen(name, problem, masked, ragged, allowed)
            launches = _of_pytorch(architecture, f"{backend}_{direction}", problem, sip.num_pes)
            if not launches:
                return None
            shown = _name_of(backend, direction)
            found = timing_of_library(shown, launches, sip, load_library(architecture))
            self._known[identity] = found
        return found

    def of_shapes(
        self,
        name: str,
        query: Sequence[int],
        key: Sequence[int],
        dtype: Any,
        sip_id: int,
        *,
        causal: bool = False,
        masked: bool = False,
        backward: bool = False,
        from_last: bool = False,
    ) -> OperationTiming | None:
        """Return the schedules for (batch, heads, length, head size); values are like keys."""
        kernels_dtype = kernel_dtype(dtype)
        if kernels_dtype is None:
            return None
        offset = key[2] - query[2] if from_last else 0
        asked = (tuple(query), tuple(key), kernels_dtype, causal, masked, backward, offset)
        identity = (name, asked, id(self._machine.sip_at(sip_id)))
        found = self._known.get(identity)
        if found is None:
            traces = record_launches(lambda at: _launch(at, *asked), self._machine)
            found = timing_of_kernels(name, traces, self._machine, sip_id)
            self._known[identity] = found
        return found


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
    return tuple(replace(each, warm=False) for each in launches)


def _launch(
    at: Any,
    query: Shape,
    key: Shape,
    dtype: Any,
    causal: bool,
    masked: bool,
    backward: bool,
    offset: int,
) -> None:
    q, k, v = at.tensor(query, dtype), at.tensor(key, dtype), at.tensor(key, dtype)
    mask = at.tensor((*query[:3], key[2]), dtype) if masked else None
    # PyTorch's causal mask is aligned with the first key, but for flash attention's own.
    options: dict[str, Any] = {"mask": mask, "causal": causal, "query_offset": offset}
    if not backward:
        (attention_with_lse if query[2] > 1 else attention)(q, k, v, **options)
        return
    grad, out = at.tensor(query, dtype), at.tensor(query, dtype)
    lse = at.tensor(query[:3], float32)
    attention_backward(grad, q, k, v, out, lse, **options)
