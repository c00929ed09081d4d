"""Attributes of other libraries that are replaced for the time of a run, and put back."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

_MISSING = object()


class Patches:
    """What was replaced so far; closing it puts everything back, the latest first."""

    def __init__(self) -> None:
        self._undo = ExitStack()

    def set(self, owner: Any, name: str, value: Any) -> Any:
        """Give ``owner`` an attribute of its own and return what showed there before."""
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
        """Take an attribute of its own from ``owner``."""
        own = vars(owner)[name]
        delattr(owner, name)
        self._undo.callback(setattr, owner, name, own)

    def on_close(self, callback: Any, *args: Any) -> None:
        """Call back on the way."""
        self._undo.callback(callback, *args)

    def close(self) -> None:
        """Put everything back."""
        self._undo.close()
