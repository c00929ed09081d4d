"""The checks of one launch whose programs decide by data; strands call on it as they run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NoReturn

import numpy.typing as npt

from kernbench.commands import AddressOverflow, Atomic, Command
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
        """Return where programs are that issue writes which take effect later."""
        releases = any(
            isinstance(command, Atomic) and command.order in ("release", "acq_rel")
            for command in commands
        )
        order = self.state.order
        if order is None:
            return None
        return program_ids, (order.released_by if releases else order.of)(program_ids)

    def enter(self, frame: Frame, issued: Issued | None) -> None:
        """Let commands be checked in a frame."""
        self.state.issued = issued
        frame.state = self.state

    def refuse(self, overflows: Collection[AddressOverflow]) -> None:
        """Raise the first of the overflows that have become part of an address.

        Raises:
            AddressOverflowError: There is one.
        """
        for check in self.checks:
            check.evaluated(overflows, self.state.launched)

    def undefined(self, shadow: Array) -> Array:
        """Return a shadow less what is defined as data, such as an offset that overflowed."""
        return self._origins.relevant(shadow, LaneUse.DECISION)

    def refuse_undefined(
        self, where: str, use: str, program: tuple[int, int, int], number: int
    ) -> NoReturn:
        """Raise for the use of a value whose shadow is ``number``.

        Raises:
            UndefinedValueError, UninitializedReadError: Always.
        """
        here = f"{where} ({self.state.launched}, program {program})"
        origin = self._origins[number]
        origin.report(UsedLane(here, use), self.state)
        raise InternalError(f"{origin} let pass that {here} {use}")

    def end(self, pointers: Mapping[int, PointerArg]) -> None:
        """Tell the other operations of the run what the launch has touched.

        Raises:
            DataRaceError: One of them is in no order with it.
        """
        self.state.pointers = pointers
        self.end_launch(self.state)
