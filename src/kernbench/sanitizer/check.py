"""The interface of a check: the mistake it detects, where, and what it reports."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kernbench.checks import Allowed
from kernbench.commands import AddressOverflow, Command, Hint, KernelTrace
from kernbench.dtypes import Array
from kernbench.kernel_ir import Module
from kernbench.replay import GroupPlan, Step
from kernbench.sanitizer.accesses import Mark, WatchedAccess
from kernbench.sanitizer.facts.launch import Launched, Places
from kernbench.sanitizer.launch_state import LaunchState
from kernbench.sanitizer.origins import Origins


@dataclass(frozen=True, slots=True)
class WatchedKernel:
    """What checks share about the kernel of one plan, or of one data-dependent launch."""

    source: KernelTrace | Module
    """Its trace; or its module if control flow depends on data and no trace precedes it."""
    origins: Origins = field(default_factory=Origins)
    places: Places = field(default_factory=Places)


class Check:
    """One kind of mistake. A subclass overrides the methods that it needs, and no other.

    Each returns steps: functions of the :class:`Frame` of the execution, in whose ``values`` slots
    hold what commands compute. A step raises a ``KernbenchError`` or warns by the launch's
    ``findings`` (``frame.state`` is the :class:`LaunchState`). A mistake that does harm only where
    the value is used is an :class:`Origin` in the value's shadow (``group.shadow(slot)``), which
    goes through operations and is reported at the use. A check is of one plan, and keeps nothing
    of a launch but what :meth:`begin` returns.
    """

    allowed_by: ClassVar[Allowed | None] = None
    """The allowance that turns this check off; None: it always runs."""

    overridden: ClassVar[frozenset[str]] = frozenset()
    """The methods that a subclass overrides; only these are called."""

    def __init_subclass__(cls) -> None:
        cls.overridden = cls.overridden.union(vars(cls))

    def __init__(self, kernel: WatchedKernel) -> None:
        self.kernel = kernel

    @classmethod
    def evaluated(cls, overflows: Collection[AddressOverflow], launched: Launched) -> None:
        """Refuse mistakes that evaluation has found without data.

        Raises:
            KernbenchError: Something is wrong.
        """

    @classmethod
    def planned(cls, trace: KernelTrace, launched: Launched) -> None:
        """Refuse mistakes that a trace shows without data.

        Raises:
            KernbenchError: Something is wrong.
        """

    @classmethod
    def hinted(
        cls,
        hints: Sequence[Hint],
        program_ids: Array,
        grid: tuple[int, int, int],
        launched: Launched,
    ) -> None:
        """Refuse what a kernel says of known values of some programs.

        Raises:
            KernbenchError: It does not hold.
        """

    def sees(self, command: Command) -> None:
        """Record a command; called for all of a trace before any step is made."""

    def begin(self, launch: LaunchState) -> Any:
        """Return the check's data for a launch, kept in ``launch.notes`` by the check's class."""

    def before(self, group: GroupPlan, access: WatchedAccess) -> list[Step]:
        """Return the steps before a load, a store or an atomic."""
        return []

    def marks(self, access: WatchedAccess) -> list[Mark]:
        """Return the steps after a load that mark the lanes that must not be used."""
        return []

    def after(self, group: GroupPlan, access: WatchedAccess) -> list[Step]:
        """Return the steps after a load, a store or an atomic."""
        return []

    def computed(self, group: GroupPlan, command: Command, inputs: list[int]) -> list[Step]:
        """Return the steps after a command with results, other than a load.

        ``inputs`` are the slots of a ``Math`` command's operands; empty for other commands.
        """
        return []

    def end(self, launch: LaunchState) -> None:
        """Check a launch as a whole, at its end.

        Raises:
            KernbenchError: Something is wrong with the whole of it.
        """
