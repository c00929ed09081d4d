"""Which installed packages every rank imports for itself, and which all ranks share (ADR-0113).

Importing this imports nothing of PyTorch.
"""

from __future__ import annotations

import importlib.metadata
import os
import pkgutil
import re
import sys
import sysconfig
from collections.abc import Collection, Iterator
from functools import cached_property
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path

from kernbench.errors import UnknownNameError, UsageError, nearest

SHARED_ROOTS = (
    *("accelerate", "datasets", "helion", "kernbench", "peft", "torch", "transformers", "triton"),
)
"""Distributions that all ranks share, with all their requirements.

PyTorch can be imported only once, Helion holds on to its compiler, transformers is too large to be
imported by each rank, and objects that they exchange with a program must have one class on both
sides; so must those of PEFT, which transformers looks for. ``library_state`` exchanges the state
that they keep per process.
"""
PRIVATE_PACKAGES = ("deepspeed", "fairscale", "megatron", "vllm", "zmq")
"""Packages that each rank imports for itself although they may have extension modules, as these do
not refer to the modules around them."""

_INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders of libraries, of this environment or of one that it builds on."""
_OF_PYTHON = tuple(
    f"{Path(path).resolve()}/"
    for path in {
        sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")
    }
)
_OURS = f"{Path(__file__).resolve().parents[2]}/"
_DISTRIBUTION = re.compile(r"[\w.-]+")


class Packages:
    """Decides which modules each rank imports for itself."""

    def __init__(self, asked: Collection[str]) -> None:
        self._asked = frozenset(asked)
        # Modules of this process refer to them already.
        self._decided = {name.partition(".")[0]: False for name in sys.modules}

    def is_private(self, fullname: str, spec: ModuleSpec) -> bool:
        """Return whether each rank gets its own module for this specification."""
        where = _place_of(spec)
        if where is None:
            return False
        path = Path(where).resolve()
        top = fullname.partition(".")[0]
        if path.name.endswith((*EXTENSION_SUFFIXES, ".pyd")):
            return False
        if top in self._asked:
            return True
        if _INSTALLED.isdisjoint(path.parts):
            return not str(path).startswith((*_OF_PYTHON, _OURS))
        decided = self._decided.get(top)
        if decided is None:
            decided = self._decided[top] = self._is_own(top, path)
        return decided

    def _is_own(self, top: str, path: Path) -> bool:
        """Decide for an installed package by any file of it, or by its folder."""
        if top in PRIVATE_PACKAGES:
            return True
        if top in self._shared:
            return False
        site = next(item for item in (path, *path.parents) if item.name in _INSTALLED)
        # Extension modules refer to the modules around them.
        return not any(
            name.endswith(tuple(EXTENSION_SUFFIXES)) and not name.startswith("lib")
            for _, _, names in os.walk(site / top)
            for name in names
        )

    @cached_property
    def _shared(self) -> frozenset[str]:
        return frozenset(_packages_required_by(SHARED_ROOTS))


def check_private(names: Collection[str], folder: Path) -> None:
    """Refuse packages that ranks cannot import separately; the program runs from ``folder``.

    Raises:
        UnknownNameError: There is no such package.
        UsageError: All ranks must share it.
    """
    path = [str(folder), *sys.path]
    for name in names:
        top = name.partition(".")[0]
        if top != name:
            raise UsageError(
                f"--private takes a whole package, but got {name}; a part of one cannot be "
                f"imported separately: give {top}"
            )
        if name in sys.stdlib_module_names:
            raise UsageError(f"--private {name}: a part of Python itself, which all ranks share")
        if name in sys.modules:
            raise UsageError(
                f"--private {name}: kernbench or PyTorch uses it, so all ranks share it; only "
                "packages that are not imported before the program starts can be private"
            )
        if PathFinder.find_spec(name, path) is None:
            known = {module.name for module in pkgutil.iter_modules(path)}
            raise UnknownNameError(f"--private {name}: no such package; {nearest(name, known)}")


def _place_of(spec: ModuleSpec) -> str | None:
    if spec.has_location:
        return spec.origin
    return next(iter(spec.submodule_search_locations or ()), None)


def _packages_required_by(roots: Collection[str]) -> Iterator[str]:
    """Yield the packages of installed distributions, and of all that they require."""
    pending, met = list(roots), set[str]()
    while pending:
        name = re.sub(r"[-_.]+", "-", pending.pop()).lower()
        if name in met:
            continue
        met.add(name)
        yield name.replace("-", "_")
        try:
            module = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        yield from (module.read_text("top_level.txt") or "").split()
        for requirement in module.requires or ():
            named = _DISTRIBUTION.match(requirement)
            if named is not None and "extra ==" not in requirement:
                pending.append(named[0])
