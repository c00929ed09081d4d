"""PyTorch's compiler, which is not imported before a program really asks for something of it.

PyTorch's optimizers, FSDP and reference operations ask it not to compile them (ADR-0083). For that
they would import it, which takes half as long as ``import torch``, and be wrapped for each call;
here nothing is compiled.
"""

from __future__ import annotations

import importlib
import sys
import weakref
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, NoReturn

import torch

from kernbench.torch_bridge.patches import Patches
from kernbench.torch_bridge.refusals import UnsupportedTorchError

_NAME = "torch._dynamo"
_MARK = "__dynamo_disable"
"""Where PyTorch keeps what ``disable`` gave it for a function."""


def refuse_to_explain(*args: Any, **kwargs: Any) -> NoReturn:
    raise UnsupportedTorchError(
        "torch._dynamo.explain: nothing is compiled for simulated devices, so there are no graphs "
        "to tell of; call it outside of the simulation"
    )


def install(patches: Patches) -> None:
    """Take the compiler's place, if it was not imported yet."""
    if _NAME in sys.modules:
        patches.set(sys.modules[_NAME], "explain", refuse_to_explain)
        return
    stand_in = sys.modules[_NAME] = _Compiler()
    patches.on_close(stand_in.leave)
    stand_in.import_settings()
    patches.set(torch, "_dynamo", stand_in)


class _Compiler(ModuleType):
    """Does the little that is asked of it without a compiler; imports it for all else."""

    def __init__(self) -> None:
        super().__init__(_NAME)
        self._explained: list[Any] = []
        """What is in the place of the real one's ``explain`` else."""
        self._given: weakref.WeakSet[FunctionType] = weakref.WeakSet()
        # Process groups have its caches cleared.
        self.trace_rules = SimpleNamespace(clear_lru_cache=lambda: None)

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
        if not self._explained and hasattr(found, "explain"):
            self._explained.append(found.explain)
            vars(found)["explain"] = refuse_to_explain
        return found

    def leave(self) -> None:
        """Let functions that PyTorch has asked for ask the real one when it is there."""
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
        if self._explained:
            vars(importlib.import_module(_NAME))["explain"] = self._explained.pop()
        for each in self._given:
            if getattr(each, _MARK, None) is each:
                delattr(each, _MARK)
