"""From an operation and its tensors to its schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kernbench.torch_bridge.costs.by_bytes import timing_by_bytes
from kernbench.torch_bridge.costs.gemm import GemmCosts
from kernbench.torch_bridge.dtypes import kernel_dtype

if TYPE_CHECKING:
    from kernbench.hardware import Machine
    from kernbench.torch_bridge.costs.timing import OperationTiming

aten = torch.ops.aten


class OperationCosts:
    """Schedules of operations on one machine; equal ones are the same object."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._gemm = GemmCosts(machine)
        self._by_bytes: dict[tuple[str, int, int, int], OperationTiming] = {}

    def timing(
        self, func: Any, name: str, args: tuple[Any, ...], result: Any, sip_id: int
    ) -> OperationTiming:
        """Return the schedules of ``result = func(*args)`` on a SIP."""
        product = _PRODUCTS.get(func)
        if product is not None:
            sizes = product(args)
            dtype = kernel_dtype(result.dtype)
            if sizes is not None and dtype is not None:
                return self._gemm.timing(name, *sizes, dtype, sip_id)
        read, written = num_bytes(args), num_bytes((result,))
        key = (name, id(self._machine.sip_at(sip_id)), read, written)
        found = self._by_bytes.get(key)
        if found is None:
            sip = self._machine.sip_at(sip_id)
            found = self._by_bytes[key] = timing_by_bytes(name, sip, read, written)
        return found


def num_bytes(values: Iterable[Any]) -> int:
    """Return the bytes of all tensors among values and in their lists."""
    total = 0
    for value in values:
        if isinstance(value, Tensor):
            total += value.nbytes
        elif isinstance(value, (list, tuple)):
            total += num_bytes(value)
    return total


Sizes = tuple[int, int, int]


def _mm(args: tuple[Any, ...]) -> Sizes | None:
    (m, k), n = args[0].shape, args[1].shape[1]
    return _nonzero(m, n, k)


def _addmm(args: tuple[Any, ...]) -> Sizes | None:
    return _mm(args[1:])


def _bmm(args: tuple[Any, ...]) -> Sizes | None:
    # One launch with all entries' tiles: as many rows as the batch has, against one right side.
    batch, m, k = args[0].shape
    return _nonzero(batch * m, args[1].shape[2], k)


def _baddbmm(args: tuple[Any, ...]) -> Sizes | None:
    return _bmm(args[1:])


def _nonzero(m: int, n: int, k: int) -> Sizes | None:
    return (m, n, k) if m and n and k else None


_PRODUCTS: dict[Any, Callable[[tuple[Any, ...]], Sizes | None]] = {
    aten.mm.default: _mm,
    aten.addmm.default: _addmm,
    aten.bmm.default: _bmm,
    aten.baddbmm.default: _baddbmm,
}
