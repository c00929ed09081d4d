"""Attributes of other libraries that are replaced during a run, and restored after it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

_MISSING = object()


class Patches:
    """The attributes replaced so far; closing it restores them all, the latest first."""

    def __init__(self) -> None:
        self._undo = ExitStack()

    def set(self, owner: Any, name: str, value: Any) -> Any:
        """Set an attribute of ``owner`` itself, and return its previous value, inherited or not."""
        shown = getattr(owner, name, None)
        own = vars(owner).get(name, _MISSING)
        setattr(owner, name, value)
        if own is _MISSING:
            self._undo.callback(delattr, owner, name)
        else:
            self._undo.callback(setattr, owner, name, own)
        return shown

    def set_all(self, owner: Any, values: Mapping[str, Any]) -> None:
        """Replace several attributes."""
        for name, value in values.items():
            self.set(owner, name, value)

    def hide(self, owner: Any, name: str) -> None:
        """Remove an attribute of ``owner`` itself; an inherited one of that name shows."""
        own = vars(owner)[name]
        delattr(owner, name)
        self._undo.callback(setattr, owner, name, own)

    def on_close(self, callback: Any, *args: Any) -> None:
        """Call ``back`` when this closes."""
        self._undo.callback(callback, *args)

    def close(self) -> None:
        """Restore everything, the latest first."""
        self._undo.close()
