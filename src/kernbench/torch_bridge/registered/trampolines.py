"""PyTorch's dispatcher, shared by all ranks: it calls the kernels of the calling process.

It gets one kernel for each operator and key, a trampoline, which calls the kernel of the process in
which it is called.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from kernbench.errors import UsageError
from kernbench.torch_bridge.dispatch.operands import leaves
from kernbench.torch_bridge.placement.residence import residence_of
from kernbench.torch_bridge.processes.process import HERE, Process
from kernbench.torch_bridge.processes.registrations import (
    BACKEND,
    COMPOSITES,
    has_kernel,
)

_computed_kernel = torch._C._dispatch_get_computed_kernel_for_dispatch_key
_below_autograd = torch._C._AutoDispatchBelowAutograd
_AUTOGRAD_OF_TENSORS = ("AutogradCPU", "AutogradMeta")
"""The keys that device tensors have in C++, with data and without."""
_COMPOSITE = "CompositeImplicitAutograd"
_IN_PLACE_OF = {
    "Autograd": _AUTOGRAD_OF_TENSORS,
    f"Autograd{BACKEND}": _AUTOGRAD_OF_TENSORS,
    _COMPOSITE: (*_AUTOGRAD_OF_TENSORS, "CPU", "Meta"),
    "CompositeExplicitAutograd": ("CPU", "Meta"),
    "CompositeExplicitAutogradNonFunctional": ("CPU", "Meta"),
}
"""The key that the dispatcher reaches instead, for an operator that has kernels already."""
_AFTER = {
    "Autograd": torch._C._after_autograd_keyset,
    "ADInplaceOrView": torch._C._after_ADInplaceOrView_keyset,
}
"""What to do if a process has no kernel for a key."""


@dataclass(slots=True)
class _Operator:
    """An operator that ranks have defined."""

    library: torch.library.Library
    schema: str
    owners: dict[object, Process] = field(default_factory=dict)


class Trampolines:
    """A run's operators and trampolines in the dispatcher."""

    def __init__(self, library: Callable[[str], torch.library.Library]) -> None:
        self._library_of = library
        self._libraries: dict[str, torch.library.Library] = {}
        """Libraries by namespace."""
        self._operators: dict[str, _Operator] = {}
        self._placed: dict[tuple[str, str], Any] = {}
        """The dispatcher's kernels before the run, by operator and key."""

    def define(
        self, namespace: str, owner: object, process: Process, schema: str, *more: Any
    ) -> str:
        """Define an operator, or check it against another rank's definition; return its name.

        Raises:
            UsageError: The other rank's definition has a different schema.
            RuntimeError: It exists already, or the schema is invalid.
        """
        name = schema.split("(")[0].strip()
        qualname = f"{namespace}::{name}"
        known = self._operators.get(qualname)
        if known is None or process in known.owners.values():
            library = self._library_of(namespace)
            assert library.m is not None
            # Raises PyTorch's own error if the operator exists already.
            library.m.define(schema, *more)
            library._op_defs.add(qualname)
            known = self._operators[qualname] = _Operator(library, schema)
        elif known.schema != schema:
            rank = next(iter(known.owners.values())).rank
            raise UsageError(
                f"torch.library: rank {process.rank} defines {namespace}::{schema}, but rank {rank}"
                f" has defined {namespace}::{known.schema}; ranks share one dispatcher, so an "
                "operator must have one schema on all of them: name them differently"
            )
        known.owners[owner] = process
        return name

    def release(self, owner: object) -> None:
        """Release the operators that were defined through a library."""
        for name, operator in list(self._operators.items()):
            operator.owners.pop(owner, None)
            if not operator.owners:
                operator.library._destroy()
                del self._operators[name]
                self._placed = {pair: old for pair, old in self._placed.items() if pair[0] != name}

    def close(self) -> None:
        """Remove everything from the dispatcher."""
        for operator in self._operators.values():
            operator.library._destroy()
        for library in self._libraries.values():
            library._destroy()

    def place(self, name: str, key: str) -> None:
        """Let the dispatcher call the kernels that processes have registered for a key."""
        if key == BACKEND:
            # The observer looks it up, but a composite would be decomposed before it.
            keys: tuple[str, ...] = _AUTOGRAD_OF_TENSORS if has_kernel(name, _COMPOSITE) else ()
        elif key == f"Autograd{BACKEND}":
            keys = _AUTOGRAD_OF_TENSORS
        elif name in self._operators:
            keys = (key,)
        elif "Composite" in key and not has_kernel(name, key):
            # PyTorch's own kernels for backends come first.
            keys = ()
        else:
            keys = _IN_PLACE_OF.get(key, (key,))
        for item in keys:
            if (name, item) not in self._placed:
                self._place(name, item)

    def original(self, name: str, key: str) -> Any:
        """Return the kernel that the dispatcher had before any rank's.

        Raises:
            KeyError: It had none.
        """
        return self._placed[name, key]

    def _place(self, name: str, key: str) -> None:
        before = self._placed[name, key] = _computed(name, key)
        namespace = name.partition("::")[0]
        library = self._libraries.get(namespace)
        if library is None:
            library = self._libraries[namespace] = self._library_of(namespace)
        assert library.m is not None
        with warnings.catch_warnings():
            # PyTorch warns that the first one replaces another.
            warnings.simplefilter("ignore")
            library.m.impl(name, key, partial(_call_own, name, key, before), True)


def _computed(name: str, key: str) -> Any:
    """Return the function that the dispatcher calls for a key, None if it has none."""
    try:
        return _computed_kernel(name, getattr(torch._C.DispatchKey, key))
    except RuntimeError:
        return None


def _call_own(name: str, key: str, before: Any, keyset: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call the calling process's kernel; if it has none, the dispatcher's kernel before the run."""
    process = HERE.process
    own = None if process is None else process.registrations
    if own is not None:
        is_on_device = any(residence_of(leaf) is not None for leaf in leaves(args))
        if (
            is_on_device
            and key in _AUTOGRAD_OF_TENSORS
            and own.find(name, BACKEND) is not None
            and own.find(name, f"Autograd{BACKEND}", "Autograd") is None
            and has_kernel(name, _COMPOSITE)
        ):
            # A composite operator has a device kernel, and therefore no gradient.
            with _below_autograd():
                return overload(name)(*args, **kwargs)
        kernel = own.find(name, *_keys_of(key, is_on_device))
        if kernel is not None:
            if not kernel.falls_through:
                return kernel.call(keyset, args, kwargs)
            left = keyset.remove(keyset.highestPriorityTypeId())
            return overload(name).redispatch(left, *args, **kwargs)
    if before is not None:
        return before.call_boxed(keyset, *args, **kwargs)
    after = _AFTER.get(key.removesuffix("CPU").removesuffix("Meta"))
    if after is None:
        raise NotImplementedError(
            f"Could not run '{name}' with arguments from the '{key}' backend: this process has "
            "registered no kernel for it with torch.library"
        )
    return overload(name).redispatch(keyset & after, *args, **kwargs)


def _keys_of(key: str, is_on_device: bool) -> tuple[str, ...]:
    """Return the keys for which programs may have registered a kernel, in CUDA's order."""
    if key in _AUTOGRAD_OF_TENSORS:
        own = f"Autograd{BACKEND}" if is_on_device else key
        return own, "Autograd", _COMPOSITE
    if key in ("CPU", "Meta"):
        # A device tensor arrives under this key because C++ has it on the CPU.
        own_keys = () if is_on_device and key == "CPU" else (key,)
        return *own_keys, *COMPOSITES, _COMPOSITE
    return (key,)


def overload(name: str) -> Any:
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
