"""PyTorch's control-flow operations (``torch.cond``, ``while_loop``, ``scan``), run as Python.

PyTorch would compile branches and bodies. Here they are called: autograd sees the operations in
them, and a condition on a device is read by the host.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch._higher_order_ops
from torch.utils import _pytree as pytree

from kernbench.torch_bridge.base.patches import Patches

_PLACE = "torch._higher_order_ops"


def _call(fn: Callable[..., Any], args: Any, kwargs: Any = None) -> Any:
    return fn(*args, **(kwargs or {}))


def _cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    return true_fn(*operands) if pred else false_fn(*operands)


def _while_loop(cond_fn: Any, body_fn: Any, carried: Any, additional: Any) -> Any:
    while cond_fn(*carried, *additional):
        carried = body_fn(*carried, *additional)
        if not isinstance(carried, tuple):
            raise RuntimeError(f"body_fn should return a tuple but got {type(carried)}")
    return carried


def _stacked(results: list[Any]) -> Any:
    return pytree.tree_map(lambda *item: torch.stack(item), *results)


def _map(f: Any, xs: Any, args: Any) -> Any:
    return _stacked([f(*parts, *args) for parts in zip(*xs, strict=True)])


def _scan(combine_fn: Any, carry: Any, xs: Any, additional_inputs: Any = ()) -> Any:
    results = []
    for parts in zip(*xs, strict=True):
        carry, result = combine_fn(*pytree.tree_leaves(carry), *parts, *additional_inputs)
        results.append(result)
    return carry, _stacked(results)


def _scan_leaves(combine_fn: Any, carry: Any, xs: Any, additional_inputs: Any = ()) -> Any:
    """``scan`` as graphs call it: of lists of tensors, into one tuple."""
    results = []
    for parts in zip(*xs, strict=True):
        leaves = combine_fn(*carry, *parts, *additional_inputs)
        carry = leaves[: len(carry)]
        results.append(tuple(leaves[len(carry) :]))
    return *carry, *_stacked(results)


def _subgraph(graph: Any, identifier: Any, *operands: Any) -> Any:
    return graph(list(operands)) if getattr(graph, "_boxed_call", False) else graph(*operands)


def _foreach_map(fn: Any, op: Any, *operands: Any, **kwargs: Any) -> Any:
    return fn(op, *operands, **kwargs)


_FUNCTIONS: dict[str, dict[str, Any]] = {
    "utils": {"_hop_compile_and_call": _call},
    "scan": {"scan_op": _scan},
    "foreach_map": {"_foreach_map": _foreach_map},
}
_OPERATORS: dict[str, Callable[..., Any]] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "map_impl": _map,
    "scan": _scan_leaves,
    "invoke_subgraph": _subgraph,
}
"""What graphs call, too, that Dynamo, AOTAutograd and ``torch.export`` have made."""


def install(patches: Patches) -> None:
    """Let PyTorch's functions, which check their arguments, call these."""
    for module, replaced in _FUNCTIONS.items():
        # A function in the package shadows the module of the same name.
        patches.set_all(sys.modules[f"{_PLACE}.{module}"], replaced)
    for name, function in _OPERATORS.items():
        patches.set(type(getattr(torch.ops.higher_order, name)), "__call__", staticmethod(function))
