"""Why lanes must not be used, by the small numbers that shadows hold, and the error if they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.checks import Allowed, remedy
from kernbench.commands import SourceLine
from kernbench.errors import UndefinedValueError, UninitializedReadError
from kernbench.sanitizer.facts.launch import LaunchState
from kernbench.sanitizer.facts.shadows import IDS, Shadow

Array = npt.NDArray[Any]

_LONGEST_PATH = 3
_FIRST_UNDEFINED = 1 << 12
"""Numbers from here on stand for lanes that must not be used, which of two reasons is kept."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a lane was masked off or read what nobody wrote, or where its number overflowed."""

    line: SourceLine
    overflowed: str = ""
    """The operation that overflowed; empty for any other reason."""
    converted: str = ""
    """The conversion that the number was out of range for; empty for any other reason."""
    path: tuple[str, ...] = ()
    """Reductions and products that mixed the lane with others, as ``tt.reduce at x.py:3``."""
    is_unwritten: bool = False
    """Whether the lane was loaded from memory that nothing had written."""

    @property
    def is_defined(self) -> bool:
        """Whether the lane has a number all the same."""
        return bool(self.overflowed or self.converted)

    def __str__(self) -> str:
        path = "".join(f", through {each}" for each in self.path)
        if self.is_defined:
            return f"{self.overflowed or self.converted} at {self.line}{path}"
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
    zeros = remedy(Allowed.MASKED_LANES)
    return UndefinedValueError(f"{text}; give that load an other={instead}, {zeros}")


class Origins:
    """All origins of a plan; number 0 stands for a lane that is defined."""

    def __init__(self) -> None:
        self._known: dict[int, Origin] = {}
        self._numbers: dict[Origin, int] = {}
        self._num_defined = 0

    def number(self, origin: Origin) -> int:
        """Return the number that stands for an origin in shadows."""
        found = self._numbers.get(origin)
        if found is None:
            if origin.is_defined:
                self._num_defined += 1
                found = self._num_defined
            else:
                found = _FIRST_UNDEFINED + len(self._known) - self._num_defined
            self._numbers[origin] = found
            self._known[found] = origin
        return found

    def __getitem__(self, number: int) -> Origin:
        return self._known[number]

    def undefined(self, shadow: Array) -> Array:
        """Return a shadow without the lanes that have a number all the same."""
        if not self._num_defined:
            return shadow
        return np.where(shadow < _FIRST_UNDEFINED, 0, shadow).astype(IDS)

    def of_conversions(self, shadow: Array) -> Array:
        """Return which lanes were out of range for a conversion."""
        numbers = [n for n in range(1, self._num_defined + 1) if self._known[n].converted]
        return np.isin(shadow, numbers)

    def through(self, shadow: Shadow, what: str) -> Shadow:
        """Return the shadow of lanes that a reduction or a product mixed with others."""
        if shadow is None or not shadow.any():
            return None
        table = np.zeros(int(shadow.max()) + 1, IDS)
        for number in np.unique(shadow).tolist():
            if number:
                origin = self[number]
                if what not in origin.path and len(origin.path) < _LONGEST_PATH:
                    origin = replace(origin, path=(*origin.path, what))
                table[number] = self.number(origin)
        return np.asarray(table[shadow])
