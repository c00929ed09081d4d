"""32-bit arithmetic that overflows and ends in an address."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from kernbench import kernel_ir
from kernbench.commands import (
    AddressOverflow,
    Command,
    KernelTrace,
    Loop,
    Math,
    Tile,
    Transfer,
    access_of,
)
from kernbench.dtypes import Array
from kernbench.errors import AddressOverflowError
from kernbench.replay import Frame, GroupPlan, Step
from kernbench.sanitizer.check import Check, WatchedKernel
from kernbench.sanitizer.facts.launch import Launched
from kernbench.sanitizer.facts.shadows import mark
from kernbench.sanitizer.launch_state import LaunchState
from kernbench.sanitizer.origins import LaneUse, Origin, UsedLane

_ARITHMETIC: Mapping[str, Callable[[Array, Array], Array]] = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.shli": np.left_shift,
}
_CARRIES_ON = kernel_ir.CARRIES_ON | {"arith.select", "arith.shli"}
_NARROW_BYTES = 4


@dataclass(frozen=True, slots=True)
class Overflowed(Origin):
    """The lane's number overflowed, which is a mistake only in an address."""

    is_defined = True
    uses = frozenset({LaneUse.ADDRESS})
    op: str = ""

    def report(self, used: UsedLane, state: LaunchState) -> None:
        raise AddressOverflowError(
            f"{used.here} uses an address whose 32-bit offset overflowed in {self.op} at "
            f"{self.line}{self.through}; widen an operand with .to(tl.int64)"
        )


class Overflow(Check):
    """Refuses overflows that evaluation finds, and marks those in data (ADR-0020 D5)."""

    def __init__(self, kernel: WatchedKernel) -> None:
        super().__init__(kernel)
        source = kernel.source
        self._is_in_address: Callable[[Math], bool]
        if isinstance(source, KernelTrace):
            self._is_in_address = _address_arithmetic(source).__contains__
        else:
            lines = kernel_ir.address_arithmetic(source)
            self._is_in_address = lambda command: (command.op, command.line) in lines

    @classmethod
    def evaluated(cls, overflows: Collection[AddressOverflow], launched: Launched) -> None:
        for overflow in overflows:
            raise AddressOverflowError(f"{overflow} ({launched})")

    def computed(self, group: GroupPlan, command: Command, inputs: list[int]) -> list[Step]:
        if not isinstance(command, Math) or not self._is_in_address(command):
            return []
        number = self.kernel.origins.number(Overflowed(command.line, op=command.op))
        result = command.dst.slot
        function, target = _ARITHMETIC[command.op], group.shadow(result)
        return [partial(_look, function, inputs, result, target, number)]


def _look(
    function: Callable[[Array, Array], Array],
    inputs: list[int],
    result: int,
    target: int,
    number: int,
    frame: Frame,
) -> None:
    """Mark lanes whose exact result did not fit."""
    values = frame.values
    left, right = (values[slot].astype(np.int64) for slot in inputs)
    bad = function(left, right) != values[result]
    if bad.any():
        mark(values, target, bad, number)


def _address_arithmetic(trace: KernelTrace) -> frozenset[Command]:
    """Return the 32-bit operations on data whose result becomes part of an address."""
    maths: dict[int, Math] = {}
    carried: dict[int, list[Tile]] = {}
    pending: list[Tile] = []
    for command in trace.commands():
        if isinstance(command, Math):
            maths[command.dst.slot] = command
        elif isinstance(command, Loop):
            for item in command.carried:
                sources = [x for x in (item.init, item.yielded) if isinstance(x, Tile)]
                carried[item.arg.slot] = carried[item.result.slot] = sources
        elif isinstance(command, Transfer):
            gather = access_of(command).gather
            if gather is not None:
                pending.append(gather)
    address_arithmetic: set[Command] = set()
    seen: set[int] = set()
    while pending:
        slot = pending.pop().slot
        if slot in seen:
            continue
        seen.add(slot)
        pending += carried.get(slot, [])
        maker = maths.get(slot)
        if maker is not None and maker.op in _CARRIES_ON:
            pending += [operand for operand in maker.inputs if isinstance(operand, Tile)]
            if maker.op in _ARITHMETIC and maker.dst.dtype.itemsize == _NARROW_BYTES:
                address_arithmetic.add(maker)
    return frozenset(address_arithmetic)
