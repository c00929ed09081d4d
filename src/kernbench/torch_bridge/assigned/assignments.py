"""What processes assign to shared modules and classes, and register there: each has its own."""

from __future__ import annotations

import gc
import logging
import sys
import typing
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from kernbench.torch_bridge.assigned.in_c import Setting, say_of_calls, tell_of_calls
from kernbench.torch_bridge.assigned.objects import (
    WRITES_DIRECTLY,
    NamedObjects,
    changed_results,
    package_of,
)
from kernbench.torch_bridge.assigned.owners import Owners, is_simple
from kernbench.torch_bridge.assigned.registries import (
    changes_containers,
    codes_of,
    has_registries,
    is_machinery,
    registries_of,
)
from kernbench.torch_bridge.assigned.tables import (
    Assigned,
    Dispatching,
    MemoryWords,
    ModuleSpace,
    ObjectSpace,
    Table,
    kept_elsewhere,
    table_of,
)
from kernbench.torch_bridge.assigned.writes import (
    CAN_SEE_CLASSES,
    is_in_own_dict,
    of_class,
    own_dict,
    put,
    read,
    tell_of_classes,
    tell_of_functions,
    tell_of_modules,
    tell_of_objects,
)
from kernbench.torch_bridge.base.patches import MISSING, Patches, while_it_lives
from kernbench.torch_bridge.processes.process import HERE, Process

_OWN_FRAMES = 3
"""``_note`` and what calls it, up to who writes."""
_LEFT_OUT = ("kernbench.", "importlib.", "_frozen_importlib")
"""Modules that write for all: ours, and those that import."""
_CONTAINERS = (gc.callbacks, sys.path_hooks)
"""What programs add to in modules that are left out otherwise, with the list of finders."""
_logging: Any = vars(logging)
_overloads = vars(typing)["_overload_registry"]
_OF_PROGRAMS = [_overloads, _logging["_handlerList"], _logging["_handlers"].data]
"""What functions add to for programs: overloads, and handlers, which are referred to weakly."""
_LONGEST_PATH = 200
_STARTING_ANEW = frozenset(("multiprocessing", "spawn", "forkserver"))
"""Words of programs that start processes which inherit nothing of what their parent has set."""
_MOST_CHANGES_OF_ALL = 32
"""A table that changes more often without anything of a process's own is a cache."""


class OwnAttribute:
    """An attribute that a process has assigned."""

    __slots__ = ("_base", "_is_shown", "_owners", "_space", "_value", "is_unread", "name", "owner")

    def __init__(
        self, owner: Any, name: str, base: Any, value: Any, is_shown: bool, owners: Owners
    ) -> None:
        self._owners = owners
        self.owner = owner
        self.name = name
        self._base = base
        """What all have."""
        self._value = value
        """What the process has, while that is not shown."""
        self._is_shown = is_shown
        # Every wait of the program comes by here, with all that its process has assigned.
        self._space = own_dict(owner) if is_in_own_dict(owner, name) else None
        """The dictionary that it is an entry of, and nothing beside it."""
        self.is_unread = base is MISSING and not (
            isinstance(owner, (ModuleType, FunctionType, type)) or hasattr(type(owner), name)
        )
        """Whether it is a name that an object has of the process alone, as a method that an engine
        adds to each of its loggers: what is no process's code never asks for it."""

    def _read(self) -> Any:
        if self._space is not None:
            return self._space.get(self.name, MISSING)
        return read(self.owner, self.name)

    def _exchange(self, value: Any) -> Any:
        """Write a value, and return what was there."""
        space, name = self._space, self.name
        if space is None:
            before = read(self.owner, name)
            if value is not before:
                put(self.owner, name, value)
        elif value is MISSING:
            before = space.pop(name, MISSING)
        else:
            before = space.get(name, MISSING)
            space[name] = value
        return before

    def show(self) -> None:
        if not self._is_shown:
            self._is_shown = True
            self._base = self._exchange(self._value)

    def hide(self) -> bool:
        """Show what all have, and return whether the process still has something else."""
        if self._is_shown:
            self._is_shown = False
            self._value = self._exchange(self._base)
        return self._value is not self._base

    def copy(self) -> OwnAttribute:
        """Return the same for another process."""
        value = self._read() if self._is_shown else self._value
        return OwnAttribute(self.owner, self.name, self._base, value, False, self._owners)

    def is_own_in_place_of_alls(self) -> bool:
        is_own = self._owners.is_own
        return self._base is not MISSING and is_own(self._read())


class Assignments:
    """Shows the assignments of one process at a time."""

    def __init__(self, base: Process, is_last: bool = False) -> None:
        """Watch for ``base`` and others; of the last run of a real process, no one before two."""
        self.own_modules: set[str] = set()
        """The names of modules that each process imports for itself."""
        self._owners = Owners(self.own_modules)
        self._shown: Process | None = base
        """Whose assignments are in place; None for those of nobody."""
        self._of_libraries: Process | None = base
        """The process of threads that shared libraries start: what these change is for all."""
        self._is_paused = False
        """Whether its attributes are not, as the code of no process runs."""
        self._codes: list[CodeType] = []
        """The program's own code."""
        self._is_alone = is_last
        """Whether there is one process: nobody else sees what it sets, and nothing is restored
        for a next run."""
        self._tables: list[Table] = []
        self._watched: dict[int, Table] = {}
        """Tables by the identity of their containers."""
        self._words = MemoryWords()
        self._objects = NamedObjects(self._owners, self._tell_of, self._watch_named)
        self._patches = Patches()
        self._session = base.session

    def install(self, patches: Patches) -> None:
        """Keep what is assigned from now on for its process."""
        self._patches = patches
        tell_of_calls(while_it_lives(self._begin_setting), patches)
        say_of_calls(self._session.for_all.setdefault, patches)
        tell_of_modules(self._note, patches)
        if CAN_SEE_CLASSES:
            tell_of_classes(self._note, patches)
            tell_of_functions(self._note, patches)
        self._watch_named([*_CONTAINERS, sys.meta_path, *_OF_PROGRAMS], [], _OF_PROGRAMS)

    def run_in_base(self) -> None:
        """Keep what the first process changes for itself: the program runs in it."""
        self._of_libraries = None

    def close(self) -> None:
        """Show what all have, at the end of a run, before anything that it replaced is restored.

        Or what is restored in a table would count as a process's.
        """
        self._leave()
        unkept, session = self._objects.unkept, self._session
        asked = {*unkept.values(), "ctypes"}
        for program in self._codes:
            if not asked.isdisjoint(_names_in(program)):
                for name, line, is_result in changed_results(program.co_filename, unkept):
                    where = f"{Path(program.co_filename).name}:{line}"
                    if is_result:
                        session.given_out.setdefault(f"{name}()", where)
                    else:
                        session.for_all[f"an assignment to {name} at {where}"] = None

    def meet(self, module: ModuleType) -> None:
        """Watch the registries of a module that all share."""
        if self._is_alone:
            return
        self._watch(self._tables_of(module))
        self._objects.meet(module)

    def _tables_of(self, module: ModuleType) -> Iterator[Table]:
        if is_machinery(module.__name__) or not self._owners.is_shared(module):
            return
        registries, owners = registries_of(module), self._owners
        for function in registries.dispatching:
            yield Dispatching(gc.get_referents(function.registry)[0], owners, function)
        # Python's own libraries have hardly a cache, and none that C++ shares.
        is_of_python = package_of(module) in sys.stdlib_module_names
        for container in registries.containers:
            table = self._watched.get(id(container)) or table_of(container, owners)
            table.is_changed_by_program |= is_of_python
            yield table
        if registries.names:
            yield Assigned(module, registries.names, owners)
        if self._writes_directly() and self._objects.is_named(module):
            yield ModuleSpace(module, owners)

    def _watch(self, tables: Iterable[Table]) -> None:
        added: list[Table] = []
        for table in tables:
            known = self._watched.setdefault(id(table.container), table)
            if known is table:
                added.append(table)
            known.is_changed_by_program |= table.is_changed_by_program
        self._tables += added
        self._words.follow([item.container for item in added])

    def expect(self, program: CodeType) -> None:
        """Watch what code of the program's own changes directly, too: by the names in it.

        Containers, dictionaries of modules and attributes of objects, in what it imports.
        """
        self._codes.append(program)
        names = frozenset(_names_in(program))
        for code in codes_of(program):
            if changes_containers(code):
                self._objects.changed.update(code.co_names)
        if not self._is_alone:
            self._expect(names)
        elif not _STARTING_ANEW.isdisjoint(word for name in names for word in name.split(".")):
            self._begin()

    def _begin(self) -> None:
        """Watch from now on what a second process must not see, or has of its parent's."""
        if self._is_alone:
            self._is_alone = False
            self._expect(frozenset(chain.from_iterable(map(_names_in, self._codes))))

    def _expect(self, names: frozenset[str]) -> None:
        items = dict(sys.modules).items()
        modules = {name: item for name, item in items if isinstance(item, ModuleType)}
        is_first = not self._objects.names
        is_direct = self._writes_directly()
        self._objects.expect(names, modules)
        everywhere = self._writes_directly() and not is_direct
        if everywhere or is_first:
            watched = modules.values() if everywhere else filter(has_registries, modules.values())
            self._watch(chain.from_iterable(map(self._tables_of, watched)))
        if "logging" in names:
            self._tell_of(logging.Logger)

    def _tell_of(self, kind: type) -> None:
        tell_of_objects(kind, self._note_in_object, self._patches)

    def _watch_named(
        self, containers: list[Any], spaces: list[dict[str, Any]], by_program: list[Any]
    ) -> None:
        unseen = {id(item): item for item in containers if id(item) not in self._watched}
        self._watch(table_of(container, self._owners) for container in unseen.values())
        for container in by_program:
            self._watched[id(container)].is_changed_by_program = True
            if type(container) is list:
                self._words.follow_end(container)
        self._watch(ObjectSpace(space, self._owners) for space in spaces)

    def _writes_directly(self) -> bool:
        return not self._objects.names.isdisjoint(WRITES_DIRECTLY)

    def start(self, process: Process, is_forked: bool) -> None:
        """Give a new process what it has of its parent's."""
        self._begin()
        parent = HERE.process
        if is_forked and parent is not None:
            if parent is self._shown:
                self._split(self._words.changed(), parent)
            process.assigned = {key: value.copy() for key, value in parent.assigned.items()}
            process.registered = dict(parent.registered)

    def load(self, process: Process) -> None:
        """Show a process's own."""
        if self._shown is not process:
            self._leave()
            self._join(process)
        elif self._is_paused:
            self._is_paused = False
            for place in process.assigned.values():
                place.show()

    def pause(self) -> None:
        """Show what all have, where it is read by what is no process's code."""
        process = self._shown
        if process is not None and process.assigned:
            self._is_paused = True
            self._hide(process, is_read_by_all=True)

    @contextmanager
    def for_all(self) -> Iterator[None]:
        """Show what is imported or registered for all what it may keep, and give it to all.

        What a process adds, and its settings, it finds, as it may need them; what a process puts in
        place of something it does not.
        """
        process = self._shown
        if process is None:
            yield
            return
        self._put_away(process)
        for place in process.assigned.values():
            if place.is_own_in_place_of_alls():
                place.hide()
        self._shown = None
        try:
            yield
        finally:
            if self._shown is None:
                for position in self._words.changed():
                    self._tables[position].see()
                self._join(process)

    def _begin_setting(self, what: Hashable, setting: Callable[[], Setting]) -> None:
        """Note that a process is about to set something that Python keeps in C."""
        process = self._noted()
        key = (0, what)
        if process is not None and key not in process.assigned:
            process.assigned[key] = setting()

    def _noted(self) -> Process | None:
        """Return the process whose code runs, if that sets what is its own."""
        process = HERE.process
        if process is not self._shown or self._is_paused or HERE.is_foreign or HERE.is_importing:
            return None
        return process

    def _note(self, owner: Any, name: str, value: Any) -> None:
        """Note that an attribute of a module, class or function is about to be assigned."""
        process = self._noted()
        key = (id(owner), name)
        if process is None or key in process.assigned:
            return
        frame = sys._getframe(_OWN_FRAMES)
        writer = str(frame.f_globals.get("__name__"))
        if writer.startswith(_LEFT_OUT):
            return
        base = read(owner, name)
        if not self._owners.is_shared(owner) and not (
            owner in self._objects and self._objects.is_by_program(owner, frame, base, value)
        ):
            return
        if base is value or name in kept_elsewhere(owner.__name__):
            return
        is_late = base is MISSING and not self._owners.is_own_name(writer)
        if is_late and not is_simple(value) and not self._owners.is_own(value):
            # A library that loads a part of itself, for all.
            return
        process.assigned[key] = OwnAttribute(owner, name, base, value, True, self._owners)

    def _note_in_object(self, owner: Any, name: str, value: Any) -> None:
        """Note that an attribute of an object of a class is about to be assigned."""
        process = self._noted()
        key = (id(owner), name)
        if process is None or owner not in self._objects or key in process.assigned:
            return
        if isinstance(of_class(owner, name), property):
            # Which assigns others.
            return
        base, frame = read(owner, name), sys._getframe(_OWN_FRAMES)
        can_be_kept = base is not MISSING or own_dict(owner) or hasattr(owner, "__dict__")
        if can_be_kept and self._objects.is_by_program(owner, frame, base, value):
            process.assigned[key] = OwnAttribute(owner, name, base, value, True, self._owners)

    def _join(self, process: Process) -> None:
        self._shown = process
        self._is_paused = False
        for position, own in process.registered.items():
            self._tables[position].show(own)
        for place in process.assigned.values():
            place.show()
        if process.registered or process.assigned:
            self._words.see()

    def _leave(self) -> None:
        process, self._shown = self._shown, None
        if process is not None:
            if process.assigned:
                self._hide(process)
            self._put_away(process)

    def _hide(self, process: Process, is_read_by_all: bool = False) -> None:
        """Show what all have, or only what is read where no process's code runs."""
        gone = [
            key
            for key, place in process.assigned.items()
            if not (is_read_by_all and place.is_unread) and not place.hide()
        ]
        for key in gone:
            del process.assigned[key]

    def _put_away(self, process: Process) -> None:
        """Put what all have into tables."""
        self._split(self._words.changed(), process)
        if process.registered:
            for position, own in process.registered.items():
                self._tables[position].hide(own)
            self._words.see()

    def _split(self, positions: Iterable[int], process: Process) -> None:
        """Note what a process has of its own in tables that have changed."""
        for position in positions:
            table = self._tables[position]
            if process is self._of_libraries:
                table.see()
                continue
            own = table.split()
            if own[0] or own[1]:
                process.registered[position] = own
            else:
                process.registered.pop(position, None)
                table.num_changes_of_all += table.may_be_cache
                if table.num_changes_of_all == _MOST_CHANGES_OF_ALL:
                    self._words.forget(position)


def _names_in(program: CodeType) -> Iterator[str]:
    """Yield the names in code, also those in strings, by which some functions are told them."""
    for code in codes_of(program):
        for name in code.co_names:
            # Of ``import a.b as c``, too.
            yield from {name, *name.split(".")}
        for value in code.co_consts:
            if isinstance(value, str) and len(value) < _LONGEST_PATH:
                yield from value.split(".")
