"""From an operation and its tensors to its schedules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kernbench.torch_bridge.call_keys import call_keys
from kernbench.torch_bridge.costs.attention import AttentionCosts
from kernbench.torch_bridge.costs.by_bytes import timing_by_bytes, vector_ps
from kernbench.torch_bridge.costs.gemm import GemmCosts
from kernbench.torch_bridge.costs.rules import Reads, rule_of
from kernbench.torch_bridge.dtypes import kernel_dtype

if TYPE_CHECKING:
    from kernbench.hardware import Machine
    from kernbench.torch_bridge.costs.timing import OperationTiming
    from kernbench.torch_bridge.operations import Operation

aten = torch.ops.aten


class OperationCosts:
    """Schedules of operations on one machine; equal ones are the same object."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._gemm = GemmCosts(machine)
        self._attention = AttentionCosts(machine)
        self._by_bytes: dict[Any, OperationTiming] = {}
        self._calls: dict[Any, OperationTiming] = {}
        """By operation, SIP and what decides the time."""
        self.unknown = Counter[str]()
        """Calls of operations whose arithmetic is not known, by name."""

    def timing(
        self,
        func: Any,
        operation: Operation,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        sip_id: int,
    ) -> OperationTiming:
        """Return the schedules of ``result = func(*args, **kwargs)`` on a SIP."""
        keys = call_keys(args)
        key = (func, sip_id, keys)
        known = None if keys is None or kwargs else self._calls.get(key)
        if known is not None:
            return known
        found = self._work_out(func, operation, args, kwargs, result, sip_id)
        if keys is not None and not kwargs and operation.name not in self.unknown:
            self._calls[key] = found
        return found

    def _work_out(
        self,
        func: Any,
        operation: Operation,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        sip_id: int,
    ) -> OperationTiming:
        name = operation.name
        product = _PRODUCTS.get(func)
        if product is not None:
            sizes = product(args)
            dtype = kernel_dtype(result.dtype)
            if sizes is not None and dtype is not None:
                return self._gemm.timing(name, sizes, dtype, sip_id)
        found = self._attention.timing(func, name, args, kwargs, sip_id)
        return found or self._streamed(func, operation, args, kwargs, result, sip_id)

    def _streamed(
        self,
        func: Any,
        operation: Operation,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        sip_id: int,
    ) -> OperationTiming:
        rule = rule_of(func)
        if not rule.is_known:
            self.unknown[operation.name] += 1
        given = (*args, *kwargs.values()) if kwargs else args
        over = num_bytes([args[each] for each in operation.written if each < len(args)])
        written = over or num_bytes((result,))
        read = num_bytes(given)
        if rule.reads is Reads.SOURCES:
            read -= over
        elif rule.reads is Reads.SELECTED:
            read = _selected_bytes(given, written if not over else 0)
            written = min(written, read)
        elements = most_elements((*given, result)) if rule.work else 0
        key = (operation.name, sip_id, read, written, elements)
        found = self._by_bytes.get(key)
        if found is None:
            sip = self._machine.sip_at(sip_id)
            math_ps = vector_ps(sip, rule.work, elements)
            found = timing_by_bytes(operation.name, sip, read, written, math_ps)
            self._by_bytes[key] = found
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


def most_elements(values: Iterable[Any]) -> int:
    """Return the elements of the largest tensor, or list of tensors, among values."""
    most = 0
    for value in values:
        if isinstance(value, Tensor):
            most = max(most, value.numel())
        elif isinstance(value, (list, tuple)):
            most = max(most, sum(each.numel() for each in value if isinstance(each, Tensor)))
    return most


def _selected_bytes(values: Iterable[Any], selected: int) -> int:
    """Return the bytes that a selection reads: what it gives, and all but the largest operand."""
    sizes = sorted(num_bytes((value,)) for value in values)
    return selected + sum(sizes[:-1])


Sizes = tuple[int, int, int, int]
"""Batch, M, N, K."""


def _mm(args: tuple[Any, ...]) -> Sizes | None:
    (m, k), n = args[0].shape, args[1].shape[1]
    return _nonzero(1, m, n, k)


def _addmm(args: tuple[Any, ...]) -> Sizes | None:
    return _mm(args[1:])


def _bmm(args: tuple[Any, ...]) -> Sizes | None:
    batch, m, k = args[0].shape
    return _nonzero(batch, m, args[1].shape[2], k)


def _baddbmm(args: tuple[Any, ...]) -> Sizes | None:
    return _bmm(args[1:])


def _mv(args: tuple[Any, ...]) -> Sizes | None:
    m, k = args[0].shape
    return _nonzero(1, m, 1, k)


def _addmv(args: tuple[Any, ...]) -> Sizes | None:
    return _mv(args[1:])


def _linear(args: tuple[Any, ...]) -> Sizes | None:
    x, (n, k) = args[0], args[1].shape
    return _nonzero(1, x.numel() // k if k else 0, n, k)


def _nonzero(*sizes: int) -> Sizes | None:
    batch, m, n, k = sizes
    return (batch, m, n, k) if all(sizes) else None


_PRODUCTS: dict[Any, Callable[[tuple[Any, ...]], Sizes | None]] = {
    aten.mm.default: _mm,
    aten.addmm.default: _addmm,
    aten.bmm.default: _bmm,
    aten.baddbmm.default: _baddbmm,
    aten.mv.default: _mv,
    aten.addmv.default: _addmv,
    aten.linear.default: _linear,
}
