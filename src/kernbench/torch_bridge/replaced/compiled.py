"""``torch.compile`` without compiling; modules look as if they were compiled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from kernbench.torch_bridge.processes.process import HERE


def compile_nothing(model: Any = None, **options: Any) -> Any:
    """``torch.compile``, which compiles nothing; the report says so."""
    if model is None:
        return lambda value: compile_nothing(value, **options)
    if HERE.process is not None:
        HERE.process.session.left_out_compiling = True
    if isinstance(model, OptimizedModule):
        model = model._orig_mod
    return OptimizedModule(model) if isinstance(model, torch.nn.Module) else model


class OptimizedModule(torch.nn.Module):
    """Replaces PyTorch's class: a module around the original one.

    Programs unwrap it by ``_orig_mod``, which is also in the names of its state dict.
    """

    _orig_mod: torch.nn.Module

    def __init__(self, module: torch.nn.Module, context: Any = None) -> None:
        super().__init__()
        self._modules["_orig_mod"] = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module, with its hooks."""
        return self._orig_mod(*args, **kwargs)

    @property
    def training(self) -> bool:
        inner = _inner(self)
        return inner is None or inner.training

    @training.setter
    def training(self, value: bool) -> None:
        inner = _inner(self)
        if inner is not None:
            inner.training = value

    def __getattr__(self, name: str) -> Any:
        inner = _inner(self)
        if inner is None:
            raise AttributeError(name)
        return inner if name == "_orig_mod" else getattr(inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        inner = _inner(self)
        if inner is None or hasattr(type(self), name) or name in self.__dict__:
            super().__setattr__(name, value)
        elif name == "_orig_mod":
            self._modules[name] = value
        else:
            setattr(inner, name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__:
            super().__delattr__(name)
        else:
            delattr(self._orig_mod, name)

    def __len__(self) -> int:
        return len(self._orig_mod)

    def __bool__(self) -> bool:
        # The original may have no length.
        return True

    def __dir__(self) -> Iterable[str]:
        return sorted({*super().__dir__(), *dir(self._orig_mod)})


def _inner(optimized_module: OptimizedModule) -> torch.nn.Module | None:
    """Return the original module; None during construction or copying."""
    return optimized_module.__dict__.get("_modules", {}).get("_orig_mod")
