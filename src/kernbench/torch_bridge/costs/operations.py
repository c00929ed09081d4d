"""The time of operations: that of their family, which is looked up here and remembered."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache, partial
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeVar

from torch import Tensor

from kernbench.dtypes import DType, float32
from kernbench.errors import InternalError
from kernbench.hardware import Machine, load_library
from kernbench.library_kernels import Reuse
from kernbench.op_log import Template
from kernbench.torch_bridge.base.operation_timing import OperationTiming
from kernbench.torch_bridge.base.operations import Operation
from kernbench.torch_bridge.costs import families
from kernbench.torch_bridge.costs.attention import AttentionBackends
from kernbench.torch_bridge.costs.families import streams
from kernbench.torch_bridge.costs.products import unfused
from kernbench.torch_bridge.costs.registry import Family, OperationCall
from kernbench.torch_bridge.costs.tensor_bytes import num_bytes
from kernbench.torch_bridge.processes.float32 import Float32

_MOST_TENSORS = 16
"""The most tensors that are named of an operation on lists."""
_Tensors = tuple[tuple[tuple[int, ...], str], ...]
"""The shapes and dtypes of tensors."""


def with_shapes(
    costs: OperationCosts, timing: OperationTiming, tensors: _Tensors, cold_bytes: int
) -> OperationTiming:
    """Return the same schedules, with the shapes and dtypes of a call's tensors for the log.

    Of what is read, ``cold_bytes`` are not what the operation before has made.
    """

    def with_reuse(reuse: Reuse) -> OperationTiming:
        reused = timing.with_reuse(reuse._replace(cold_bytes=cold_bytes))
        return costs.once(with_shapes, reused, tensors, cold_bytes)

    return OperationTiming(partial(_template, timing, tensors), with_reuse)


def tensors_of(args: Iterable[Any]) -> _Tensors:
    """Return the shapes and dtypes of the tensors among arguments, of so many of them."""
    return tuple(_tensors(args))[:_MOST_TENSORS]


def _tensors(values: Iterable[Any]) -> Iterable[tuple[tuple[int, ...], str]]:
    for value in values:
        if isinstance(value, Tensor):
            # A nested tensor has many shapes.
            shape = () if value.is_nested else tuple(value.size())
            yield shape, str(value.dtype).removeprefix("torch.")
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _template(timing: OperationTiming, tensors: _Tensors, queued: bool) -> Template:
    values = {
        "shapes": [list(shape) for shape, _ in tensors],
        "dtypes": [name for _, name in tensors],
    }
    template = timing.template(queued)
    return dataclasses.replace(template, launched_with={**template.launched_with, **values})


T = TypeVar("T")
_MOST_KNOWN = 1 << 14
"""Times that are remembered: those of a program that generates change with every step."""


class OperationCosts:
    """Schedules of operations on one machine; equal schedules are one object.

    They are remembered by what determines a schedule: sizes and bytes. Recognizing repeated calls
    is left to the caller, who then need not ask again.
    """

    def __init__(self, machine: Machine, precision: Float32) -> None:
        self.machine = machine
        self.precision = precision
        name = machine.spec.kernel_library
        self.library = None if name is None else load_library(name)
        """The kernels of the machine's vendor; None where kernbench's own run."""
        self._of_vendor = frozenset(() if self.library is None else self.library.names())
        self.attention = AttentionBackends(machine.spec)
        self._known: dict[Any, Any] = {}
        self._alike: dict[int, int] = {}
        """The first SIP of each kind, by the identity of its description."""
        self.is_rounded = False
        """Whether products of float32 were timed as tf32."""
        self.unknown = Counter[str]()
        """Calls of operations whose arithmetic is not modeled, by name."""
        self.bounded: set[str] = set()
        """Operations whose time is a lower bound."""
        self.selecting: set[str] = set()
        """Operations that were timed as if elements that indices choose lay apart."""
        self.even_groups: set[str] = set()
        """Products of groups whose ends were not known: they were timed as groups of one size."""
        self.emulated: set[str] = set()
        """Operations whose operands no unit of the device multiplies."""

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
        func, args = unfused(func, args)
        call = OperationCall(func, operation, args, kwargs, result, sip_id)
        family = family_of(func)
        timing = self._of_family(family, call) or self._of_family(streams.FAMILY, call)
        cold_bytes = num_bytes(family.cold(call))
        return self.once(with_shapes, timing, tensors_of(args), cold_bytes)

    def _of_family(self, family: Family[Any], call: OperationCall) -> OperationTiming | None:
        problem = family.key(self, call)
        if problem is None:
            return None
        return self.of(family.kernels, call.operation.name, problem, call.sip_id)

    def of(self, kernels: Callable[..., T], name: str, problem: Any, sip_id: int) -> T:
        """Return the schedules of kernels of a family for a problem, on SIPs of one kind."""
        sip = id(self.machine.sip_at(sip_id))
        return self.once(kernels, name, problem, self._alike.setdefault(sip, sip_id))

    def once(self, make: Callable[..., T], *value: Any) -> T:
        """Return what ``make`` returned for the same arguments, behind these costs."""
        key = (make, value)
        known: T = self._known.get(key, self)
        if known is self:
            known = make(self, *value)
            if len(self._known) >= _MOST_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[key] = known
        return known

    def streamed(self, name: str, read: int, written: int, sip_id: int) -> OperationTiming:
        """Return the schedules of a kernel that streams so many bytes."""
        return self.of(streams.kernels, name, (streams.Stream(read, written),), sip_id)

    def has_kernel(self, name: str) -> bool:
        """Return whether the vendor of the machine has a kernel."""
        return name in self._of_vendor

    def input_precision(self, kind: str, dtype: DType, sip_id: int) -> str:
        """Return the ``input_precision`` of ``tl.dot`` for products, by their kind in Float32."""
        if dtype != float32:
            return "ieee"
        precision: str = getattr(self.precision, kind)
        if precision in self.machine.sip_at(sip_id).pe.gemm.flops_per_clock:
            self.is_rounded = True
        return precision


@cache
def family_of(func: Any) -> Family[Any]:
    """Return the family of an overload."""
    families = {name: family for name, family in _families().items() if family.matches(func)}
    if len(families) > 1:
        raise InternalError(f"{func} is in several families: {', '.join(families)}")
    return next(iter(families.values()), streams.FAMILY)


@cache
def _families() -> dict[str, Family[Any]]:
    names = (module.name for module in iter_modules(families.__path__))
    return {name: import_module(f"{families.__name__}.{name}").FAMILY for name in names}
