"""What a check of the sanitizer is: the mistake it looks for, where, and what it says."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kernbench.checks import Allowed
from kernbench.commands import AddressOverflow, Command, KernelTrace
from kernbench.kernel_ir import Module
from kernbench.replay import GroupPlan, Step
from kernbench.sanitizer.accesses import Mark, WatchedAccess
from kernbench.sanitizer.facts.launch import Launched, Places
from kernbench.sanitizer.launch_state import LaunchState
from kernbench.sanitizer.origins import Origins


@dataclass(frozen=True, slots=True)
class WatchedKernel:
    """What checks share of the kernel that one plan, or one launch by data, executes."""

    source: KernelTrace | Module
    """Its trace; its module where programs decide by data and no trace comes before the launch."""
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
    """What a run allows that does not want this check; None: it always runs."""

    overridden: ClassVar[frozenset[str]] = frozenset()
    """The methods that a subclass has; the others are not called at all."""

    def __init_subclass__(cls) -> None:
        cls.overridden = cls.overridden.union(vars(cls))

    def __init__(self, kernel: WatchedKernel) -> None:
        self.kernel = kernel

    @classmethod
    def evaluated(cls, overflows: Collection[AddressOverflow], launched: Launched) -> None:
        """Refuse what evaluation has found in a launch without its data.

        Raises:
            KernbenchError: Something is wrong.
        """

    def sees(self, command: Command) -> None:
        """Take note of a command; comes for those of a whole trace before any step is made."""

    def begin(self, launch: LaunchState) -> Any:
        """Return what is kept for a launch, in ``launch.notes`` by the class of the check."""

    def before(self, group: GroupPlan, access: WatchedAccess) -> list[Step]:
        """Return what is done before a load, a store or an atomic."""
        return []

    def marks(self, access: WatchedAccess) -> list[Mark]:
        """Return what is done after a load to say which of its lanes must not be used."""
        return []

    def after(self, group: GroupPlan, access: WatchedAccess) -> list[Step]:
        """Return what is done after a load, a store or an atomic."""
        return []

    def computed(self, group: GroupPlan, command: Command, inputs: list[int]) -> list[Step]:
        """Return what is done after a command with results other than a load.

        ``inputs`` are the slots of what a ``Math`` computes with; of other commands, empty.
        """
        return []

    def end(self, launch: LaunchState) -> None:
        """Do what is to be done once a launch has ended.

        Raises:
            KernbenchError: Something is wrong with the whole of it.
        """
