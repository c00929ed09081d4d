"""``torch.library`` in simulated processes: each has its own operators and kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from functools import wraps
from typing import Any

import torch
import torch._library.custom_ops as custom_ops
import torch._library.opaque_object as opaque_object
import torch._library.simple_registry as simple_registry
import torch._library.triton as library_triton
from torch._ops import OpOverload
from torch.library import Library

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.dispatch.operands import leaves
from kernbench.torch_bridge.placement.residence import residence_of
from kernbench.torch_bridge.processes.of_all import library_of_all
from kernbench.torch_bridge.processes.process import HERE, Process
from kernbench.torch_bridge.processes.registrations import (
    BACKEND,
    COMPOSITES,
    SHARED,
    Kernel,
    has_kernel,
)
from kernbench.torch_bridge.registered.trampolines import Trampolines, overload


def _give_own_tables(patches: Patches) -> None:
    patches.set(torch.library, "_impls", _Names(torch.library._impls))
    for name in ("OPDEF_TO_LIB", "OPDEFS"):
        patches.set(custom_ops, name, _Own(name, getattr(custom_ops, name)))
    types = "_OPAQUE_TYPES_BY_NAME"
    patches.set(opaque_object, types, _Own(types, getattr(opaque_object, types)))
    patches.set(torch._C, "_register_opaque_type", _register_opaque_type)
    patches.set(simple_registry, "singleton", _Entries(simple_registry.singleton))
    # C++ keeps the function, and calls it before each dispatch: five calls for nothing.
    find: Any = simple_registry.find_torch_dispatch_rule
    patches.on_close(setattr, find, "__code__", find.__code__)
    find.__code__ = _find_rule.__code__


_register_for_all = torch._C._register_opaque_type


def _register_opaque_type(name: str) -> None:
    """Register a class by name, in C++ once for all processes that have one of that name.

    Raises:
        RuntimeError: This process has registered one of that name before.
    """
    process = registering()
    own = set() if process is None else process.registrations.opaque_types
    if name in own or not torch._C._is_opaque_type_registered(name):
        _register_for_all(name)
    own.add(name)


def registering() -> Process | None:
    """Return the process that registers something; None if it is for all processes."""
    return None if HERE.is_importing else HERE.process


def _find_rule(op: Any, torch_dispatch_class: type) -> Any:
    """Return the rule of an operator for a dispatch mode; none is registered for the bridge's.

    Its code runs as that of PyTorch's function, with the names of that function's module.
    """
    if torch_dispatch_class.__module__ == "kernbench.torch_bridge.dispatch.observe":
        return None
    entry = singleton.find(op.__qualname__)  # type: ignore[name-defined]  # noqa: F821
    return entry.torch_dispatch_rules.find(torch_dispatch_class)


class _Names:
    """PyTorch's set of registered names: with ``allow_override=False`` each occurs once."""

    def __init__(self, shared: set[str]) -> None:
        self._shared = shared

    def _own(self) -> set[str]:
        process = registering()
        return self._shared if process is None else process.registrations.names

    def __contains__(self, name: str) -> bool:
        return name in self._own()

    def add(self, name: str) -> None:
        self._own().add(name)

    def __isub__(self, names: set[str]) -> _Names:
        self._own().difference_update(names)
        return self


class _Own(MutableMapping[str, Any]):
    """A table of custom operators: the process's own entries, then those of all processes."""

    def __init__(self, name: str, shared: MutableMapping[str, Any]) -> None:
        self._name = name
        self._shared = shared

    def _own(self) -> MutableMapping[str, Any]:
        process = registering()
        if process is None:
            return self._shared
        kept = process.registrations.custom
        if self._name not in kept:
            # Custom operators live as long as their programs refer to them.
            kept[self._name] = type(self._shared)()
        return kept[self._name]

    def __getitem__(self, name: str) -> Any:
        own = self._own()
        return own[name] if name in own or self._name == "OPDEF_TO_LIB" else self._shared[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._own()[name] = value

    def __delitem__(self, name: str) -> None:
        del self._own()[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._shared, **self._own()})

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Entries:
    """Shape functions and rules for dispatch modes, by operator."""

    def __init__(self, shared: Any) -> None:
        self._shared = shared

    def find(self, name: str) -> Any:
        """Return the entry of an operator, which is made if missing."""
        process = registering()
        if process is None or name in self._shared._data:
            return self._shared.find(name)
        kept = process.registrations
        if kept.entries is None:
            kept.entries = type(self._shared)()
        return kept.entries.find(name)

    def get(self, name: str) -> Any:
        """Return the entry of an operator, or None."""
        process = registering()
        data = self._shared._data.get(name)
        if data is None and process is not None and process.registrations.entries is not None:
            data = process.registrations.entries._data.get(name)
        return data


_make_library = torch._C._dispatch_library
_get_kernel = torch.library.get_kernel
_redispatch = OpOverload.redispatch
_below_autograd = torch._C._AutoDispatchBelowAutograd
_OF_DEVICES = (BACKEND, *COMPOSITES)
_OWN_KERNELS = (torch._C.DispatchKey.CUDA, torch._C.DispatchKey.Undefined)
"""The keys to which device kernels redispatch for PyTorch's own kernel."""


def install(patches: Patches) -> None:
    """Let processes register operators and kernels for their devices."""
    trampolines = Trampolines(_plain_library)
    patches.on_close(trampolines.close)
    _share_custom_operators()
    patches.set_all(torch._C, _dispatch_library=lambda *args: _make_proxy(trampolines, *args))
    for name in ("define", "impl", "fallback"):
        patches.set(Library, name, _looked_at(trampolines, getattr(Library, name)))
    _give_own_tables(patches)
    patches.set(torch.library, "get_kernel", lambda op, key: _kernel_of(trampolines, op, key))
    patches.set(OpOverload, "redispatch", _redispatch_below)
    # Nothing is traced, so that a wrapped kernel is the kernel itself.
    patches.set(library_triton, "wrap_triton_enabled_default", False)


def _plain_library(namespace: str) -> torch.library.Library:
    is_reserved = namespace in torch.library._reserved_namespaces
    return library_of_all(namespace, "IMPL" if is_reserved else "FRAGMENT")


def _make_proxy(trampolines: Trampolines, kind: str, namespace: str, *args: Any) -> Any:
    """Return the object through which a library of PyTorch's registers."""
    process = registering()
    # Every rank may define the same namespace, but they share one dispatcher.
    kind = "FRAGMENT" if kind == "DEF" and process is not None else kind
    return _Library(trampolines, process, _make_library(kind, namespace, *args), namespace)


def _looked_at(trampolines: Trampolines, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that also works for libraries older than the run."""

    @wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not (self.m is None or isinstance(self.m, _Library) or hasattr(self, "is_of_all")):
            self.m = _Library(trampolines, None, self.m, self.ns)
        return original(self, *args, **kwargs)

    return call


class _Library:
    """Replaces the C++ object inside a ``torch.library.Library``."""

    def __init__(
        self, trampolines: Trampolines, maker: Process | None, real: Any, namespace: str
    ) -> None:
        self._trampolines = trampolines
        self._maker = maker
        self.real = real
        self._namespace = namespace

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def define(self, schema: str, alias_analysis: str = "", tags: Any = ()) -> str:
        """Define an operator."""
        process = registering()
        if process is None:
            name: str = self.real.define(schema, alias_analysis, tags)
            return name
        more = alias_analysis, tags
        return self._trampolines.define(self._namespace, self, process, schema, *more)

    def impl(self, name: str, key: str, function: Any, with_keyset: bool = False) -> None:
        """Register a kernel of an operator."""
        process = registering()
        full_name = name if "::" in name else f"{self._namespace}::{name}"
        kernel = Kernel(self, function, with_keyset)
        if process is None:
            self.real.impl(name, key, function, with_keyset)
            if key in _OF_DEVICES:
                SHARED.add(full_name, key, kernel)
            return
        if key not in torch._C.DispatchKey.__members__ or not full_name.startswith(
            f"{self._namespace}::"
        ):
            # To raise PyTorch's own error.
            self.real.impl(name, key, function, with_keyset)
        process.registrations.add(full_name, key, kernel)
        self._trampolines.place(full_name, key)

    def register_ad_inplace_or_view_fallback(self, name: str) -> None:
        """Let PyTorch track an operator's writes, unless another rank's registration does so."""
        if not has_kernel(f"{self._namespace}::{name}", "ADInplaceOrView"):
            self.real.register_ad_inplace_or_view_fallback(name)

    def fallback(self, key: str, function: Any, with_keyset: bool = False) -> None:
        """Register a kernel for all operators that have none for a key.

        Raises:
            UnsupportedTorchError: The key is not that of devices.
        """
        process = registering()
        if process is None:
            self.real.fallback(key, function, with_keyset)
        elif key == BACKEND:
            process.registrations.fallback = Kernel(self, function, with_keyset)
        else:
            raise UnsupportedTorchError(
                f"Library.fallback for {key} in a simulated process: it would apply to all "
                f"ranks; register kernels of single operators, or a fallback for {BACKEND}"
            )

    def reset(self) -> None:
        """Remove what was defined and registered through this."""
        if self._maker is None:
            SHARED.remove_for_all(self)
        else:
            self._maker.registrations.remove(self)
        self._trampolines.release(self)
        self.real.reset()


def _share_custom_operators() -> None:
    """Adopt custom operators that were made before any run."""
    for name, opdef in list(custom_ops.OPDEFS.items()):
        functions: dict[str | None, Callable[..., Any]] = opdef._backend_fns
        function = functions.get("cuda") or functions.get(None)
        known = SHARED.find(name, *_OF_DEVICES)
        # One that was redefined is a different one.
        is_new = known is None or (type(known.owner) is type(opdef) and known.owner is not opdef)
        if function is not None and is_new:
            SHARED.add(name, BACKEND, Kernel(opdef, function, False))


def _kernel_of(trampolines: Trampolines, op: Any, key: Any) -> Any:
    """``torch.library.get_kernel``: the calling process's kernel at the time of the call."""
    process = HERE.process
    if process is None or not isinstance(op, (str, OpOverload)):
        return _get_kernel(op, key)
    name = op._name if isinstance(op, OpOverload) else op
    text = key if isinstance(key, str) else key.name
    if text == BACKEND:
        kernel = process.registrations.of_devices.get(name)
        return _Boxed(kernel) if kernel is not None else _Boxed(None, overload(name))
    kernel = process.registrations.find(name, text)
    if kernel is not None:
        return _Boxed(kernel)
    try:
        return trampolines.original(name, text)
    except KeyError:
        return _get_kernel(op, key)


class _Boxed:
    """A kernel as ``torch.library.get_kernel`` returns one."""

    def __init__(self, kernel: Kernel | None, operator: Any = None) -> None:
        self._kernel = kernel
        self._operator = operator

    def call_boxed(self, keyset: Any, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        if self._kernel is not None:
            return self._kernel.call(keyset, args, kwargs)
        return _call_original(self._operator, args, kwargs)


def _call_original(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call an operator with PyTorch's own kernel for a device."""
    process = HERE.process
    assert process is not None
    once = process.registrations.once
    once.add(func)
    try:
        with _below_autograd():
            return func(*args, **kwargs)
    finally:
        once.discard(func)


def _redispatch_below(self: Any, /, keyset: Any, *args: Any, **kwargs: Any) -> Any:
    """``OpOverload.redispatch``, also to kernels of devices, which C++ does not have."""
    key = keyset.highestPriorityTypeId()
    if HERE.process is None or key not in _OWN_KERNELS:
        return _redispatch(self, keyset, *args, **kwargs)
    tensors = leaves((args, tuple(kwargs.values())))
    if tensors and not any(residence_of(tensor) is not None for tensor in tensors):
        return _redispatch(self, keyset, *args, **kwargs)
    if key is torch._C.DispatchKey.CUDA:
        with _below_autograd():
            return self(*args, **kwargs)
    return _call_original(self, args, kwargs)
