"""Kernels that processes register for operators (ADR-0116)."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakSet

import torch

from kernbench.torch_bridge.base.operations import Operation

BACKEND = "CUDA"
COMPOSITES = ("CompositeExplicitAutogradNonFunctional", "CompositeExplicitAutograd")
KEYSET = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
"""The key set passed to kernels of a device."""
_has_kernel_here = torch._C._dispatch_has_kernel_for_dispatch_key
_fallthrough = torch.library.fallthrough_kernel


def has_kernel(name: str, key: str) -> bool:
    """Return whether the dispatcher has a kernel of an operator for a key."""
    try:
        return bool(_has_kernel_here(name, key))
    except RuntimeError:
        # It is not defined (yet).
        return False


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A function that was registered for an operator and a dispatch key."""

    owner: object
    """The library through which it was registered."""
    function: Callable[..., Any]
    with_keyset: bool

    def call(self, keyset: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call it as PyTorch's dispatcher does."""
        if self.with_keyset:
            return self.function(keyset, *args, **kwargs)
        return self.function(*args, **kwargs)

    @property
    def falls_through(self) -> bool:
        return self.function is _fallthrough


class Registrations:
    """The kernels that a process has registered, with those of shared libraries."""

    def __init__(self, shared: Registrations | None = None) -> None:
        self._shared = shared
        self._kernels: dict[tuple[str, str], list[Kernel]] = {}
        """Kernels by operator and key, the latest last."""
        self._in_use: WeakSet[Registrations] = WeakSet()
        """The registrations of processes that inherit these."""
        self.of_devices: dict[str, Kernel] = {}
        """Kernels that devices run in place of PyTorch's own, by operator."""
        self.fallback: Kernel | None = None
        """The kernel that devices run for operators that have no kernel at all."""
        self.quick: dict[int, Operation] = {}
        """Operations seen so far that have no such kernel, by the identity of the overload."""
        self.once: set[Any] = set()
        """Overloads whose next call goes to PyTorch's own kernel."""
        self.names: set[str] = set()
        """Names of registered kernels as PyTorch keeps them: operators with their keys."""
        self.opaque_types: set[str] = set()
        """Names of classes that operators take as they are."""
        self.custom: dict[str, MutableMapping[str, Any]] = {}
        """PyTorch's tables of custom operators, by table."""
        self.entries: Any = None
        """PyTorch's entries for shape functions and the like."""
        if shared is not None:
            shared._in_use.add(self)
            self.of_devices.update(shared.of_devices)

    def add(self, name: str, key: str, kernel: Kernel) -> None:
        """Add a kernel, which takes precedence over those before it."""
        self._kernels.setdefault((name, key), []).append(kernel)
        self._changed(name)

    def remove(self, owner: object) -> None:
        """Remove what was registered through a library."""
        for (name, key), kernels in list(self._kernels.items()):
            kept = [kernel for kernel in kernels if kernel.owner is not owner]
            if len(kept) != len(kernels):
                self._kernels[name, key] = kept
                self._changed(name)
        if self.fallback is not None and self.fallback.owner is owner:
            self.fallback = None

    def remove_for_all(self, owner: object) -> None:
        """Remove it from all processes that inherit these, too."""
        for use in (self, *self._in_use):
            use.remove(owner)

    def find(self, name: str, *keys: str) -> Kernel | None:
        """Return the latest kernel of the first of some keys that has one."""
        for key in keys:
            kernels = self._kernels.get((name, key))
            if kernels:
                return kernels[-1]
            position = None if self._shared is None else self._shared.find(name, key)
            if position is not None:
                return position
        return None

    def fallback_for(self, func: Any) -> Kernel | None:
        """Return the fallback kernel if an operator has no kernel of its own."""
        fallback = self.fallback
        if fallback is None or any(
            func.has_kernel_for_dispatch_key(getattr(torch._C.DispatchKey, key))
            for key in ("CPU", "CompositeImplicitAutograd")
        ):
            return None
        return Kernel(fallback.owner, partial(_call_fallback, fallback, func), True)

    def _changed(self, name: str) -> None:
        for use in (self, *self._in_use):
            use._decide(name)

    def _decide(self, name: str) -> None:
        """Update which kernel devices run for an operator."""
        position = self.find(name, BACKEND)
        if position is None and not (name.startswith("aten::") and has_kernel(name, "CPU")):
            # An operator with a CPU kernel in PyTorch has a CUDA kernel too, and that comes first.
            position = self.find(name, *COMPOSITES)
        if position is None or position.falls_through:
            self.of_devices.pop(name, None)
        else:
            self.of_devices[name] = position
        self.quick.clear()


def _call_fallback(fallback: Kernel, func: Any, keyset: Any, /, *args: Any, **kwargs: Any) -> Any:
    pair = (keyset, func) if fallback.with_keyset else (func,)
    return fallback.function(*pair, *args, **kwargs)


SHARED = Registrations()
"""Registrations of shared libraries, which are imported once and stay for further runs."""
