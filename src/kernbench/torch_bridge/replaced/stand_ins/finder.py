"""Packages that no CPU machine can build: stand-ins of kernbench's for those that are missing.

Their kernels are CUDA C++. A stand-in has the package's functions, which compute by definition and
take the time of the kernels. A package that is installed is used as it is, unless it would compile
its kernels for a GPU when they are called.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from kernbench.errors import UsageError, nearest
from kernbench.torch_bridge.base.loaders import LoaderAround
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.replaced.extension_modules import flashinfer
from kernbench.torch_bridge.replaced.package_kernels import flash_operations

FOLDER = Path(__file__).parent
_PACKAGES: dict[str, Callable[[Patches, Callable[[], object]], None]] = {
    "flash_attn": flash_operations.install,
    "flashinfer": lambda patches, note: flashinfer.install(patches),
    "flashinfer_cubin": lambda patches, note: None,
}
"""What defines the operations that a package's functions call, by the package's name."""
_IN_FRONT = frozenset(("flashinfer", "flashinfer_cubin"))
"""Packages that are stood in for where it is asked for flashinfer, though they are installed, on
machines with their kernels."""
_EXTENSIONS = frozenset(("transformer_engine",))
"""Packages of which only an extension module is stood in for, by an installation of its own."""
_ASKED = "KERNBENCH_STAND_INS"
_NONE = "none"


def wanted_stand_ins() -> frozenset[str]:
    """Return the packages that are stood in for: those that ``KERNBENCH_STAND_INS`` names.

    Without it all but flashinfer, for whose sake engines leave their own kernels.

    Raises:
        UsageError: It names a package for which there is none.
    """
    known, asked = _EXTENSIONS.union(_PACKAGES), os.environ.get(_ASKED)
    names = known - _IN_FRONT if asked is None else frozenset(asked.split(",")) - {_NONE}
    for name in sorted(names - known):
        hint = nearest(name, (*sorted(known), _NONE))
        raise UsageError(f"{_ASKED}={asked}: no stand-in for {name}; {hint}")
    return names


def install(patches: Patches, used: set[str], architecture: str) -> None:
    """Let programs import stand-ins; add to ``used`` what each run uses, not only imports.

    ``architecture`` is that of the machine's GPUs, as libraries of kernels call it.

    Raises:
        UsageError: ``KERNBENCH_STAND_INS`` names a package for which there is none.
    """
    names = wanted_stand_ins() - _EXTENSIONS
    if not names:
        return
    # Behind all others: an installed package is found first.
    finders = [*sys.meta_path, _StandInFinder(patches, names - _IN_FRONT, used)]
    if "flashinfer" in names and flashinfer.is_described(architecture):
        finders.insert(0, _StandInFinder(patches, _IN_FRONT, used))
    patches.set(sys, "meta_path", finders)
    patches.on_close(_forget)


class _StandInFinder(importlib.abc.MetaPathFinder):
    """Finds stand-ins, and says that their distributions are installed."""

    def __init__(self, patches: Patches, names: frozenset[str], used: set[str]) -> None:
        self._patches = patches
        self._names = names
        self._used = used
        self._defined: set[str] = set()
        """Packages whose operations are defined."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        top = fullname.partition(".")[0]
        if top not in self._names:
            return None
        if path is not None and top in _IN_FRONT:
            # Engines look for parts that they can do without.
            return None
        if path is not None:
            _refuse_part(fullname, top, path)
            if fullname.startswith(f"{top}.ops."):
                # Its kernels are functions, which nothing asks for that only looks for the package.
                self._used.add(top)
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, [str(FOLDER)])
        assert spec is not None
        assert spec.loader is not None
        spec.loader = _DefiningLoader(spec.loader, lambda: self._define(top))
        return spec

    def find_distributions(self, context: Any = None) -> Iterable[importlib.metadata.Distribution]:
        name = None if context is None else context.name
        if name is not None and name.replace("-", "_").lower() not in self._names:
            return []
        finder = importlib.metadata.DistributionFinder
        here = finder.Context(name=name, path=[str(FOLDER)])
        return importlib.metadata.MetadataPathFinder.find_distributions(here)

    def _define(self, name: str) -> None:
        if name not in self._defined:
            self._defined.add(name)
            _PACKAGES[name](self._patches, lambda: self._used.add(name))


class _DefiningLoader(LoaderAround):
    """Defines a package's operations before it is executed."""

    def __init__(self, loader: Any, define: Callable[[], None]) -> None:
        super().__init__(loader)
        self._define = define

    def exec_module(self, module: ModuleType) -> None:
        self._define()
        self._loader.exec_module(module)


def _refuse_part(fullname: str, top: str, path: Sequence[str]) -> None:
    """Say what a stand-in has, where a program imports something else of the package.

    Raises:
        ModuleNotFoundError: It is a stand-in.
    """
    if any(Path(name).is_relative_to(FOLDER) for name in path):
        parts = sorted(
            ".".join(path.relative_to(FOLDER).with_suffix("").parts)
            for path in (FOLDER / top).rglob("*.py")
            if path.stem != "__init__"
        )
        raise ModuleNotFoundError(
            f"{fullname}: {top} is not installed, and kernbench's stand-in for it has no such "
            f"module, but {', '.join(parts)}",
            name=fullname,
        )


def _forget() -> None:
    for name in [module for module in sys.modules if module.partition(".")[0] in _PACKAGES]:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and Path(file).is_relative_to(FOLDER):
            del sys.modules[name]
