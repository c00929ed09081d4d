"""Names that a package hands on from modules that it imports when one is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any


def asked_for(package: str, homes: Mapping[str, str], name: str) -> Any:
    """Return what a package's ``__getattr__`` is asked for; ``homes`` has the module of each name.

    >>> asked_for("kernbench", {"nearest": "errors"}, "nearest").__name__
    'nearest'

    Raises:
        AttributeError: It hands on no such name.
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(import_module(f"{package}.{homes[name]}"), name)
