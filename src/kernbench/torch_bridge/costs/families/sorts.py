"""Sorts, which move keys and their indices."""

from __future__ import annotations

from typing import Any

from kernbench.commands import MathClass
from kernbench.torch_bridge.costs.families.streams import Stream, Streams, kernels
from kernbench.torch_bridge.costs.operations import OperationCosts
from kernbench.torch_bridge.costs.registry import Family, OperationCall
from kernbench.torch_bridge.costs.rules import plain_name
from kernbench.torch_bridge.costs.tensor_bytes import most_elements

_IN_ONE_BLOCK = 4096
"""Elements of a row that PyTorch sorts in a block (``should_use_small_sort`` of ATen's Sort.h)."""
_INDEX_BYTES = 8
_WORK = ((MathClass.SIMPLE, 4), (MathClass.REDUCE, 4))


def _key(costs: OperationCosts, call: OperationCall) -> Streams:
    read, written = _moved(call.args, call.kwargs)
    return (Stream(read, written, most_elements((*call.arguments, call.result)), _WORK),)


def _moved(args: Any, kwargs: dict[str, Any]) -> tuple[int, int]:
    """Return the bytes that a sort reads and writes.

    Short rows are copied beside their indices, and sorted in place by one block each. CUB sorts
    longer ones: it reads the keys for their histogram, and then reads and writes keys and indices
    once for each 8 bits of a key.

    Source: Adinets and Merrill, "Onesweep: A Faster Least Significant Digit Radix Sort for GPUs",
    arXiv 2206.01784, 2022.
    """
    keys = args[0]
    dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
    pairs = keys.numel() * (keys.element_size() + _INDEX_BYTES)
    if not keys.dim() or keys.shape[dim] <= _IN_ONE_BLOCK:
        return keys.nbytes + pairs, 2 * pairs
    return keys.nbytes + keys.element_size() * pairs, keys.element_size() * pairs


FAMILY = Family(matches=lambda func: plain_name(func) == "aten.sort", key=_key, kernels=kernels)
