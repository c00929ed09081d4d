"""Why lanes must not be used: the small numbers in shadows, and the reports of uses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import ClassVar, NamedTuple

import numpy as np

from kernbench.commands import SourceLine
from kernbench.dtypes import Array
from kernbench.sanitizer.facts.shadows import IDS, Shadow
from kernbench.sanitizer.launch_state import LaunchState

_LONGEST_PATH = 3
_FIRST_UNDEFINED = 1 << 12
"""Numbers from here on are lanes without a value, which take precedence over others."""


class LaneUse(Enum):
    """Ways in which a lane affects memory."""

    MASK = auto()
    ADDRESS = auto()
    VALUE = auto()
    DECISION = auto()
    """The lane decides a branch."""


class UsedLane(NamedTuple):
    """A use of a lane that has an origin, as text for errors."""

    here: str
    """The operation, the kernel, the rank and the program."""
    what: str
    """How it uses the lane, for example ``is masked by an undefined value``."""
    instead: str = ""
    """Remedies other than an ``other=`` for the load."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The reason why a lane must not be used in some way: a subclass per reason.

    It goes through operations with the lane; :meth:`report` is called where the lane is used.
    """

    is_defined: ClassVar[bool] = False
    """Whether the lane has a value nevertheless, so that only some uses are mistakes."""
    uses: ClassVar[frozenset[LaneUse]] = frozenset(LaneUse)
    """The uses that are reported."""

    line: SourceLine
    path: tuple[str, ...] = ()
    """Reductions and products that mixed the lane with others, as ``tt.reduce at x.py:3``."""

    @property
    def through(self) -> str:
        """The path in words."""
        return "".join(f", through {name}" for name in self.path)

    def report(self, used: UsedLane, state: LaunchState) -> None:
        """Raise an error for a use, or warn of it.

        Raises:
            KernbenchError: It is a mistake; says where the lane comes from and what to do.
        """
        raise NotImplementedError


class Origins:
    """All origins of a plan; number 0 stands for a lane that is defined."""

    def __init__(self) -> None:
        self._known: dict[int, Origin] = {}
        self._numbers: dict[Origin, int] = {}
        self._num_defined = 0
        self._tables: dict[LaneUse, Array | None] = {}

    def number(self, origin: Origin) -> int:
        """Return the number of an origin in shadows."""
        num_defined = self._numbers.get(origin)
        if num_defined is None:
            if origin.is_defined:
                self._num_defined += 1
                num_defined = self._num_defined
            else:
                num_defined = _FIRST_UNDEFINED + len(self._known) - self._num_defined
            self._numbers[origin] = num_defined
            self._known[num_defined] = origin
            self._tables.clear()
        return num_defined

    def __getitem__(self, number: int) -> Origin:
        return self._known[number]

    def relevant(self, shadow: Array, use: LaneUse) -> Array:
        """Return a shadow without the lanes that may be used in a given way."""
        if use not in self._tables:
            self._tables[use] = self._table(use)
        table = self._tables[use]
        return shadow if table is None or not shadow.any() else np.asarray(table[shadow])

    def _table(self, use: LaneUse) -> Array | None:
        """Return the new number for each number in a use; None if all stay the same."""
        ignored = [number for number, value in self._known.items() if use not in value.uses]
        if not ignored:
            return None
        table = np.arange(max(self._known) + 1, dtype=IDS)
        table[ignored] = 0
        return table

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
