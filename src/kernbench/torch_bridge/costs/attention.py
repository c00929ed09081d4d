"""The time of scaled dot-product attention: that of kernbench's own flash kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from kernbench.dtypes import float32
from kernbench.ops import attention, attention_backward, attention_with_lse, record_launches
from kernbench.torch_bridge.base.dtypes import kernel_dtype
from kernbench.torch_bridge.costs.sequences import timing_of_kernels

if TYPE_CHECKING:
    from kernbench.hardware import Machine
    from kernbench.torch_bridge.base.operation_timing import OperationTiming

_PREFIX = "aten._scaled_dot_product_"
_MASKS = ("attn_bias", "attn_mask")
Shape = tuple[int, ...]


class AttentionCosts:
    """Schedules of attention on one machine; each is computed once."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._known: dict[Any, OperationTiming] = {}

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
        if query.dim() != 4 or key.shape != value.shape:
            return None
        if not query.numel() or not key.numel():
            return None
        return self.of_shapes(
            name,
            query.shape,
            key.shape,
            query.dtype,
            sip_id,
            causal=bool(given.get("is_causal")),
            masked=any(given.get(each) is not None for each in _MASKS),
            backward="backward" in name,
        )

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
    ) -> OperationTiming | None:
        """Return the schedules for (batch, heads, length, head size); values are like keys."""
        kernels_dtype = kernel_dtype(dtype)
        if kernels_dtype is None:
            return None
        asked = (tuple(query), tuple(key), kernels_dtype, causal, masked, backward)
        identity = (name, asked, id(self._machine.sip_at(sip_id)))
        found = self._known.get(identity)
        if found is None:
            traces = record_launches(lambda at: _launch(at, *asked), self._machine)
            found = timing_of_kernels(name, traces, self._machine, sip_id)
            self._known[identity] = found
        return found


@cache
def _names(func: Any) -> tuple[str, ...]:
    return tuple(argument.name for argument in func._schema.arguments)


def _launch(
    at: Any, query: Shape, key: Shape, dtype: Any, causal: bool, masked: bool, backward: bool
) -> None:
    q, k, v = at.tensor(query, dtype), at.tensor(key, dtype), at.tensor(key, dtype)
    mask = at.tensor((*query[:3], key[2]), dtype) if masked else None
    # PyTorch's causal mask is aligned with the first key, the kernels' with the last.
    options: dict[str, Any] = {"mask": mask, "causal": causal, "query_offset": 0}
    if not backward:
        (attention_with_lse if query[2] > 1 else attention)(q, k, v, **options)
        return
    grad, out = at.tensor(query, dtype), at.tensor(query, dtype)
    lse = at.tensor(query[:3], float32)
    attention_backward(grad, q, k, v, out, lse, **options)
