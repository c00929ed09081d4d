"""The time of scaled dot-product attention by kernbench's own flash kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kernbench.dtypes import DType, float32
from kernbench.ops import attention, attention_backward, attention_with_lse, record_launches
from kernbench.torch_bridge.costs.sequences import timing_of_kernels

if TYPE_CHECKING:
    from kernbench.torch_bridge.base.operation_timing import OperationTiming
    from kernbench.torch_bridge.costs.operations import OperationCosts

Shape = tuple[int, ...]


class OwnAttention(NamedTuple):
    """A pass over (batch, heads, length, head size); values are like keys."""

    query: Shape
    key: Shape
    dtype: DType
    causal: bool = False
    masked: bool = False
    backward: bool = False
    offset: int = 0
    """How many keys the first query sees before its own."""


def own_kernels(
    costs: OperationCosts, name: str, problem: OwnAttention, sip_id: int
) -> OperationTiming:
    """Return the schedules of a pass."""
    traces = record_launches(lambda at: _launch(at, *problem), costs.machine)
    return timing_of_kernels(name, traces, costs.machine, sip_id)


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
