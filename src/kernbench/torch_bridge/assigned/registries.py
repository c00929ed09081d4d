"""Where modules keep what is registered with them: tables that functions add to, and globals.

What a process registers by name (a hook, a back end, a class for a key) is put into a container
that is an attribute of a module or of a class, or of an object that is one; settings are globals
that functions assign. Both are known from the functions' code, so that neither constants nor what
nobody changes need be watched.
"""

from __future__ import annotations

import dis
import gc
import logging
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator
from functools import cache, partial
from itertools import chain
from operator import attrgetter
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch

from kernbench.torch_bridge.processes.library_state import STATES

CONTAINERS = (OrderedDict, dict, list, set, deque)
"""Kinds of containers, those that derive from another one first."""
_SELF_MADE = 1 << 9
"""The flag of a type that a class statement has made (``Py_TPFLAGS_HEAPTYPE``)."""
_STORES_GLOBAL = dis.opmap["STORE_GLOBAL"]
_LOADS_LOCAL = dis.opmap["LOAD_FAST"]
_STORES_ITEM, _DELETES_ITEM = dis.opmap["STORE_SUBSCR"], dis.opmap["DELETE_SUBSCR"]
CHANGING = frozenset(
    (
        *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "move_to_end"),
        *("pop", "popitem", "remove", "setdefault", "sort", "update"),
    )
)
"""Methods that change a container."""
_MACHINERY = frozenset(
    (
        *("_collections_abc", "_frozen_importlib", "abc", "accelerate", "asyncio", "concurrent"),
        *("ctypes", "dis", "encodings", "enum", "gc", "greenlet", "importlib", "inspect"),
        *("kernbench", "linecache", "mpmath", "multiprocessing", "opcode", "queue", "re", "rich"),
        *("selectors", "signal", "simpy", "site", "socket", "sre_compile", "ssl", "subprocess"),
        *("sympy", "sys", "sysconfig", "threading", "tokenize", "torch._library", "torch._ops"),
        *("torch.library", "torch.utils._python_dispatch", "torch.utils.data._utils.worker"),
        *("torch._dynamo.convert_frame", "tqdm", "triton", "typing"),
        *("warnings", "weakref", "zipimport"),
    )
)
"""Packages and modules whose containers and globals are not watched: ranks run by them, they keep
what they have computed, or their state is kept per process elsewhere (``registered``, for one)."""


HOLDING_NOTHING = frozenset(
    (
        *(BuiltinFunctionType, FunctionType, MethodType, ModuleType, classmethod, property),
        *(staticmethod, type, bool, bytes, float, int, str, type(None)),
    )
)
"""What most attributes are, and no registry is."""


class Registries(NamedTuple):
    """What a module has."""

    containers: tuple[Any, ...]
    names: dict[str, bool]
    """Globals that its functions assign, and whether to what they are called with: a setting."""
    dispatching: tuple[Any, ...]
    """Functions of ``functools.singledispatch``."""


@cache
def is_machinery(module: str) -> bool:
    """Return whether nothing in a module is watched."""
    if module in ("multiprocessing.managers", "multiprocessing.reduction"):
        return False
    parts = module.split(".")
    return any(".".join(parts[:count]) in _MACHINERY for count in range(1, len(parts) + 1))


@cache
def registries_of(module: ModuleType) -> Registries:
    """Return what a module has, as it was when it was imported."""
    return _Search(module).result()


@cache
def has_registries(module: ModuleType) -> bool:
    """Return whether there is something to watch in a module that all share."""
    return not is_machinery(module.__name__) and any(registries_of(module))


class _Search:
    def __init__(self, module: ModuleType) -> None:
        self._name = module.__name__
        self._space = vars(module)
        self._exchanged = [attrgetter(path)(module) for path in STATES.get(self._name, ())]
        self._met: dict[int, Any] = {}
        self._assigned: dict[str, bool] = {}
        self._changed: set[str] = set()
        """Names in functions that change a container."""
        self._dispatching: list[Any] = []

    def result(self) -> Registries:
        values = list(self._space.items())
        # By type, as objects that load something when they are asked may claim to be of any class.
        classes: list[Any] = [
            item
            for _, item in values
            if issubclass(type(item), type) and item.__module__ == self._name
        ]
        for _, function_type in values:
            if type(function_type) is FunctionType and function_type.__module__ == self._name:
                self._look_at(function_type)
        for kind in classes:
            for function in _functions_of(kind):
                self._look_at(function)
        spaces = [values, *(list(vars(kind).items()) for kind in classes)]
        for name, item in chain.from_iterable(spaces):
            if type(item) not in HOLDING_NOTHING and not name.startswith("__"):
                if name in self._changed or _has_functions(item):
                    self._meet(item)
                self._look_into(item, 2)
        return Registries(tuple(self._met.values()), self._assigned, tuple(self._dispatching))

    def _look_at(self, function: FunctionType) -> None:
        if "registry" in function.__dict__ and hasattr(function, "_clear_cache"):
            self._dispatching.append(function)
            self._meet(gc.get_referents(function.__dict__["registry"])[0])
        for code in _codes_in(function):
            names = code.co_names
            if not names:
                continue
            if _STORES_GLOBAL in code.co_code[::2]:
                for name, is_setting in _assigned_by(code):
                    self._assigned[name] = is_setting or self._assigned.get(name, False)
            if changes_containers(code):
                self._changed.update(names)

    def _look_into(self, value: Any, depth: int) -> None:
        """Meet the containers of an object that its methods change, and of objects in it."""
        kind: Any = type(value)
        if not depth or not _is_registry(kind):
            return
        changed = _changed_by(kind)
        try:
            inside = list(object.__getattribute__(value, "__dict__").items())
        except AttributeError:
            return
        for name, item in inside:
            parts = item if type(item) is tuple else (item,)
            for part in parts:
                if name in changed:
                    self._meet(part)
                self._look_into(part, depth - 1)

    def _meet(self, value: Any) -> None:
        # What is referred to weakly goes when it goes, whoever has put it there.
        kind = None if any(value is item for item in self._exchanged) else kind_of(value)
        if kind is not None and type(next(kind.__iter__(value), None)) is not weakref.ref:
            self._met[id(value)] = value


def _codes_in(function: Any) -> Iterator[CodeType]:
    """Yield the code objects of a function, and of those that it wraps."""
    while type(function) is FunctionType:
        yield from codes_of(function.__code__)
        function = function.__dict__.get("__wrapped__")


def codes_of(code: CodeType) -> list[CodeType]:
    """Return a code object, and those of the functions in it."""
    codes = [code]
    for code_type in codes:
        codes += [part for part in code_type.co_consts if type(part) is CodeType]
    return codes


def changes_containers(code: CodeType) -> bool:
    """Return whether code changes what is in some container."""
    if not CHANGING.isdisjoint(code.co_names):
        return True
    operations = code.co_code[::2]  # every other byte is an operand
    return _STORES_ITEM in operations or _DELETES_ITEM in operations


def _assigned_by(code: CodeType) -> Iterator[tuple[str, bool]]:
    """Yield the globals that a function assigns, and whether to an argument of it."""
    num_arguments = code.co_argcount + code.co_kwonlyargcount
    operations, numbers = code.co_code[::2], code.co_code[1::2]
    position = operations.find(_STORES_GLOBAL)
    while position >= 0:
        number, before = numbers[position], position - 1
        if operations[before] == dis.EXTENDED_ARG:
            number += numbers[before] << 8
            before -= 1
        is_argument = operations[before] == _LOADS_LOCAL and numbers[before] < num_arguments
        yield code.co_names[number], is_argument
        position = operations.find(_STORES_GLOBAL, position + 1)


def _functions_of(kind: type) -> Iterator[FunctionType]:
    for value in list(vars(kind).values()):
        if type(value) in (classmethod, staticmethod):
            value = value.__func__
        elif type(value) is property:
            value = value.fget
        if type(value) is FunctionType:
            yield value


@cache
def _is_registry(kind: Any) -> bool:
    """Return whether objects of a kind may keep what is registered, and not only a value."""
    module = getattr(kind, "__module__", "")
    return bool(
        kind.__flags__ & _SELF_MADE
        # Loggers are each process's by ``loggers``.
        and not issubclass(kind, (type, ModuleType, logging.Filterer, torch.nn.Module))
        and isinstance(module, str)
        and not is_machinery(module)
        # What is keyed weakly forgets its keys itself, whoever runs then.
        and not any("Weak" in base.__name__ for base in kind.__mro__)
        and _changed_by(kind)
    )


@cache
def _changed_by(kind: Any) -> frozenset[str]:
    """Return the names that methods of a class use where they change a container."""
    return frozenset(
        name
        for base in kind.__mro__
        if base.__flags__ & _SELF_MADE and not is_machinery(base.__module__)
        for function in _functions_of(base)
        for code in _codes_in(function)
        if changes_containers(code)
        for name in code.co_names
    )


def _has_functions(value: Any) -> bool:
    """Return whether a table finds functions or classes by their keys."""
    return issubclass(type(value), dict) and is_function(next(iter(dict.values(value)), None))


def kind_of(value: Any) -> Any:
    """Return the kind of container that a value is, whose own methods load nothing; or None."""
    kind = type(value)
    if kind not in CONTAINERS and issubclass(kind, CONTAINERS):
        return next(container for container in CONTAINERS if issubclass(kind, container))
    return kind if kind in CONTAINERS else None


def is_function(value: Any) -> bool:
    """Return whether a value is a function, a class, or the like."""
    return issubclass(type(value), (FunctionType, BuiltinFunctionType, MethodType, type, partial))
