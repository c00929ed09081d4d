"""What each collective does to the tensors of its ranks.

Every function takes the inputs and the outputs of all ranks, in group order, behind what it may
have to know of the call, and writes outputs.
What each ``ReduceOp`` computes is in the order of the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    kind, dtype = kind_of(op), tensors[0].dtype
    if dtype.is_floating_point and dtype.itemsize == 1:
        # The CPU does not compute with them.
        return reduce_in_order([tensor.float() for tensor in tensors], op).to(dtype)
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


Lists = Sequence[Sequence[Tensor]]
Compute = Callable[[Lists, Lists], None]


def all_reduce(op: Any, _: Lists, outputs: Lists) -> None:
    """Combine in place."""
    for tensors in zip(*outputs, strict=True):
        total = reduce_in_order(tensors, op)
        for tensor in tensors:
            tensor.copy_(total)


def all_reduce_into(op: Any, inputs: Lists, outputs: Lists) -> None:
    """Combine into tensors beside those that are given."""
    total = reduce_in_order([item[0] for item in inputs], op)
    for (target,) in outputs:
        target.copy_(total)


def reduce(op: Any, root: int, inputs: Lists, outputs: Lists) -> None:
    """Combine into the root's tensor."""
    for index, target in enumerate(outputs[root]):
        target.copy_(reduce_in_order([value[index] for value in inputs], op))


def broadcast(root: int, _: Lists, outputs: Lists) -> None:
    """Copy the root's tensors to all ranks."""
    for position, targets in enumerate(outputs):
        if position != root:
            for target, source in zip(targets, outputs[root], strict=True):
                target.copy_(source)


def all_gather(inputs: Lists, outputs: Lists) -> None:
    """Copy all inputs to every rank: one output tensor per rank for each input, in rank order."""
    for targets in outputs:
        for index, sources in enumerate(zip(*inputs, strict=True)):
            for position, source in enumerate(sources):
                targets[index * len(inputs) + position].copy_(source)


def all_gather_flat(inputs: Lists, outputs: Lists) -> None:
    """Concatenate all inputs in rank order into one output tensor on each rank."""
    for targets in outputs:
        for index, target in enumerate(targets):
            flat = target.view(-1)
            at = 0
            for value in inputs:
                source = value[index].reshape(-1)
                flat[at : at + source.numel()].copy_(source)
                at += source.numel()


def reduce_scatter(op: Any, inputs: Lists, outputs: Lists) -> None:
    """Write to each rank the combination of the inputs at its position."""
    ranks = len(inputs)
    for position, targets in enumerate(outputs):
        for index, target in enumerate(targets):
            parts = [value[index * ranks + position] for value in inputs]
            target.copy_(reduce_in_order(parts, op).view_as(target))


def reduce_scatter_flat(op: Any, inputs: Lists, outputs: Lists) -> None:
    """Do the same for inputs of one tensor each, cut into one part per rank."""
    for position, targets in enumerate(outputs):
        for index, target in enumerate(targets):
            size = target.numel()
            part = slice(position * size, (position + 1) * size)
            parts = [value[index].reshape(-1)[part] for value in inputs]
            target.view(-1).copy_(reduce_in_order(parts, op))


def gather(root: int, inputs: Lists, outputs: Lists) -> None:
    """Copy all inputs to the root."""
    # As for scatter.
    for target, (source,) in zip(
        outputs[root] or [item[0] for item in inputs], inputs, strict=True
    ):
        target.copy_(source)


def scatter(root: int, inputs: Lists, outputs: Lists) -> None:
    """Copy one of the root's tensors to each rank."""
    # Of a folded run perhaps the root is not there, and somebody else stands for it.
    for source, (target,) in zip(
        inputs[root] or [output[0] for output in outputs], outputs, strict=True
    ):
        target.copy_(source)


def all_to_all(inputs: Lists, outputs: Lists) -> None:
    """Copy to each rank the tensor at its position on every rank."""
    for position, targets in enumerate(outputs):
        for target, value in zip(targets, inputs, strict=True):
            source = value[position]
            target.copy_(source if source.shape == target.shape else source.reshape(target.shape))


def send(inputs: Lists, outputs: Lists) -> None:
    """Copy the sender's tensors (first rank) to the receiver's (second)."""
    for target, source in zip(outputs[1], inputs[0], strict=True):
        target.copy_(source.reshape(target.shape))


def send_memory(inputs: Lists, outputs: Lists) -> None:
    """Copy as :func:`send` does, between tensors whose elements lie in one order.

    Raises:
        RuntimeError: They do not: what moves memory would bring them into another order.
    """
    for target, source in zip(outputs[1], inputs[0], strict=True):
        steps, others = (
            [step for step, size in zip(item.stride(), item.shape, strict=True) if size > 1]
            for item in (source, target)
        )
        is_in_order = source.is_contiguous() and target.is_contiguous()
        if steps != others and not is_in_order:
            raise RuntimeError(
                f"NCCL moves memory as it lies, so the receiver (strides {target.stride()}) gets "
                f"the sender's elements (strides {source.stride()}) in another order; give both "
                "tensors one layout, by .contiguous()"
            )
    send(inputs, outputs)


def nothing(_: Lists, __: Lists) -> None:
    """A barrier moves no data."""
