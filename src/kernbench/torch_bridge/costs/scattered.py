"""Elementwise operations whose operands are unlike: PyTorch loads them an element at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kernbench.hardware import load_library
from kernbench.library_kernels import scattered
from kernbench.torch_bridge.costs.library import timing_of_library

if TYPE_CHECKING:
    from kernbench.hardware import KernelLibrary, Machine
    from kernbench.torch_bridge.base.operation_timing import OperationTiming

_KERNEL = "aten_scattered"


class ScatteredCosts:
    """Schedules of such operations on one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._library = _library_of(machine)

    def timing(
        self, name: str, elements: int, read_bytes: int, written_bytes: int, sip_id: int
    ) -> OperationTiming | None:
        """Return the schedules; None if the machine's libraries have no such kernel."""
        if self._library is None:
            return None
        kernel = scattered(_KERNEL, elements, read_bytes, written_bytes)
        return timing_of_library(name, (kernel,), self._machine.sip_at(sip_id), self._library)


def _library_of(machine: Machine) -> KernelLibrary | None:
    architecture = machine.spec.kernel_library
    library = None if architecture is None else load_library(architecture)
    return None if library is None or _KERNEL not in library.names() else library


def are_unlike(tensors: Iterable[Any], by_layout: bool) -> bool:
    """Return whether the operands and the result of an elementwise operation are unlike.

    So they are where dtypes differ, apart from masks, or where one is broadcast; ``by_layout``,
    also where one is transposed.
    """
    first, *others = [each for each in tensors if isinstance(each, Tensor) and each.dim()] or [None]
    return first is not None and any(
        each.numel() != first.numel()
        or (each.dtype != first.dtype and torch.bool not in (each.dtype, first.dtype))
        or (by_layout and _steps(each) != _steps(first))
        for each in others
    )


def has_steps(tensor: Tensor) -> bool:
    """Return whether a tensor's elements lie in strides; sparse and nested ones do not."""
    return tensor.layout is torch.strided and not tensor.is_nested


def _steps(tensor: Tensor) -> list[int]:
    if not has_steps(tensor):
        return []
    sizes_and_steps = zip(tensor.shape, tensor.stride(), strict=True)
    return [step for size, step in sizes_and_steps if size > 1]
