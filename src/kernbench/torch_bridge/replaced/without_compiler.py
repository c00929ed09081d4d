"""PyTorch's compiler, which is not imported before a program really asks for something of it.

PyTorch's optimizers, FSDP and reference operations ask it not to compile them (ADR-0083). For that
they would import it, which takes half as long as ``import torch``, and be wrapped for each call;
here nothing is compiled.
"""

from __future__ import annotations

import importlib
import importlib.abc
import sys
import weakref
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, NoReturn

import torch

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.replaced.compiled import OptimizedModule

_NAME = "torch._dynamo"
_MARK = "__dynamo_disable"
"""Where PyTorch keeps what ``disable`` gave it for a function."""


def refuse_to_explain(*args: Any, **kwargs: Any) -> NoReturn:
    raise UnsupportedTorchError(
        "torch._dynamo.explain: nothing is compiled for simulated devices, so there are no graphs "
        "to tell of; call it outside of the simulation"
    )


def _nothing() -> None:
    """Do what there is to do where nothing was compiled."""


_REPLACED: dict[str, dict[str, Any]] = {
    _NAME: {
        "explain": refuse_to_explain,
        "reset": _nothing,
        "reset_code_caches": _nothing,
        "OptimizedModule": OptimizedModule,
    },
    f"{_NAME}.eval_frame": {"OptimizedModule": OptimizedModule},
}
"""What is otherwise in the compiler's modules."""


def install(patches: Patches) -> None:
    """Take the compiler's place, if it was not imported yet."""
    patches.set(torch.compiler, "cudagraph_mark_step_begin", _nothing)
    if _NAME in sys.modules:
        for name, values in _REPLACED.items():
            patches.set_all(sys.modules[name], values)
        return
    stand_in = sys.modules[_NAME] = _Compiler()
    patches.on_close(stand_in.leave)
    patches.set(sys, "meta_path", [_ThereAlready(), *sys.meta_path])
    stand_in.import_settings()
    patches.set(torch, "_dynamo", stand_in)


class _ThereAlready(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the parts of the compiler that came with it.

    Who imports a part asks for the package's path first. With that the package comes, and the part
    with it, which Python would then import once more.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_there = fullname.startswith(f"{_NAME}.") and fullname in sys.modules
        return ModuleSpec(fullname, self) if is_there and target is None else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        found = sys.modules[spec.name]
        self._spec = found.__spec__
        return found

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class _Compiler(ModuleType):
    """Does the little that is asked of it without a compiler; imports it for all else."""

    def __init__(self) -> None:
        super().__init__(_NAME)
        self._patches: Patches | None = None
        """What is replaced in the real one."""
        self._given: weakref.WeakSet[FunctionType] = weakref.WeakSet()
        # Process groups have its caches cleared.
        self.trace_rules = SimpleNamespace(clear_lru_cache=_nothing)
        self.reset = self.reset_code_caches = _nothing
        self.OptimizedModule = OptimizedModule
        self.eval_frame = _Part(self, "eval_frame", OptimizedModule=OptimizedModule)

    def disable(
        self,
        fn: Any = None,
        recursive: bool = True,
        *,
        reason: str | None = None,
        wrapping: bool = True,
    ) -> Any:
        """Return a function that is not compiled: itself."""
        if fn is None:
            return lambda given: self.disable(given)
        if type(fn) is FunctionType:
            self._given.add(fn)
        return fn

    def is_dynamo_supported(self) -> bool:
        """Say what control flow asks before it has itself compiled, which it is not."""
        return True

    def graph_break(self, msg: str = "") -> None:
        """Do nothing."""

    def import_settings(self) -> None:
        """Import the module of settings, which needs no other and which fake tensors look at."""
        self.__path__ = [str(Path(torch.__file__).parent / "_dynamo")]
        importlib.import_module(f"{_NAME}.config")
        # All other modules need the package.
        del self.__path__

    def __getattr__(self, name: str) -> Any:
        # Whoever looks through all modules asks for such names; a package is asked for its path.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        return getattr(self._import(), name)

    def _import(self) -> ModuleType:
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
        found = importlib.import_module(_NAME)
        # It is not there while the import is under way.
        if self._patches is None and hasattr(found, "explain"):
            self._patches = Patches()
            for name, values in _REPLACED.items():
                self._patches.set_all(sys.modules[name], values)
        return found

    def leave(self) -> None:
        """Let functions that PyTorch has asked for ask the real one when it is there."""
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
        if self._patches is not None:
            self._patches.close()
        for each in self._given:
            if getattr(each, _MARK, None) is each:
                delattr(each, _MARK)


class _Part(SimpleNamespace):
    """A module of the compiler of which programs ask for something that is here."""

    def __init__(self, compiler: _Compiler, name: str, **known: Any) -> None:
        super().__init__(**known)
        self._compiler = compiler
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(getattr(self._compiler._import(), self._name), name)
