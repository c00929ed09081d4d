"""The checks of one data-dependent launch, called by strands as they run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy.typing as npt

from kernbench.commands import AddressOverflow, Atomic, Command, Hint
from kernbench.errors import InternalError
from kernbench.replay import Frame, PointerArg
from kernbench.sanitizer.check import Check, WatchedKernel
from kernbench.sanitizer.launch_state import LaunchState
from kernbench.sanitizer.origins import LaneUse, UsedLane
from kernbench.sanitizer.watch import SanitizerWatch

Array = npt.NDArray[Any]
Issued = tuple[Array, Array]


class LiveWatch(SanitizerWatch):
    """Checks the commands of strands, whose plans are built as they run."""

    def __init__(
        self, kernel: WatchedKernel, kinds: Iterable[type[Check]], state: LaunchState
    ) -> None:
        super().__init__(kernel, kinds)
        self.state = state
        self.begin_launch(state)

    def issue(self, program_ids: Array, commands: Collection[Command]) -> Issued | None:
        """Return the segments of programs that issue writes with a later effect."""
        releases = any(
            isinstance(command, Atomic) and command.order in ("release", "acq_rel")
            for command in commands
        )
        order = self.state.order
        if order is None:
            return None
        return program_ids, (order.released_by if releases else order.of)(program_ids)

    def enter(self, frame: Frame, issued: Issued | None) -> None:
        """Prepare a frame for checks of its commands."""
        self.state.issued = issued
        frame.state = self.state

    def refuse(self, overflows: Collection[AddressOverflow]) -> None:
        """Raise an error for the first overflow that became part of an address.

        Raises:
            AddressOverflowError: There is one.
        """
        for check in self.checks:
            check.evaluated(overflows, self.state.launched)

    def refuse_hints(self, hints: Sequence[Hint], program_ids: Array) -> None:
        """Raise an error for the first hint that does not hold.

        Raises:
            WrongHintError: There is one.
        """
        for check in self.checks:
            check.hinted(hints, program_ids, self.state.grid, self.state.launched)

    def undefined(self, shadow: Array) -> Array:
        """Return a shadow without lanes that are defined as data, such as overflowed offsets."""
        return self._origins.relevant(shadow, LaneUse.DECISION)

    def refuse_undefined(
        self, where: str, use: str, program: tuple[int, int, int], number: int
    ) -> NoReturn:
        """Raise an error for the use of a value whose shadow is ``number``.

        Raises:
            UndefinedValueError, UninitializedReadError: Always.
        """
        here = f"{where} ({self.state.launched}, program {program})"
        origin = self._origins[number]
        origin.report(UsedLane(here, use), self.state)
        raise InternalError(f"{origin} let pass that {here} {use}")

    def end(self, pointers: Mapping[int, PointerArg]) -> None:
        """Check the bytes that the launch touched against other operations of the run.

        Raises:
            DataRaceError: One of them is unordered with it.
        """
        self.state.pointers = pointers
        self.end_launch(self.state)
