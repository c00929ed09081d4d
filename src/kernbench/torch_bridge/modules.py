"""Modules: libraries are shared by all simulated processes, a program's own modules are not."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from kernbench.torch_bridge import benchmarks
from kernbench.torch_bridge.library_state import LibraryStates
from kernbench.torch_bridge.patches import Patches
from kernbench.torch_bridge.process import HERE, Process

PRIVATE_PACKAGES = ("fairscale", "ignite", "megatron")
"""Installed packages that keep a rank's state in their modules, as a program's own do."""

# Lightning makes and deletes it while it loads a checkpoint, in which ranks wait for each other.
_PRIVATE_MODULES = frozenset({"lightning.pytorch.utilities.argparse_utils"})
_LIBRARIES = tuple(
    f"{Path(path).resolve()}/"
    for path in {
        sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")
    }
)
_INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders of libraries, whichever environment's they are: one may build on another."""
_OURS = f"{Path(__file__).resolve().parents[1]}/"


class ProcessModules(importlib.abc.MetaPathFinder):
    """Notes who imports what, and lets libraries be imported by no rank in particular.

    A library that is first imported inside a rank may keep something of that rank, such as the
    default group as a default argument; the process that started all ranks has nothing to keep.
    """

    def __init__(self, base: Process, states: LibraryStates) -> None:
        self._base = base
        self._states = states
        self._loaded = base
        self._private = set(_PRIVATE_MODULES)
        self._is_looking = False

    def install(self, patches: Patches) -> None:
        """Take part in imports."""
        patches.set(sys, "meta_path", [self, *sys.meta_path])
        patches.on_close(self._forget)
        benchmarks.install(patches)
        self._patches = patches

    def load(self, process: Process) -> None:
        """Show a process's own modules."""
        before = self._loaded
        if before is process or not self._private:
            self._loaded = process
            return
        shown = sys.modules
        before.modules = {name: shown.pop(name) for name in self._private if name in shown}
        shown.update(process.modules)
        self._loaded = process

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
        if _is_private(fullname, spec):
            self._private.add(fullname)
        elif spec.loader is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _BaseLoader(spec.loader, self._base, self._states, self._patches)
        return spec

    def _forget(self) -> None:
        for name in self._private:
            sys.modules.pop(name, None)


class _BaseLoader(importlib.abc.Loader):
    """Executes a library's module as the process that started all ranks."""

    def __init__(self, loader: Any, base: Process, states: LibraryStates, patches: Patches) -> None:
        self._loader = loader
        self._base = base
        self._states = states
        self._patches = patches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        before = HERE.process, HERE.is_importing
        HERE.process, HERE.is_importing = self._base, True
        try:
            self._loader.exec_module(module)
        finally:
            HERE.process, HERE.is_importing = before
        self._states.meet(module)
        if module.__name__ == benchmarks.MODULE:
            benchmarks.patch(module, self._patches)


def _found(
    fullname: str, path: Sequence[str] | None, target: ModuleType | None
) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path:
        if not isinstance(finder, ProcessModules):
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                return spec
    return None


def _is_private(fullname: str, spec: importlib.machinery.ModuleSpec) -> bool:
    if fullname.partition(".")[0] in PRIVATE_PACKAGES:
        return True
    where = (
        spec.origin
        if spec.has_location
        else next(iter(spec.submodule_search_locations or ()), None)
    )
    if where is None:
        return False
    path = Path(where).resolve()
    if path.suffix in (".so", ".pyd") or not _INSTALLED.isdisjoint(path.parts):
        return False
    return not str(path).startswith((*_LIBRARIES, _OURS))
