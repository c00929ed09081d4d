"""Attributes of other libraries that are replaced during a run, and restored after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from inspect import getattr_static
from typing import Any
from weakref import WeakMethod

from kernbench.interrupts import unbroken

MISSING: Any = object()
"""The own value of an attribute that is only inherited, or that nobody has."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """One attribute that a run has replaced."""

    owner: Any
    name: str
    before: Any
    """The owner's own value before, or ``MISSING``."""
    value: Any


def set_own(owner: Any, name: str, value: Any) -> None:
    """Set an owner's own attribute; ``MISSING`` removes it."""
    if value is MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


def while_it_lives(method: Callable[..., None]) -> Callable[..., None]:
    """Return a function that calls a method, and does nothing once its object is gone.

    Modules that are imported in a run keep what they import from others: with what a run replaced
    they would keep all of the run.
    """
    bound = WeakMethod(method)

    def call(*args: Any) -> None:
        living = bound()
        if living is not None:
            living(*args)

    return call


class Patches:
    """The attributes replaced so far; closing it restores them all, the latest first."""

    def __init__(self) -> None:
        self._undo: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self.replaced: list[Replaced] = []
        """All of them, in order."""

    def set(self, owner: Any, name: str, value: Any) -> Any:
        """Set an attribute of ``owner`` itself, and return its previous value, inherited or not."""
        shown = getattr(owner, name, None)
        own = vars(owner).get(name, MISSING)
        if hasattr(getattr(type(owner), name, None), "__set__"):
            own = shown  # it is kept outside of the owner's dict, as a function's defaults are
        setattr(owner, name, value)
        self.replaced.append(Replaced(owner, name, own, value))
        self._undo.append((set_own, (owner, name, own)))
        return shown

    def set_all(self, owner: Any, values: Mapping[str, Any] = {}, /, **named: Any) -> None:
        """Replace several attributes."""
        for name, value in {**values, **named}.items():
            self.set(owner, name, value)

    def wrap(self, owner: Any, name: str, around: Callable[..., Any], *more: Any) -> None:
        """Call ``around`` in the place of a function, with that, ``more``, and its arguments."""
        original = getattr(owner, name)

        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return around(original, *more, *args, **kwargs)

        is_bound = isinstance(getattr_static(owner, name), (staticmethod, classmethod))
        self.set(owner, name, staticmethod(call) if is_bound else call)

    def hide(self, owner: Any, name: str) -> None:
        """Remove an attribute of ``owner`` itself; an inherited one of that name shows."""
        own = vars(owner)[name]
        delattr(owner, name)
        self._undo.append((setattr, (owner, name, own)))

    def on_close(self, callback: Any, *args: Any) -> None:
        """Call ``callback`` when this closes."""
        self._undo.append((callback, args))

    @unbroken
    def close(self) -> None:
        """Restore everything, the latest first; an interrupt (Ctrl-C) waits meanwhile."""
        while self._undo:
            callback, args = self._undo.pop()
            try:
                callback(*args)
            except BaseException:
                self.close()  # the others, too
                raise
        self.replaced.clear()


@dataclass(frozen=True, slots=True)
class Installation:
    """One row of a table of what is installed."""

    name: str
    gives: str
    """What programs get from it."""
    install: Callable[[Patches], None]
    after: Mapping[str, str] = field(default_factory=dict)
    """Names of rows that must come before, each with the reason.

    Rows without one may come in any order.
    """


def install_all(patches: Patches, table: Sequence[Installation]) -> None:
    """Install the rows of a table, the first one first."""
    installed: set[str] = set()
    for installation in table:
        missing = installation.after.keys() - installed
        assert not missing, f"{installation.name} is listed before {', '.join(sorted(missing))}"
        assert installation.name not in installed, f"{installation.name} is listed twice"
        installation.install(patches)
        installed.add(installation.name)
