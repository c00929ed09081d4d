"""What an operation reads that the operation before it has not made: weights, keys and values."""

from __future__ import annotations

from typing import Any

import torch

from kernbench.torch_bridge.costs.products import CONVOLUTIONS, PRODUCTS, RECURRENT, first_of

aten = torch.ops.aten
_ATTENTION = "aten::_scaled_dot_product_"
_SELECTIONS = frozenset({"aten::embedding", "aten::index_select", "aten::index"})
_BATCHED = frozenset({"aten::bmm", "aten::baddbmm"})
_OF_VECTORS = frozenset({"aten::mv", "aten::addmv"})


def cold_bytes(func: Any, args: Any, result: Any) -> int:
    """Return the bytes of weights, keys, values and tables among those that an operation reads.

    In a backward the second operand of a product is a weight, too, or what the forward has kept.
    """
    name = func._schema.name
    if func in CONVOLUTIONS:
        return _bytes(args[2] if isinstance(result, (list, tuple)) else args[1])
    if func in RECURRENT:
        return _bytes(args[1])
    if func in PRODUCTS and name not in _BATCHED:
        first = first_of(func)
        return _bytes(args[first if name in _OF_VECTORS else first + 1])
    if name.startswith(_ATTENTION):
        # A backward is given the gradient first, and reads what the forward has kept.
        return _bytes(args[1:5] if name.endswith("backward") else args[1:3])
    return _bytes(result) if name in _SELECTIONS else 0


def _bytes(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return sum(map(_bytes, value))
    return value.nbytes if isinstance(value, torch.Tensor) and not value.is_nested else 0
