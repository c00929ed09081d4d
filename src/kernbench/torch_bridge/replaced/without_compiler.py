"""PyTorch's compiler, which is not imported before a program really needs it.

PyTorch's optimizers, FSDP and reference operations only call it in order not to be compiled. For
that they would import it, which takes half as long as ``import torch``, and wrap each call. What
stands in its place gives the settings, and imports the compiler for whatever else it is asked. It
leaves with the run, or as soon as something is compiled.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import sys
import weakref
from collections.abc import Callable, Sequence
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
"""Where PyTorch caches the result of ``disable`` for a function."""


def refuse_to_explain(*args: Any, **kwargs: Any) -> NoReturn:
    raise UnsupportedTorchError(
        "torch._dynamo.explain: nothing is compiled, as KERNBENCH_COMPILE=eager asks, so there are "
        "no graphs to explain; leave KERNBENCH_COMPILE out"
    )


def _nothing() -> None:
    """Do nothing, as nothing was compiled."""


_REPLACED: dict[str, dict[str, Any]] = {
    _NAME: {
        "explain": refuse_to_explain,
        "reset": _nothing,
        "reset_code_caches": _nothing,
        "OptimizedModule": OptimizedModule,
    },
    f"{_NAME}.eval_frame": {"OptimizedModule": OptimizedModule},
}
"""Replacements for functions of the compiler's modules."""


def install(patches: Patches, import_compiler: Callable[[], None] | None) -> None:
    """Install a stand-in for the compiler, if it was not imported yet.

    ``import_compiler`` imports it, for whatever the stand-in does not answer. None: nothing is
    ever compiled, and the compiler says so.
    """
    patches.set(torch.compiler, "cudagraph_mark_step_begin", _nothing)
    if _NAME in sys.modules:
        if import_compiler is None:
            for name, values in _REPLACED.items():
                patches.set_all(sys.modules[name], values)
        return
    stand_in = sys.modules[_NAME] = _Compiler(import_compiler)
    patches.on_close(stand_in.leave)
    patches.set(sys, "meta_path", [_ThereAlready(), *sys.meta_path])
    stand_in.import_settings()
    torch._dynamo = stand_in


def leave() -> None:
    """Let the compiler itself be imported from now on."""
    stand_in = sys.modules.get(_NAME)
    if isinstance(stand_in, _Compiler):
        stand_in.leave()


class _ThereAlready(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds parts of the compiler that are imported already.

    An import of a part first reads the package's path. That imports the package, and the part with
    it, which Python would then import a second time.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_there = fullname.startswith(f"{_NAME}.") and fullname in sys.modules
        return ModuleSpec(fullname, self) if is_there and target is None else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = sys.modules[spec.name]
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class _Compiler(ModuleType):
    """Answers a few calls without the compiler; imports it for all others."""

    def __init__(self, import_compiler: Callable[[], None] | None) -> None:
        super().__init__(_NAME)
        self._import_compiler = import_compiler
        self._patches: Patches | None = None
        """What is replaced in the real compiler."""
        self._disabled: weakref.WeakSet[Any] = weakref.WeakSet()
        # Process groups clear its caches.
        self.trace_rules = SimpleNamespace(clear_lru_cache=_nothing)
        self.reset = self.reset_code_caches = _nothing
        if import_compiler is None:
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
        """Return a function that calls as much Python each time as PyTorch's own does around it."""
        if fn is None:
            return lambda value: self.disable(value, wrapping=wrapping)
        if type(fn) is not FunctionType:
            return fn

        def call(*args: Any, **kwargs: Any) -> Any:
            # PyTorch's asks for its stance, too.
            _nothing()
            torch.compiler.is_exporting()
            return fn(*args, **kwargs)

        disabled: Any = functools.wraps(fn)(call) if wrapping else call
        # As the compiler's own marks it.
        disabled._torchdynamo_orig_callable, disabled._torchdynamo_disable = fn, True
        self._disabled.add(disabled)
        return disabled

    def is_dynamo_supported(self) -> bool:
        """Answer control flow, which asks this before it would be compiled: True."""
        return True

    def graph_break(self, msg: str = "") -> None:
        """Do nothing."""

    def import_settings(self) -> None:
        """Import the module of settings, which fake tensors read, without the other parts."""
        self.__path__ = [str(Path(torch.__file__).parent / "_dynamo")]
        importlib.import_module(f"{_NAME}.config")
        # All other modules need the package.
        del self.__path__

    def __getattr__(self, name: str) -> Any:
        # Code that searches all modules reads such names; imports read a package's path.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        return getattr(self._import(), name)

    def _import(self) -> ModuleType:
        if self._import_compiler is not None:
            self._import_compiler()
            return sys.modules[_NAME]
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
        module = importlib.import_module(_NAME)
        # Some are missing while the import is under way.
        if self._patches is None and _REPLACED[_NAME].keys() <= vars(module).keys():
            self._patches = Patches()
            for name, values in _REPLACED.items():
                self._patches.set_all(sys.modules[name], values)
        return module

    def leave(self) -> None:
        """Uninstall the stand-in; the real compiler then handles the functions that it disabled."""
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
        # The compiler itself, where it was imported meanwhile, stays for the next run.
        if vars(torch).get("_dynamo") is self:
            del torch._dynamo
        # Who has looked at the stand-in meanwhile may keep it, but not the run.
        self._import_compiler = None
        if self._patches is not None:
            self._patches.close()
        for disabled in self._disabled:
            function = disabled._torchdynamo_orig_callable
            if getattr(function, _MARK, None) is disabled:
                delattr(function, _MARK)


class _Part(SimpleNamespace):
    """A module of the compiler, of which programs use a function that is replaced here."""

    def __init__(self, compiler: _Compiler, name: str, **known: Any) -> None:
        super().__init__(**known)
        self._compiler = compiler
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(getattr(self._compiler._import(), self._name), name)
