"""Writes to attributes of modules, classes, functions and some objects, told of before they happen.

Each goes through the ``tp_setattro`` of the owner's type, so that this is the one place to look.
Nothing is asked where nothing is written: reads, and attributes of other objects, cost what they
did.

A module's type, and an object's, gets a ``__setattr__`` in its own dictionary, and the slot that
Python itself gives to classes that define one. Types of classes cannot have that: pybind11's own
metaclass calls ``PyType_Type.tp_setattro``, which would look up the ``__setattr__`` of that
metaclass, which calls it again. Their slot, and that of functions, which nobody can derive from,
gets a few instructions that call a function of ours and go on with Python's.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import platform
from collections.abc import Callable, Iterator
from functools import partial
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
_IMMUTABLE = 1 << 8
"""The flag of a type whose attributes cannot be set (``Py_TPFLAGS_IMMUTABLETYPE``)."""
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
_WRITES = {
    type: (_SET(_SET_CLASSES), _DELETE(_SET_CLASSES)),
    FunctionType: (_SET(_SET_FUNCTIONS), _DELETE(_SET_FUNCTIONS)),
    ModuleType: (_SET(_SET_MODULES), _DELETE(_SET_MODULES)),
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
    both = next((both for kind, both in _WRITES.items() if isinstance(owner, kind)), None)
    if both is None:
        _put_in_object(owner, name, value)
    elif value is not MISSING:
        both[0](owner, name, value)
    elif name in vars(owner):
        both[1](owner, name, None)


def _put_in_object(owner: Any, name: str, value: Any) -> None:
    descriptor = of_class(owner, name)
    if not hasattr(type(descriptor), "__set__"):
        if value is MISSING:
            own_dict(owner).pop(name, None)
        else:
            own_dict(owner)[name] = value
    elif value is MISSING:
        descriptor.__delete__(owner)
    else:
        descriptor.__set__(owner, value)


def read(owner: Any, name: str) -> Any:
    """Return an own attribute as it is kept, ``MISSING`` if there is none."""
    if isinstance(owner, ModuleType):
        is_outside = name == "__class__"
    elif isinstance(owner, (type, FunctionType)):
        kind = type if isinstance(owner, type) else FunctionType
        # What Python calls by name, as __call__, is the class's own; a mock makes one when asked.
        is_outside = name == "__class__" or hasattr(vars(kind).get(name), "__set__")
    else:
        is_outside = hasattr(type(of_class(owner, name)), "__set__")
        if not is_outside:
            return own_dict(owner).get(name, MISSING)
    return getattr(owner, name, MISSING) if is_outside else vars(owner).get(name, MISSING)


def is_in_own_dict(owner: Any, name: str) -> bool:
    """Return whether an attribute is an entry of the owner's dictionary, and nothing beside it."""
    if isinstance(owner, (type, FunctionType)):
        return False
    if isinstance(owner, ModuleType):
        return type(owner) is ModuleType and name != "__class__"
    # An object without one gets an empty one for each question.
    has_dict = own_dict(owner) is own_dict(owner)
    return has_dict and not hasattr(type(of_class(owner, name)), "__set__")


def of_class(owner: Any, name: str) -> Any:
    """Return what an object's class has under the name of an attribute, or None."""
    return next((vars(kind)[name] for kind in type(owner).__mro__ if name in vars(kind)), None)


def own_dict(owner: Any) -> dict[str, Any]:
    """Return an object's own dictionary; an empty one if it has none."""
    try:
        space = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return {}
    return space if isinstance(space, dict) else {}


def tell_of_modules(told: Told, patches: Patches) -> None:
    """Call ``told`` before each write to an attribute of a module, until ``patches`` closes."""
    _tell_of(ModuleType, told, patches)


def tell_of_objects(kind: type, told: Told, patches: Patches) -> None:
    """Call ``told`` before each write to an attribute of an object of a class.

    Until ``patches`` closes.
    """
    if getattr(kind.__setattr__, "__module__", None) != __name__:
        _tell_of(kind, told, patches)


def _tell_of(kind: type, told: Told, patches: Patches) -> None:
    slot = _pointer(kind)
    set_in: Any = kind.__setattr__ if slot == _CALL_PYTHON else _SET(slot)
    delete_in: Any = kind.__delattr__ if slot == _CALL_PYTHON else partial(_delete, _DELETE(slot))

    def write(owner: Any, name: str, value: Any) -> None:
        told(owner, name, value)
        set_in(owner, name, value)

    def remove(owner: Any, name: str) -> None:
        told(owner, name, MISSING)
        delete_in(owner, name)

    functions = dict(zip(_NAMES, map(unseen, (write, remove)), strict=True))
    if not kind.__flags__ & _IMMUTABLE:
        for name, function in functions.items():
            patches.on_close(put, kind, name, vars(kind).get(name, MISSING))
            put(kind, name, function)
        return
    space: dict[str, Any] = gc.get_referents(vars(kind))[0]
    own = {name: space[name] for name in _NAMES if name in space}

    def restore() -> None:
        for name in _NAMES:
            del space[name]
        space.update(own)
        _replace(kind, _CALL_PYTHON, slot)

    patches.on_close(restore)
    space.update(functions)
    _replace(kind, slot, _CALL_PYTHON)


def _delete(in_c: Any, owner: Any, name: str) -> None:
    in_c(owner, name, None)


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
        _CALL_AND_GO_ON.format(*(address.to_bytes(8, "little").hex() for address in addresses))
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
    for item in _derived(kind):
        slot = _slot(item)
        if slot.value == before and (item is kind or "__setattr__" not in vars(item)):
            slot.value = now
    ctypes.pythonapi.PyType_Modified(_object(kind))


def _derived(kind: Any) -> Iterator[Any]:
    yield kind
    for subclass in type.__subclasses__(kind):
        yield from _derived(subclass)
