"""Elementwise operations whose operands are unlike: PyTorch loads them an element at a time.

Lanes beside each other make results that are beside each other in memory. Where an operand lies in
another order (an image of planes beside one that is channels-last), their elements of it are in
different sectors of 32 bytes, each of which the cache gives whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from kernbench.hardware import load_library
from kernbench.library_kernels import ELEMENTS_OF_BLOCK, scattered
from kernbench.torch_bridge.costs.library import timing_of_library

if TYPE_CHECKING:
    from kernbench.hardware import KernelLibrary, Machine
    from kernbench.torch_bridge.base.operation_timing import OperationTiming

_KERNEL = "aten_scattered"
SECTOR = 32
"""Bytes that a GPU's cache gives at a time."""


class ScatteredCosts:
    """Schedules of such operations on one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._library = _library_of(machine)

    def timing(
        self,
        name: str,
        elements: int,
        read_bytes: int,
        written_bytes: int,
        sip_id: int,
        spread_bytes: int = 0,
    ) -> OperationTiming | None:
        """Return the schedules; None if the machine's libraries have no such kernel."""
        if self._library is None:
            return None
        kernel = scattered(_KERNEL, elements, read_bytes, written_bytes, spread_bytes)
        return timing_of_library(name, (kernel,), self._machine.sip_at(sip_id), self._library)


def _library_of(machine: Machine) -> KernelLibrary | None:
    architecture = machine.spec.kernel_library
    library = None if architecture is None else load_library(architecture)
    return None if library is None or _KERNEL not in library.names() else library


def are_unlike(tensors: Iterable[Any]) -> bool:
    """Return whether the operands and the result of an elementwise operation are unlike.

    So they are where dtypes differ, apart from masks, or where one is broadcast or transposed.
    """
    first, *others = [each for each in tensors if isinstance(each, Tensor) and each.dim()] or [None]
    return first is not None and any(
        each.numel() != first.numel()
        or (each.dtype != first.dtype and torch.bool not in (each.dtype, first.dtype))
        or _steps(each) != _steps(first)
        for each in others
    )


def spread_bytes(operands: Iterable[Any], result: Any) -> int:
    """Return the bytes of sectors that are loaded besides the elements that a block needs."""
    if not isinstance(result, Tensor) or not result.numel() or not has_steps(result):
        return 0
    order = _order(result)
    return sum(
        round(_spread(each, result.shape, order) * result.numel())
        for each in operands
        if isinstance(each, Tensor) and has_steps(each) and _steps(each) != _steps(result)
    )


def spread_of_copy(tensor: Tensor) -> int:
    """Return :func:`spread_bytes` of making a tensor contiguous."""
    return round(_spread(tensor, tensor.shape, [*range(tensor.dim())][::-1]) * tensor.numel())


def _order(tensor: Tensor) -> list[int]:
    """Return a tensor's dims by how far apart its elements are in them, the nearest first."""
    dims = [dim for dim, size in enumerate(tensor.shape) if size > 1]
    return sorted(dims, key=lambda dim: (tensor.stride(dim), -dim))


def _spread(operand: Tensor, shape: tuple[int, ...], order: list[int]) -> float:
    """Return the bytes of an operand's sectors per element of a result, less those it needs.

    Counted over the elements of one block of threads in the middle of the result, whose dims are in
    memory in this order, the nearest first.
    """
    elements = math.prod(shape)
    count = min(ELEMENTS_OF_BLOCK, elements)
    first = (elements - count) // 2
    left = np.arange(first, first + count)
    places = np.zeros(count, dtype=np.int64)
    ahead = len(shape) - operand.dim()
    for dim in order:
        size = shape[dim]
        if dim >= ahead and operand.shape[dim - ahead] > 1:
            places += left % size * operand.stride(dim - ahead)
        left = left // size
    item = operand.element_size()
    distinct = len(np.unique(places))
    sectors = len(np.unique(places * item // SECTOR))
    return max(sectors * SECTOR - distinct * item, 0) / count


def has_steps(tensor: Tensor) -> bool:
    """Return whether a tensor's elements lie in strides; sparse and nested ones do not."""
    return tensor.layout is torch.strided and not tensor.is_nested


def _steps(tensor: Tensor) -> list[int]:
    if not has_steps(tensor):
        return []
    sizes_and_steps = zip(tensor.shape, tensor.stride(), strict=True)
    return [step for size, step in sizes_and_steps if size > 1]
