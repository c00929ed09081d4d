"""Sharding of DTensors' attention: PyTorch has rules for a device's attention, not the host's.

C++ has simulated tensors on the host, so DTensor looks up a rule for the operation that PyTorch
chooses there. It gets the rule of a device: by batch, by heads, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy

from kernbench.torch_bridge.base.patches import Patches

_aten = torch.ops.aten
_OPERATIONS = {
    _aten._scaled_dot_product_flash_attention_for_cpu.default: 2,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward.default: 3,
}
"""And how many results they have; batch and heads are the first dims of results and arguments."""
_BATCH, _HEADS = 0, 1
_FILTERS = ("full_mesh_strategy_filter", "is_valid_strategy_cb")
"""Names, in different releases, of the function that checks whether a sharding is possible."""
_FILTER = next(
    each for each in _FILTERS if each in signature(expand_to_full_mesh_op_strategy).parameters
)


def install(patches: Patches) -> None:
    """Give DTensor the rule, if PyTorch has none of its own."""
    propagator: Any = DTensor._op_dispatcher.sharding_propagator
    for operation, outputs in _OPERATIONS.items():
        if operation in propagator.op_strategy_funcs:
            continue
        settings = RuntimeSchemaInfo(static_kwargkey=["attn_mask"], needs_pytree=True)
        propagator.register_op_strategy(operation, partial(_strategy, outputs), settings)
        for table in (propagator.op_strategy_funcs, propagator.op_to_schema_info):
            patches.on_close(table.pop, operation, None)


def _strategy(outputs: int, schema: Any) -> Any:
    """Return all shardings of a call."""
    mask = schema.kwargs_schema.get("attn_mask")
    found = []
    for placement in (Replicate(), Shard(_BATCH), Shard(_HEADS)):
        way: list[Any] = [placement] * (outputs + len(schema.args_strategy))
        if mask is not None:
            way.append(_of_mask(mask.shape, placement))
        found.append(way)

    def is_possible(inputs: Sequence[Any], _: Any) -> bool:
        # DTensor does not redistribute keyword arguments: a mask must have the right sharding.
        return mask is None or inputs[-1].placements == mask.strategies[0].output_spec.placements

    return expand_to_full_mesh_op_strategy(
        schema.get_mesh_from_args(),
        schema,
        found,
        input_index=outputs,
        **{_FILTER: is_possible},
    )


def _of_mask(shape: Sequence[int], placement: Any) -> Any:
    """Return the sharding of a mask, which may have fewer dims, or dims of length 1."""
    if isinstance(placement, Shard):
        dim = placement.dim + len(shape) - 4
        if dim >= 0 and shape[dim] > 1:
            return Shard(dim)
    return Replicate()
