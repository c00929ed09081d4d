"""PyTorch's own functions in place of overloads: the same call, with faster argument parsing.

An overload parses its arguments by its schema and boxes them; ``torch.mm`` does neither. Which
overload such a function dispatches to is not documented, so the first call of each kind is made
under a mode that executes the expected overload and refuses any other: nothing is executed twice.
Tensor subclasses of the program would see the call a second time, and a tensor with one element
may be read as a number: calls with these keep the overload. So does an operation to which no
function dispatches. A release of PyTorch in which a function has changed is slower, not wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernbench.torch_bridge.base.modes import Mode
from kernbench.torch_bridge.base.operation_timing import OperationTiming
from kernbench.torch_bridge.base.operations import Operation

NATIVE = frozenset({Tensor, torch.nn.Parameter})
"""Tensor classes for which PyTorch's functions look for no ``__torch_function__``."""
_OWNERS: Any = (torch._C._VariableFunctions, torch._C._nn, torch._C.TensorBase)


@dataclass(frozen=True, slots=True)
class KnownCall:
    """What calls with the same key share, so that it is computed once."""

    timing: OperationTiming
    call: Callable[..., Any]
    """The fastest function that executes it."""


class OtherCallError(Exception):
    """A function dispatched to another operation than the expected one."""


class _Witness(Mode):
    """Executes the one expected call, and refuses every other."""

    def __init__(self, call: tuple[Any, ...]) -> None:
        super().__init__()
        self._call = call
        self.results: list[Any] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self.results or not _is_same((func, args, kwargs or {}), self._call):
            raise OtherCallError
        self.results.append(func(*args, **(kwargs or {})))
        return self.results[0]


def execute_first(
    func: Any, operation: Operation, args: Any, kwargs: dict[str, Any]
) -> tuple[Any, Callable[..., Any]]:
    """Execute a call; return its result, and the fastest function for further calls of its kind."""
    if operation.call is not func._op:
        # It computes what PyTorch's own functions refuse on the CPU.
        return operation.call(*args, **kwargs), operation.call
    name = func._schema.name.partition("::")[2]
    direct: Any = next(filter(None, (getattr(owner, name, None) for owner in _OWNERS)), None)
    if direct is None or not all(map(_is_native, args)):
        return operation.call(*args, **kwargs), operation.call
    witness = _Witness((func, args, kwargs))
    built = None
    try:
        with witness:
            built = direct(*args, **kwargs)
    except (OtherCallError, TypeError):
        if not witness.results:
            return operation.call(*args, **kwargs), operation.call
    result = witness.results.pop()
    return result, direct if built is result else operation.call


def _is_native(value: Any) -> bool:
    """Return whether a function passes a value on as it is: from some tensors it reads a number."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_native, value))
    return not isinstance(value, Tensor) or (type(value) in NATIVE and value.dim() > 0)


def _is_same(value: Any, other: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return len(value) == len(other) and all(map(_is_same, value, other))
    if isinstance(value, dict):
        return value.keys() == other.keys() and all(_is_same(value[k], other[k]) for k in value)
    return value is other or (
        not isinstance(value, Tensor) and type(value) is type(other) and bool(value == other)
    )
