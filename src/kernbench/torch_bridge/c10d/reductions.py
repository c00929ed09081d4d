"""What each ``ReduceOp`` computes, in the order of the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

_IN_PLACE: dict[Any, Any] = {
    ReduceOp.SUM: torch.Tensor.add_,
    ReduceOp.AVG: torch.Tensor.add_,
    ReduceOp.PREMUL_SUM: torch.Tensor.add_,
    ReduceOp.PRODUCT: torch.Tensor.mul_,
    ReduceOp.BAND: torch.Tensor.bitwise_and_,
    ReduceOp.BOR: torch.Tensor.bitwise_or_,
    ReduceOp.BXOR: torch.Tensor.bitwise_xor_,
}
_PAIRWISE: dict[Any, Any] = {ReduceOp.MIN: torch.minimum, ReduceOp.MAX: torch.maximum}
_KINDS: Any = ReduceOp.RedOpType.__members__
_NAMES = {kind.value: name.lower() for name, kind in _KINDS.items()}
"""Names of reductions by number: the texts and the hashes of kinds are slow, and each call of each
rank asks."""
_OF_BITS = frozenset(_KINDS[name].value for name in ("BAND", "BOR", "BXOR"))


def kind_of(op: Any) -> Any:
    """Return the plain kind of a reduce op, which may carry a factor."""
    return getattr(op, "op", op)


def name_of(op: Any) -> str:
    """Return a reduce op's name for error messages."""
    return _NAMES[kind_of(op).value]


def is_of_bits(op: Any) -> bool:
    """Return whether a reduce op combines bits."""
    return kind_of(op).value in _OF_BITS


def reduce_in_order(tensors: Sequence[Tensor], op: Any) -> Tensor:
    """Return the combination of one tensor per rank: ((t0 op t1) op t2) and so on."""
    kind = kind_of(op)
    if kind == ReduceOp.PREMUL_SUM:
        factor = op.__getstate__()[1]
        tensors = [tensor * factor for tensor in tensors]
    total = tensors[0].clone()
    if kind in _PAIRWISE:
        for tensor in tensors[1:]:
            total = _PAIRWISE[kind](total, tensor)
        return total
    combine = _IN_PLACE[kind]
    for tensor in tensors[1:]:
        combine(total, tensor)
    if kind == ReduceOp.AVG:
        total = total.div_(len(tensors)) if total.is_floating_point() else total // len(tensors)
    return total
