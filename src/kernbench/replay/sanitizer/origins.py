"""Why lanes must not be used, by the small numbers that shadows hold, and the error if they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.commands import SourceLine
from kernbench.errors import UndefinedValueError, UninitializedReadError
from kernbench.replay.sanitizer.launch import LaunchState
from kernbench.replay.sanitizer.shadows import IDS, Shadow

Array = npt.NDArray[Any]

_LONGEST_PATH = 3


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a lane was masked off or read what nobody wrote, or where its number overflowed."""

    line: SourceLine
    overflowed: str = ""
    """The operation that overflowed; empty for any other reason."""
    path: tuple[str, ...] = ()
    """Reductions and products that mixed the lane with others, as ``tt.reduce at x.py:3``."""
    is_unwritten: bool = False
    """Whether the lane was loaded from memory that nothing had written."""

    def __str__(self) -> str:
        path = "".join(f", through {each}" for each in self.path)
        if self.overflowed:
            return f"{self.overflowed} at {self.line}{path}"
        if self.is_unwritten:
            return f"there{path}"
        return f"the masked-off lanes of tt.load at {self.line}{path}"


def undefined_use(
    origin: Origin, state: LaunchState, here: str, use: str, instead: str = ""
) -> UninitializedReadError | UndefinedValueError:
    """Return the error of the operation ``here`` that has a ``use`` for an undefined value.

    ``instead`` is what else than to give the load an ``other=`` may help.
    """
    text = f"{here} {use}: it comes from {origin}"
    if origin.is_unwritten:
        return UninitializedReadError(
            f"{state.unwritten[origin.line]}; {text}; initialise the tensor or mask the load"
        )
    return UndefinedValueError(f"{text}; give that load an other={instead}")


class Origins:
    """All origins of a plan; number 0 stands for a lane that is defined."""

    def __init__(self) -> None:
        self._known: list[Origin | None] = [None]
        self._numbers: dict[Origin, int] = {}
        self._overflows: Array = np.zeros(1, np.bool_)

    def number(self, origin: Origin) -> int:
        """Return the number that stands for an origin in shadows."""
        found = self._numbers.get(origin)
        if found is None:
            found = self._numbers[origin] = len(self._known)
            self._known.append(origin)
            self._overflows = np.append(self._overflows, bool(origin.overflowed))
        return found

    def __getitem__(self, number: int) -> Origin:
        origin = self._known[number]
        assert origin is not None
        return origin

    def undefined(self, shadow: Array) -> Array:
        """Return a shadow without the lanes that only overflowed: as data those are defined."""
        if not self._overflows.any():
            return shadow
        return np.where(self._overflows[shadow], 0, shadow).astype(IDS)

    def through(self, shadow: Shadow, what: str) -> Shadow:
        """Return the shadow of lanes that a reduction or a product mixed with others."""
        if shadow is None or not shadow.any():
            return None
        table = np.zeros(len(self._known), IDS)
        for number in np.unique(shadow).tolist():
            if number:
                origin = self[number]
                if what not in origin.path and len(origin.path) < _LONGEST_PATH:
                    origin = replace(origin, path=(*origin.path, what))
                table[number] = self.number(origin)
        return np.asarray(table[shadow])
