"""``torch.library`` libraries whose kernels are for all processes, such as the bridge's own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.call_counts import unseen
from kernbench.torch_bridge.processes.process import HERE

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def library_of_all(namespace: str, kind: str = "IMPL") -> torch.library.Library:
    """Return a library whose kernels are for all processes."""
    before, HERE.is_importing = HERE.is_importing, True
    try:
        library = torch.library.Library(namespace, kind)
        # Registrations through it belong to no process.
        library.m = getattr(library.m, "real", library.m)
        library.is_of_all = True
        return library
    finally:
        HERE.is_importing = before


@contextmanager
def overriding(patches: Patches) -> Iterator[torch.library.Library]:
    """Give a library for kernels that stand in the place of PyTorch's own until a run's end."""
    library = library_of_all("aten")
    patches.on_close(library._destroy)
    with warnings.catch_warnings():
        # PyTorch says that it had an implementation.
        warnings.simplefilter("ignore", UserWarning)
        yield library


def compose(library: torch.library.Library, name: str, call: Callable[..., Any]) -> None:
    """Let ``call`` stand for what PyTorch composes an operation of, uncounted as C++ is."""
    library.impl(name, unseen(call), "CompositeImplicitAutograd", allow_override=True)


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """A call of an operator, with its arguments as attributes."""

    func: Any
    """Its overload."""
    named: Mapping[str, Any]
    """Its arguments, those left out included."""
    defaults: Mapping[str, Any]
    """What stands for arguments that this version of it does not have, by their names."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self.named[name] if name in self.named else self.defaults[name]
        except KeyError:
            raise AttributeError(f"{self.func} has no argument {name}") from None

    @property
    def written(self) -> list[Tensor]:
        """The tensors that it writes by its schema."""
        return [
            result
            for argument in self.func._schema.arguments
            if argument.alias_info is not None
            and argument.alias_info.is_write
            and isinstance(result := self.named.get(argument.name), Tensor)
        ]


def as_kernel(
    func: Any, function: Callable[[OperatorCall], Any], defaults: Mapping[str, Any] = _NOTHING
) -> Callable[..., Any]:
    """Return a kernel for the dispatcher that calls a function of an :class:`OperatorCall`."""
    arguments = {argument.name: argument.default_value for argument in func._schema.arguments}

    def kernel(*args: Any, **kwargs: Any) -> Any:
        named = {**arguments, **kwargs, **dict(zip(arguments, args, strict=False))}
        return function(OperatorCall(func, named, defaults))

    return kernel


def implement(
    library: torch.library.Library, kernels: Mapping[str, Callable[[OperatorCall], Any]], *keys: str
) -> None:
    """Let functions of an :class:`OperatorCall` be kernels of ATen's operations, by their names."""
    for name, function in kernels.items():
        kernel = as_kernel(getattr(torch.ops.aten, name).default, function)
        for key in keys:
            library.impl(name, kernel, key, allow_override=True)
