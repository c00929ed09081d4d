"""Whose an object is: a process's own, of modules that it has imported for itself, or all's."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Set
from enum import Enum
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch

_SIMPLE = (bool, int, float, complex, str, bytes, type(None), Enum, torch.dtype, torch.device)
_MAINS = frozenset(("__main__", "__mp_main__"))
_DEPTH, _BREADTH = 3, 32
"""How far an object is looked into for a function or class of the process's own."""


class Owners:
    """Tells apart what a process has for itself and what it shares with all."""

    def __init__(self, own_modules: Set[str]) -> None:
        self._own_modules = own_modules

    def is_own_name(self, module: object) -> bool:
        """Return whether a module of a name is imported by each process for itself."""
        return isinstance(module, str) and (module in _MAINS or module in self._own_modules)

    def is_shared(self, owner: Any) -> bool:
        """Return whether all processes have the same module, class or function."""
        if isinstance(owner, ModuleType):
            # A module that loads itself at its first use has its own way to look for attributes.
            name: Any = vars(owner).get("__name__", "")
            return sys.modules.get(name) is owner and not self._is_left_out(name)
        name = owner.__module__
        if not isinstance(name, str) or self._is_left_out(name):
            return False
        place: Any = sys.modules.get(name)
        for part in owner.__qualname__.split("."):
            place = vars(place).get(part) if isinstance(place, (type, ModuleType)) else None
        # Else it was made by a function, perhaps for this process.
        return place is owner

    def _is_left_out(self, name: str) -> bool:
        return self.is_own_name(name) or name.startswith("kernbench.")

    def is_own(self, value: Any, depth: int = _DEPTH) -> bool:
        """Return whether an object is of the process's own modules, or holds something of them."""
        kind = type(value)
        if issubclass(kind, _SIMPLE) or issubclass(kind, (ModuleType, torch.Tensor)):
            return False
        if issubclass(kind, type):
            return self.is_own_name(value.__module__)
        if self.is_own_name(kind.__module__):
            return True
        if kind is FunctionType and self.is_own_name(value.__globals__.get("__name__")):
            return True
        return depth > 0 and any(self.is_own(item, depth - 1) for item in _inside(value))


def is_simple(value: Any) -> bool:
    """Return whether a value is a setting: a number, a name, or the like."""
    return issubclass(type(value), _SIMPLE)


def is_of_kernbench(value: Any) -> bool:
    """Return whether a function or class is ours."""
    return str(getattr(value, "__module__", "")).startswith("kernbench.")


def _inside(value: Any) -> list[Any]:
    """Return what an object consists of, as far as it tells whose it is."""
    kind = type(value)
    if kind is FunctionType:
        # Its globals are no part of it.
        cells = [item.cell_contents for item in value.__closure__ or () if _is_full(item)]
        return [*cells, *(value.__defaults__ or ()), *value.__dict__.values()][:_BREADTH]
    if kind is MethodType:
        return [value.__func__, value.__self__]
    if kind is partial:
        return [value.func, *value.args, *value.keywords.values()][:_BREADTH]
    if issubclass(kind, weakref.ref):
        return [value()]
    return gc.get_referents(value)[:_BREADTH]


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
