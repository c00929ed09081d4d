"""What an operation reads that the operation before it has not made: weights, keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernbench.torch_bridge.costs.products import (
    BATCHED,
    CONVOLUTIONS,
    PRODUCTS,
    RECURRENT,
    first_of,
)

_ATTENTION = "aten::_scaled_dot_product_"
_SELECTIONS = frozenset({"aten::embedding", "aten::index_select", "aten::index"})
_OF_VECTORS = frozenset({"aten::mv", "aten::addmv"})


def cold_operands(func: Any, args: Any, result: Any) -> Sequence[Any]:
    """Return weights, keys, values and what a table gives, among what an operation reads.

    In a backward the second operand of a product is a weight, too, or what the forward has kept.
    """
    name = func._schema.name
    if func in CONVOLUTIONS:
        return (args[2] if isinstance(result, (list, tuple)) else args[1],)
    if func in RECURRENT:
        return (args[1],)
    if func in PRODUCTS and name not in BATCHED:
        first = first_of(func)
        return (args[first if name in _OF_VECTORS else first + 1],)
    if name.startswith(_ATTENTION):
        # A backward is given the gradient first, and reads what the forward has kept.
        found: Sequence[Any] = args[1:5] if name.endswith("backward") else args[1:3]
        return found
    return (result,) if name in _SELECTIONS else ()
