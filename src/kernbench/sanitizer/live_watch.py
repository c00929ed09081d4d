"""The checks of one launch whose programs decide by data; strands call on it as they run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from kernbench.commands import AddressOverflow, Atomic, Command, Math, Transfer
from kernbench.errors import AddressOverflowError
from kernbench.kernel_ir import ABSOLUTE, Module, address_arithmetic, written_params
from kernbench.memory import Buffer
from kernbench.replay import Frame, GroupPlan, PointerArg, Step, operands
from kernbench.sanitizer.checks.origins import undefined_use
from kernbench.sanitizer.facts.launch import Launched, LaunchState
from kernbench.sanitizer.facts.places import Places
from kernbench.sanitizer.ordering.ordered_map import OrderedMap
from kernbench.sanitizer.ordering.programs import ProgramOrder
from kernbench.sanitizer.ordering.touches import Touch, record_touch
from kernbench.sanitizer.ordering.trace_touches import SeenTouches
from kernbench.sanitizer.watch import SanitizerWatch, is_infinite

Array = npt.NDArray[Any]
Issued = tuple[Array, Array]


class LiveWatch(SanitizerWatch):
    """Knows of one launch what each program has read and made, and whom it has heard."""

    def __init__(
        self,
        module: Module,
        params: Sequence[PointerArg | float | int | None],
        launched: Launched,
        on_non_finite: Callable[[str], None] | None,
        order: ProgramOrder,
        places: Places,
        *,
        masked_is_zero: bool,
    ) -> None:
        super().__init__(nan_only=False, masked_is_zero=masked_is_zero)
        self._places = places
        self._launched = launched
        self._in_addresses = address_arithmetic(module)
        written = written_params(module)
        self._writes_anywhere = ABSOLUTE in written
        self._written = {
            id(param.buffer)
            for index, param in enumerate(params)
            if isinstance(param, PointerArg) and index in written
        }
        self._maps: dict[int, OrderedMap] = {}
        self._order = order
        count = len(order.current)
        self._has_read: Array = np.zeros(count, np.bool_)
        self._first_site: Array = np.zeros(count, np.int64)
        self.state = LaunchState(launched, self._touched, SeenTouches(), on_non_finite, self._order)

    def issue(self, program_ids: Array, commands: Collection[Command]) -> Issued:
        """Return where programs are that issue writes which take effect later."""
        releases = any(
            isinstance(command, Atomic) and command.order in ("release", "acq_rel")
            for command in commands
        )
        order = self._order
        return program_ids, (order.released_by if releases else order.of)(program_ids)

    def enter(self, frame: Frame, program_ids: Array, issued: Issued | None) -> None:
        """Let the commands of some programs be checked in a frame."""
        state = self.state
        state.issued = issued
        state.has_read_non_finite = self._has_read[program_ids]
        state.first_site = self._first_site[program_ids]
        frame.state = state

    def leave(self, program_ids: Array) -> None:
        """Keep what was found out about the programs."""
        self._has_read[program_ids] = self.state.has_read_non_finite
        self._first_site[program_ids] = self.state.first_site

    def refuse(self, overflows: Collection[AddressOverflow]) -> None:
        """Raise the first of the overflows that have become part of an address.

        Raises:
            AddressOverflowError: There is one.
        """
        for overflow in overflows:
            raise AddressOverflowError(f"{overflow} ({self._launched})")

    def undefined(self, shadow: Array) -> Array:
        """Return a shadow less what is defined as data, such as an offset that overflowed."""
        return self._origins.undefined(shadow)

    def refuse_undefined(
        self, where: str, use: str, program: tuple[int, int, int], number: int
    ) -> NoReturn:
        """Raise for the use of a value whose shadow is ``number``.

        Raises:
            UndefinedValueError, UninitializedReadError: Always.
        """
        here = f"{where} ({self._launched}, program {program})"
        raise undefined_use(self._origins[number], self.state, here, use)

    def end(self, pointers: Mapping[int, PointerArg]) -> None:
        """Tell the other operations of the run what the launch has touched.

        Raises:
            DataRaceError: One of them is in no order with it.
        """
        self._order.end()
        clock, who = self._launched.clock, self._launched.who
        if clock is None:
            return
        for param, kind, part in self.state.seen.parts():
            record_touch(pointers[param].buffer, Touch(kind, clock, who, (part,)))

    # What a plan asks of its watch (kernbench.replay.plans.plan.Watch):

    def begin(self, group: GroupPlan) -> list[Step]:
        return []

    def before(self, group: GroupPlan, command: Command) -> list[Step]:
        self._nan_only |= any(is_infinite(operand) for operand in operands(command))
        return super().before(group, command)

    def is_in_address(self, command: Math) -> bool:
        return (command.op, command.line) in self._in_addresses

    def collects(self, command: Transfer) -> bool:
        return True

    def _touched(self, buffer: Buffer) -> OrderedMap | None:
        if isinstance(buffer.touches, OrderedMap):
            return buffer.touches
        if not self._writes_anywhere and id(buffer) not in self._written:
            return None
        found = self._maps.get(id(buffer))
        if found is None:
            found = OrderedMap(buffer.size_bytes, self._order.segments, self._places)
            self._maps[id(buffer)] = found
        return found
