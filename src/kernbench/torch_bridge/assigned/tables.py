"""Containers and globals of shared modules that are compared when processes take turns.

All are looked at with one gather of a word of memory each, which changes whenever its dictionary
does, or the length of its list or set; only what differs is compared.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from collections.abc import Callable
from operator import is_
from types import ModuleType
from typing import Any

import numpy as np

from kernbench.torch_bridge.assigned.owners import Owners, is_of_kernbench, is_simple
from kernbench.torch_bridge.assigned.registries import is_function, kind_of
from kernbench.torch_bridge.base.patches import MISSING
from kernbench.torch_bridge.processes.library_state import STATES

KEPT_ELSEWHERE = {
    "sys": frozenset(("argv", "excepthook", "path", "stderr", "stdout")),
    "torch._tensor_str": frozenset(("PRINT_OPTS",)),
    "torch.distributed.distributed_c10d": frozenset(("_backend", "_default_pg_init_method")),
    "torch.distributed.tensor._random": frozenset(("_rng_tracker",)),
    "warnings": frozenset(("filters", "_filters_version")),
}
"""Attributes of modules that ``globals`` exchanges, or that are alike on all ranks (of groups)."""


def kept_elsewhere(module: str) -> frozenset[str]:
    """Return the attributes of a module that others exchange."""
    return KEPT_ELSEWHERE.get(module, frozenset()) | frozenset(STATES.get(module, ()))


Delta = tuple[dict[Any, Any], tuple[Any, ...]]
"""What a process has in a table in place of what all have, and what it lacks."""
NOTHING: Delta = ({}, ())
_WORD_BYTES = 8
_FIRST_WORD = 512
_WORD = {dict: 3, OrderedDict: 3, list: 2, deque: 2, set: 2}
"""Where the word of a container lies: a dictionary's version (``ma_version_tag``, until Python
3.13), a list's length, the number of slots that a set uses or has used; the word behind that is how
many it uses, which is less once something has left it."""


class _AllMemory:
    # The first page is never mapped.
    __array_interface__ = {  # noqa: RUF012 - numpy asks for this name
        "data": (_FIRST_WORD * _WORD_BYTES, True),
        "shape": (1 << 44,),
        "typestr": "<u8",
        "version": 3,
    }


class MemoryWords:
    """One word of each of some objects, read at once; and the last items of some lists."""

    def __init__(self) -> None:
        self._memory = np.asarray(_AllMemory())
        self._places = np.empty(0, np.int64)
        self._positions = np.empty(0, np.int64)
        """Of which container each word is."""
        self._num_containers = 0
        self._now = np.empty(0, np.uint64)
        self._seen = b""
        self._constant = [self]
        self._nowhere = self._place(self._constant)
        self._lists: dict[int, list[Any]] = {}
        """Lists that may lose as many items as they get, by their positions."""
        self._ends: list[Any] = []

    def _place(self, container: Any) -> int:
        return id(container) // _WORD_BYTES - _FIRST_WORD + _WORD[kind_of(container)]

    def follow(self, containers: list[Any]) -> None:
        """Look at more containers, which must stay alive."""
        if containers:
            words = [
                (self._place(item) + offset, position)
                for position, item in enumerate(containers, self._num_containers)
                for offset in range(1 + (kind_of(item) is set))
            ]
            places, positions = np.array(words, np.int64).T
            self._num_containers += len(containers)
            self._positions = np.append(self._positions, positions)
            self._places = np.append(self._places, places)
            self._now = np.append(self._now, self._memory[places])
            self._seen = self._now.tobytes()

    def follow_end(self, items: list[Any]) -> None:
        """Look at the last item, too, of a list that is followed."""
        for position in self._positions[self._places == self._place(items)]:
            self._lists[int(position)] = items
        self._ends = self._last_items()

    def _last_items(self) -> list[Any]:
        return [items[-1] if items else self for items in self._lists.values()]

    def see(self) -> None:
        """Take what there is now for what was there before."""
        self._now = self._memory[self._places]
        self._seen = self._now.tobytes()
        self._ends = self._last_items()

    def forget(self, position: int) -> None:
        """Look at one no more."""
        self._places[self._positions == position] = self._nowhere
        self._lists.pop(position, None)
        self.see()

    def changed(self) -> list[int]:
        """Return the positions of those that differ from before, and see them."""
        now = self._memory[self._places]
        seen, ends = now.tobytes(), self._last_items()
        if seen == self._seen and all(map(is_, ends, self._ends)):
            return []
        result = {int(position) for position in self._positions[now != self._now]}
        result.update(
            number
            for number, end, before in zip(self._lists, ends, self._ends, strict=True)
            if end is not before
        )
        self._now, self._seen, self._ends = now, seen, ends
        return sorted(result)


class Table:
    """A container, with what all processes have in it."""

    may_be_cache = True
    """Whether it is one where it changes often without anything of a process's own.

    Attributes that are assigned change it, too.
    """
    is_changed_by_program = False
    """Whether the program itself changes it: then all that a process has added is its own."""

    def __init__(self, container: Any, owners: Owners) -> None:
        self.container = container
        self._owners = owners
        self._base: Any = None
        self._kind = kind_of(container)
        self.num_changes_of_all = 0
        """How often it has changed without anything of a process's own."""
        self.see()

    def see(self) -> None:
        """Take what there is now for what all have."""
        self._base = self._copy()

    def _copy(self) -> Any:
        if self._kind is dict and type(self.container).__iter__ is dict.__iter__:
            return dict.copy(self.container)  # keys are not hashed again
        if issubclass(self._kind, dict):
            return dict(self._kind.items(self.container))
        return self._kind(self._kind.__iter__(self.container))

    def split(self) -> Delta:
        """Return what the running process has of its own; the rest becomes what all have."""
        raise NotImplementedError

    def hide(self, own: Delta) -> None:
        """Put what all have in place of a process's own."""
        raise NotImplementedError

    def show(self, own: Delta) -> None:
        """Put a process's own in place of what all have."""
        raise NotImplementedError


class Registry(Table):
    """A dictionary."""

    _kind_of_values: type | None = None
    """The kind of the first value that it had when it was imported."""

    def see(self) -> None:
        super().see()
        self._kind_of_values = next(map(type, self._base.values()), None)

    def split(self) -> Delta:
        base = self._base
        now, own = self._copy(), {}
        for key, value in now.items():
            before = base.get(key, MISSING)
            if before is not value:
                if self._is_registration(key, value, before):
                    own[key] = value
                else:
                    base[key] = value
        return own, tuple(key for key in base if key not in now)

    def _is_registration(self, key: Any, value: Any, before: Any) -> bool:
        """Return whether a process has registered something, and not only computed it for all."""
        if is_of_kernbench(value):
            return False
        if before is not MISSING or self.is_changed_by_program:
            return True
        if self._owners.is_own(value) or self._owners.is_own(key):
            return True
        # By name; what a library adds by other keys it adds once, for all. None is what it notes
        # of names for which nothing is registered, when it first looks.
        return _is_name(key) and (
            (is_simple(value) and value is not None)
            or is_function(value)
            or type(value) is self._kind_of_values
        )

    def hide(self, own: Delta) -> None:
        held, lacking = own
        kind, container, base = self._kind, self.container, self._base
        if lacking:
            # In the order that it had.
            kind.clear(container)
            kind.update(container, base)
            return
        for key in held:
            if key in base:
                kind.__setitem__(container, key, base[key])
            else:
                kind.pop(container, key, None)

    def show(self, own: Delta) -> None:
        held, lacking = own
        kind, container = self._kind, self.container
        for key in lacking:
            kind.pop(container, key, None)
        for key, value in held.items():
            kind.__setitem__(container, key, value)


class _Items(Table):
    """A list, a queue or a set."""

    def split(self) -> Delta:
        now = self._copy()
        own = self._own(now)
        if not own[1] and not any(map(self._is_registration, own[0].values())):
            self._base = now
            return NOTHING
        return own

    def _is_registration(self, value: Any) -> bool:
        parts = value if type(value) is tuple else (value,)
        # A number alone is the identity of something.
        is_setting = type(value) is not int and not is_of_kernbench(value)
        is_setting &= all(is_simple(part) or is_function(part) for part in parts)
        is_setting |= self.is_changed_by_program
        return is_setting or self._owners.is_own(value)

    def _own(self, now: Any) -> Delta:
        # At the end of what all have, as far as it was only added to.
        base = list(self._base)
        first = list(now)[: len(base)]
        if _is_same(first, base):
            return dict(enumerate(list(now)[len(base) :])), ()
        return dict(enumerate(now)), tuple(base)

    def hide(self, own: Delta) -> None:
        self._kind.clear(self.container)
        self._kind.extend(self.container, self._base)

    def show(self, own: Delta) -> None:
        held, lacking = own
        if lacking:
            self._kind.clear(self.container)
        self._kind.extend(self.container, held.values())


class _Members(_Items):
    """A set."""

    def _own(self, now: Any) -> Delta:
        return {item: item for item in now - self._base}, tuple(self._base - now)

    def hide(self, own: Delta) -> None:
        self._kind.clear(self.container)
        self._kind.update(self.container, self._base)

    def show(self, own: Delta) -> None:
        held, lacking = own
        self._kind.difference_update(self.container, lacking)
        self._kind.update(self.container, held)


class ObjectSpace(Registry):
    """The dictionary of an object."""

    may_be_cache = False


class ModuleSpace(ObjectSpace):
    """The dictionary of a module, but for what is exchanged elsewhere."""

    def __init__(self, module: ModuleType, owners: Owners) -> None:
        self._left_out = kept_elsewhere(module.__name__)
        super().__init__(vars(module), owners)

    def _copy(self) -> Any:
        container = dict(self.container)
        for name in self._left_out:
            container.pop(name, None)
        return container


class Assigned(Registry):
    """The globals of a module that its functions assign."""

    may_be_cache = False

    def __init__(self, module: ModuleType, names: dict[str, bool], owners: Owners) -> None:
        left_out = kept_elsewhere(module.__name__)
        self._names = {name: how for name, how in names.items() if name not in left_out}
        self._is_of_python = module.__name__.partition(".")[0] in sys.stdlib_module_names
        """Then nothing of it is kept in C++, which all share."""
        super().__init__(vars(module), owners)

    def _copy(self) -> Any:
        return {name: self.container[name] for name in self._names if name in self.container}

    def _is_registration(self, key: Any, value: Any, before: Any) -> bool:
        if self._is_of_python or (kind_of(value) is not None and type(before) is type(value)):
            # With what was registered, in place of what had been.
            return True
        # An object that a function has made is rather kept for all than set.
        return self._names[key] or is_simple(value) or self._owners.is_own(value)

    def hide(self, own: Delta) -> None:
        held, lacking = own
        for name in (*held, *lacking):
            if name in self._base:
                self.container[name] = self._base[name]
            else:
                self.container.pop(name, None)


class Dispatching(Registry):
    """The functions of one of ``functools.singledispatch``, by their types."""

    is_changed_by_program = True

    def __init__(self, container: Any, owners: Owners, function: Any) -> None:
        super().__init__(container, owners)
        self._forget = function._clear_cache

    def hide(self, own: Delta) -> None:
        super().hide(own)
        self._forget()

    def show(self, own: Delta) -> None:
        super().show(own)
        self._forget()


def table_of(container: Any, owners: Owners) -> Table:
    """Return the table for a container."""
    kind = kind_of(container)
    registry: Callable[[Any, Owners], Table] = Registry
    if kind in (list, deque):
        registry = _Items
    elif kind is set:
        registry = _Members
    return registry(container, owners)


def _is_name(key: Any) -> bool:
    """Return whether a key is a setting or a class, or several, as of a module and a name in it."""
    parts = key if type(key) is tuple else (key,)
    return all(is_simple(part) or isinstance(part, type) for part in parts)


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, set):
        return bool(one == other)
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
