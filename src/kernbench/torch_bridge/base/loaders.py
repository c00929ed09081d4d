"""Loaders of modules around others, which they ask for all but what they do themselves."""

from __future__ import annotations

import importlib.abc
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class LoaderAround(importlib.abc.Loader):
    """Loads a module as another loader does; what derives from it adds what it does besides."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module
