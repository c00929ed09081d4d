"""What ``torch.library`` keeps in Python besides the dispatcher, per process."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import torch
import torch._library.custom_ops as custom_ops
import torch._library.opaque_object as opaque_object
import torch._library.simple_registry as simple_registry

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.process import HERE, Process


def install(patches: Patches) -> None:
    """Give each process its own tables."""
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
