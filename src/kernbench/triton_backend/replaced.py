"""Attributes of Triton's classes and modules that have other values while a run is active."""

from __future__ import annotations

from typing import Any


class ReplacedAttributes:
    """The attributes of one owner that are replaced, and what they were before."""

    def __init__(self, owner: Any, **ours: Any) -> None:
        self._owner, self._ours = owner, ours
        self._before = {name: getattr(owner, name) for name in ours}

    def install(self) -> None:
        """Put ours in their places (idempotent)."""
        for name, value in self._ours.items():
            setattr(self._owner, name, value)

    def remove(self) -> None:
        """Put Triton's own back, unless other code has replaced ours meanwhile."""
        for name, value in self._ours.items():
            if getattr(self._owner, name) is value:
                setattr(self._owner, name, self._before[name])
