"""Names that a package hands on from modules that it imports when one is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any


def asked_for(package: str, homes: Mapping[str, str], name: str) -> Any:
    """Return what a package's ``__getattr__`` is asked for; ``homes`` has the module of each name.

    With the name that it has there behind a colon, if it is another one; ``""``: it is a module.

    >>> asked_for("kernbench", {"nearest": "errors"}, "nearest").__name__
    'nearest'

    Raises:
        AttributeError: It hands on no such name.
    """
    if name not in homes:
        known = ", ".join(sorted(homes))
        raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {known}")
    module, _, own_name = homes[name].partition(":")
    if not module:
        return import_module(f"{package}.{name}")
    return getattr(import_module(f"{package}.{module}"), own_name or name)
