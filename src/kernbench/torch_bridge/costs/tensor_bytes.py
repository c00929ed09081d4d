"""The bytes and elements of the tensors among an operation's arguments and results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, strided

from kernbench.torch_bridge.costs.scattered import has_steps


def num_bytes(values: Iterable[Any]) -> int:
    """Return the bytes of all tensors among values, also of those in lists.

    An element that a dim of stride 0 shows more than once counts once.
    """
    total = 0
    for value in values:
        if isinstance(value, Tensor):
            if value.layout is not strided:
                # Elements, and their indices.
                total += value._nnz() * (value.element_size() + 8 * value.dim())
            elif has_steps(value) and 0 in value.stride():
                total += _expanded_bytes(value)
            else:
                total += value.nbytes
        elif isinstance(value, (list, tuple)):
            total += num_bytes(value)
    return total


def _expanded_bytes(value: Tensor) -> int:
    count = value.element_size()
    for size, stride in zip(value.shape, value.stride(), strict=True):
        count *= size if stride or not size else 1
    return count


def most_elements(values: Iterable[Any]) -> int:
    """Return the elements of the largest tensor, or list of tensors, among values."""
    most = 0
    for value in values:
        if isinstance(value, Tensor):
            most = max(most, value.numel())
        elif isinstance(value, (list, tuple)):
            most = max(most, sum(item.numel() for item in value if isinstance(item, Tensor)))
    return most
