"""The import of Transformer Engine: its Python as installed, its extension module kernbench's.

The package's Python is one wheel, its kernels are another of CUDA C++, and its extension module is
built from source by CUDA's compiler. Only the first is needed here.
"""

from __future__ import annotations

import importlib.abc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from kernbench.torch_bridge.base.loaders import LoaderAround
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.call_counts import uncounted
from kernbench.torch_bridge.replaced.stand_ins.finder import wanted_stand_ins

_COMMON, _EXTENSION = "transformer_engine.common", "transformer_engine_torch"
_OF_FLASH = "flash_attn_2_cuda"
"""FlashAttention's extension module, of which the package imports a name that it does not call."""
_BUILDING = "NVTE_PROJECT_BUILDING"
"""The variable that leaves out the search for shared objects of CUDA."""


def install(patches: Patches) -> None:
    """Let programs import Transformer Engine, and find kernbench's extension module.

    Not where ``KERNBENCH_STAND_INS`` leaves it out.
    """
    if "transformer_engine" not in wanted_stand_ins():
        return
    patches.set(sys, "meta_path", [_Finder(patches), *sys.meta_path])
    for name in (_EXTENSION, _OF_FLASH):
        patches.on_close(sys.modules.pop, name, None)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, patches: Patches) -> None:
        self._patches = patches

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in (_EXTENSION, _OF_FLASH):
            return ModuleSpec(fullname, _ExtensionLoader(self._patches))
        if fullname != _COMMON:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _CommonLoader(spec.loader)
        return spec


class _ExtensionLoader(importlib.abc.Loader):
    def __init__(self, patches: Patches) -> None:
        self._patches = patches

    def exec_module(self, module: ModuleType) -> None:
        # Few programs ask for it: its definitions are imported then.
        with uncounted():
            from kernbench.torch_bridge.replaced.transformer_engine import extension

            if module.__name__ == _EXTENSION:
                extension.install(self._patches)
                vars(module).update(extension.names())
            else:
                vars(module)["varlen_bwd"] = extension.lacking("varlen_bwd")


class _CommonLoader(LoaderAround):
    """Executes the module that would load CUDA's libraries, without them."""

    def exec_module(self, module: ModuleType) -> None:
        before = os.environ.get(_BUILDING)
        os.environ[_BUILDING] = "1"
        try:
            self._loader.exec_module(module)
        finally:
            if before is None:
                del os.environ[_BUILDING]
            else:
                os.environ[_BUILDING] = before
        module.load_framework_extension = _load  # type: ignore[attr-defined]


def _load(framework: str) -> None:
    if framework == "torch":
        import_module(_EXTENSION)
        return
    raise FileNotFoundError(
        f"Could not find shared object file for Transformer Engine {framework} lib."
    )
