"""Modules: some are shared by all simulated processes, most are per process (``packages``)."""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import SourceFileLoader
from itertools import compress, repeat
from operator import is_not
from types import ModuleType
from typing import Any, SupportsIndex

from kernbench.torch_bridge.assigned import Assignments
from kernbench.torch_bridge.base.loaders import LoaderAround
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.library_state import LibraryStates
from kernbench.torch_bridge.processes.process import HERE, Process
from kernbench.torch_bridge.python import benchmarks, hash_seeds
from kernbench.torch_bridge.python.hash_seeds import SeededLoader
from kernbench.torch_bridge.python.locks import WaitingLock
from kernbench.torch_bridge.python.packages import Packages

_bootstrap: Any = sys.modules["_frozen_importlib"]
_lock_of_name = _bootstrap._get_module_lock


def let_imports_wait(patches: Patches, is_shared: Callable[[str], bool]) -> None:
    """Let imports of simulated processes wait in simulated time."""

    def lock_of(name: str) -> Any:
        process = HERE.process
        if process is None or HERE.is_foreign:
            return _lock_of_name(name)
        return lock_for_all(name if is_shared(name) else f"{name} of process {id(process)}")

    patches.set(_bootstrap, "_get_module_lock", lock_of)


def lock_for_all(name: str) -> Any:
    """Return the lock of a name for all processes, with the methods that ``importlib`` needs."""
    lock = _lock_of_name(name)
    if not isinstance(lock.wakeup, WaitingLock):
        lock.wakeup = WaitingLock()
    return lock


class _Absent:
    """Marks a module that one process has imported, and another has not."""

    def __bool__(self) -> bool:
        return False


_ABSENT: Any = _Absent()
_MAINS = ("__main__", "__mp_main__")
"""Modules of which ``globals`` gives each process its own."""


class _Finders(list[Any]):
    """``sys.meta_path``: finders that a program inserts at the front come second."""

    def insert(self, index: SupportsIndex, finder: Any) -> None:
        super().insert(index.__index__() or 1, finder)


class ProcessModules(importlib.abc.MetaPathFinder):
    """Exchanges ranks' own modules, and imports shared libraries on behalf of no rank.

    A library that is first imported inside a rank could keep that rank's state, such as the
    default group as a default argument; the process that started all ranks has no such state.
    """

    def __init__(
        self,
        base: Process,
        states: LibraryStates,
        packages: Packages,
        assignments: Assignments,
        late: Mapping[str, Callable[[ModuleType, Patches], None]],
        has_seeds: bool = False,
    ) -> None:
        self._base = base
        self._has_seeds = has_seeds
        """Whether each process has its own order of sets."""
        self._late = {benchmarks.MODULE: benchmarks.patch, **late}
        """What is patched in shared modules when programs import them, by module."""
        self._states = states
        self._packages = packages
        self._assignments = assignments
        self._own = assignments.own_modules
        """The names of modules that each process imports for itself."""
        self._loaded = base
        self._names: list[str] = []
        """Names of per-process modules; each process keeps its modules in this order."""
        self.shared: set[str] = set()
        self._known: dict[str, ModuleType] = {}
        """The modules of all, also those in whose place a process has others."""
        self._version = ctypes.c_uint64.from_address(id(sys.modules) + 24)
        """Changes whenever ``sys.modules`` does (``ma_version_tag``)."""
        self._seen = 0
        self._is_looking = False

    def install(self, patches: Patches) -> None:
        """Install the finder, and the exchange of modules."""
        patches.set(sys, "meta_path", _Finders([self, *sys.meta_path]))
        self._see()
        patches.on_close(self._forget)
        if self._has_seeds:
            hash_seeds.install(patches)
        for name, patch in self._late.items():
            # Imported by an earlier run of this process.
            if name in sys.modules:
                patch(sys.modules[name], patches)
        let_imports_wait(patches, self.shared.__contains__)
        self._patches = patches

    def load(self, process: Process) -> None:
        """Make a process's own modules current."""
        before = self._loaded
        if before is process:
            return
        self._loaded = process
        names, shown, wanted = self._names, sys.modules, process.modules
        if not names:
            self._seen = self._version.value
            return
        # Every switch of ranks comes by here: no Python loop as long as all have all modules.
        before.modules = list(map(shown.get, names, repeat(_ABSENT)))
        wanted += [self._known.get(name, _ABSENT) for name in names[len(wanted) :]]
        shown.update(zip(names, wanted, strict=True))
        if not all(wanted):
            for name, module in zip(names, wanted, strict=True):
                if module is _ABSENT:
                    del shown[name]
        self._seen = self._version.value

    def look_for_new(self) -> None:
        """Take modules for a process's own that it has made, or put in another's place.

        Before anything of another process is put in place.
        """
        version = self._version.value
        if version == self._seen:
            return
        self._seen = version
        known, own = self._known, self._own
        modules = dict(sys.modules)
        # No Python loop over thousands of modules that have been seen.
        are_new = list(map(is_not, map(known.get, modules), modules.values()))
        for name, module in compress(modules.items(), are_new):
            if name not in own and name not in _MAINS:
                if _is_made(name, module):
                    own.add(name)
                    self._names.append(name)
                else:
                    known[name] = module

    def _see(self) -> None:
        """Take the modules that there are for those of all."""
        self._known = {
            name: module for name, module in sys.modules.items() if name not in self._own
        } | {name: self._known[name] for name in self._own & self._known.keys()}
        self._seen = self._version.value

    def shown(self) -> list[ModuleType]:
        """Return the modules of the running process, for one that begins with the same."""
        return list(map(sys.modules.get, self._names, repeat(_ABSENT)))

    def own(self) -> list[ModuleType]:
        """Return the modules that the running process has imported for itself."""
        return [name for name in map(sys.modules.get, self._names) if isinstance(name, ModuleType)]

    @contextmanager
    def of_nobody(self) -> Iterator[None]:
        """Act as the process that started all ranks, for what they share."""
        if HERE.process is self._base and HERE.is_importing:
            # A module that another of all imports: what it puts in place is seen with that one's.
            yield
            return
        self.look_for_new()
        before = HERE.process, HERE.is_importing
        loaded = self._loaded
        HERE.process, HERE.is_importing = self._base, True
        self.load(self._base)
        try:
            with self._assignments.for_all():
                yield
        finally:
            HERE.process, HERE.is_importing = before
            self._see()
            self.load(loaded)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if HERE.process is None or self._is_looking:
            return None
        self._is_looking = True
        try:
            spec = _found(fullname, path, target)
        finally:
            self._is_looking = False
        if spec is None:
            return None
        if self._packages.is_private(fullname, spec):
            if fullname not in self._own:
                self._own.add(fullname)
                self._names.append(fullname)
                self._expect(spec)
            if fullname in self._late:
                spec.loader = _BaseLoader(spec.loader, self)
            if self._has_seeds and type(spec.loader) is SourceFileLoader:
                spec.loader = SeededLoader(spec.loader.name, spec.loader.path)
        elif spec.loader is not None and hasattr(spec.loader, "exec_module"):
            self.shared.add(fullname)
            spec.loader = _BaseLoader(spec.loader, self)
        return spec

    def _expect(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Watch what a module of the program's own changes, once for all processes."""
        if type(spec.loader) is SourceFileLoader:
            with suppress(ImportError, SyntaxError, OSError):
                code = spec.loader.get_code(spec.name)
                if code is not None:
                    self._assignments.expect(code)

    def executed(self, module: ModuleType) -> None:
        """Record a shared library's module."""
        self._states.meet(module)
        self._assignments.meet(module)
        self.patch(module)

    def patch(self, module: ModuleType) -> None:
        """Replace parts of a module that are known to need it."""
        patch = self._late.get(module.__name__)
        if patch is not None:
            patch(module, self._patches)

    def _forget(self) -> None:
        for name in self._names:
            sys.modules.pop(name, None)
            if name in self._known:
                sys.modules[name] = self._known[name]


class _BaseLoader(LoaderAround):
    """Executes a library's module as the process that started all ranks, unless it is private."""

    def __init__(self, loader: Any, modules: ProcessModules) -> None:
        super().__init__(loader)
        self._modules = modules

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        if module.__name__ not in self._modules.shared:
            self._loader.exec_module(module)
            self._modules.patch(module)
            return
        # Another rank that finds it in sys.modules waits until its import ends.
        lock = lock_for_all(module.__name__)
        lock.acquire()
        try:
            with self._modules.of_nobody():
                self._loader.exec_module(module)
        finally:
            lock.release()
        self._modules.executed(module)


def _is_made(name: str, module: object) -> bool:
    """Return whether a program has put a module in place itself; what is imported is specified."""
    if type(module).__module__.startswith("kernbench."):
        return False
    # Not by getattr, which has some modules import something.
    spec = getattr(module, "__dict__", {}).get("__spec__")
    return spec is None or spec.name != name


def _found(
    fullname: str, path: Sequence[str] | None, target: ModuleType | None
) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path:
        if not isinstance(finder, ProcessModules):
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                return spec
    return None
