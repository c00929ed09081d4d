"""Writes to attributes of modules, classes and functions, told of before they happen.

Each goes through the ``tp_setattro`` of the module's, class's or function's type, so that this is
the one place to look. Nothing is asked where nothing is written: reads, and attributes of other
objects, cost what they did.

A module's type gets a ``__setattr__`` in its own dictionary, and the slot that Python itself gives
to classes that define one. Types of classes cannot have that: pybind11's own metaclass calls
``PyType_Type.tp_setattro``, which would look up the ``__setattr__`` of that metaclass, which calls
it again. Their slot, and that of functions, which nobody can derive from, gets a few instructions
that call a function of ours and go on with Python's.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import platform
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

from kernbench.torch_bridge.base.patches import MISSING, Patches
from kernbench.torch_bridge.processes.call_counts import unseen

Told = Callable[[Any, str, Any], None]
"""Called with the owner, the name and the value, ``MISSING`` for one that is deleted."""

_NAMES = ("__setattr__", "__delattr__")
_SETATTRO = 152
"""Where ``tp_setattro`` lies in a type (``PyTypeObject``, since Python 3.8)."""
_WRAPPED = 48
"""Where ``d_wrapped`` lies in a type's own ``__setattr__`` (``PyWrapperDescrObject``)."""
_object, _address = ctypes.py_object, ctypes.c_void_p
_SET = ctypes.PYFUNCTYPE(ctypes.c_int, _object, _object, _object)
_DELETE = ctypes.PYFUNCTYPE(ctypes.c_int, _object, _object, _address)
_TOLD = ctypes.PYFUNCTYPE(None, _object, _object, _address)
_CALL_AND_GO_ON = "f30f1efa 57 56 52 48b8 {} ffd0 5a 5e 5f 48b8 {} ffe0"
"""For x86-64: save the three arguments, call a function, restore them, jump to another."""


class _Assigned(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None: ...


def _slot(kind: type) -> ctypes.c_void_p:
    return _address.from_address(id(kind) + _SETATTRO)


def _pointer(kind: type) -> int:
    return _slot(kind).value or 0


_SET_MODULES, _SET_CLASSES, _CALL_PYTHON = map(_pointer, (ModuleType, type, _Assigned))
"""What Python has in the slots, the last for classes that define ``__setattr__``."""
_SET_FUNCTIONS = _pointer(FunctionType)
_set_module, _delete_in_module = _SET(_SET_MODULES), _DELETE(_SET_MODULES)
_WRITES = {
    type: (_SET(_SET_CLASSES), _DELETE(_SET_CLASSES)),
    FunctionType: (_SET(_SET_FUNCTIONS), _DELETE(_SET_FUNCTIONS)),
    ModuleType: (_set_module, _delete_in_module),
}
_EXECUTABLE = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC


def _can_add_instructions() -> bool:
    """Return whether the processor knows our instructions and the system lets them be executed."""
    try:
        mmap.mmap(-1, 1, prot=_EXECUTABLE).close()
    except OSError:
        return False
    return platform.machine() in ("x86_64", "AMD64")


CAN_SEE_CLASSES = _can_add_instructions()


def put(owner: Any, name: str, value: Any) -> None:
    """Write an own attribute, telling nobody; ``MISSING`` removes it."""
    write, remove = next(both for kind, both in _WRITES.items() if isinstance(owner, kind))
    if value is not MISSING:
        write(owner, name, value)
    elif name in vars(owner):
        remove(owner, name, None)


def tell_of_modules(told: Told, patches: Patches) -> None:
    """Call ``told`` before each write to an attribute of a module, until ``patches`` closes."""

    def write(owner: Any, name: str, value: Any) -> None:
        told(owner, name, value)
        _set_module(owner, name, value)

    def remove(owner: Any, name: str) -> None:
        told(owner, name, MISSING)
        _delete_in_module(owner, name, None)

    space: dict[str, Any] = gc.get_referents(vars(ModuleType))[0]
    own = {name: space[name] for name in _NAMES if name in space}

    def restore() -> None:
        for name in _NAMES:
            del space[name]
        space.update(own)
        _replace(ModuleType, _CALL_PYTHON, _SET_MODULES)

    patches.on_close(restore)
    space.update(zip(_NAMES, map(unseen, (write, remove)), strict=True))
    _replace(ModuleType, _SET_MODULES, _CALL_PYTHON)


def tell_of_classes(told: Told, patches: Patches) -> None:
    """Call ``told`` before each write to an attribute of a class, until ``patches`` closes."""
    there = _instructions(told, _SET_CLASSES, patches)

    def point(before: int, now: int) -> None:
        for name in _NAMES:
            _address.from_address(id(vars(type)[name]) + _WRAPPED).value = now
        _replace(type, before, now)

    patches.on_close(point, there, _SET_CLASSES)
    point(_SET_CLASSES, there)


def tell_of_functions(told: Told, patches: Patches) -> None:
    """Call ``told`` before each write to an attribute of a function, until ``patches`` closes."""
    there = _instructions(told, _SET_FUNCTIONS, patches)
    patches.on_close(_replace, FunctionType, there, _SET_FUNCTIONS)
    _replace(FunctionType, _SET_FUNCTIONS, there)


def _instructions(told: Told, go_on: int, patches: Patches) -> int:
    """Return where instructions are that tell of a write and go on with Python's function."""

    def heard(owner: Any, name: str, value: int | None) -> None:
        told(owner, name, MISSING if value is None else ctypes.cast(value, _object).value)

    function = _TOLD(unseen(heard))
    addresses = (ctypes.cast(function, _address).value or 0, go_on)
    code = bytes.fromhex(
        _CALL_AND_GO_ON.format(*(each.to_bytes(8, "little").hex() for each in addresses))
    )
    page = mmap.mmap(-1, len(code), prot=_EXECUTABLE)
    page.write(code)

    def free() -> None:
        # What the instructions use lives until here.
        assert function is not None
        page.close()

    patches.on_close(free)
    return ctypes.addressof(ctypes.c_char.from_buffer(page))


def _replace(kind: type, before: int, now: int) -> None:
    """Replace the slot of a type, and of all that inherit it."""
    for each in _derived(kind):
        slot = _slot(each)
        if slot.value == before and (each is kind or "__setattr__" not in vars(each)):
            slot.value = now
    ctypes.pythonapi.PyType_Modified(_object(kind))


def _derived(kind: Any) -> Iterator[Any]:
    yield kind
    for each in type.__subclasses__(kind):
        yield from _derived(each)
