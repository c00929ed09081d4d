"""32-bit arithmetic on data that ends in an address: where it leaves its range."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.commands import Command, KernelTrace, Loop, Math, Tile, Transfer, access_of
from kernbench.replay import Frame
from kernbench.sanitizer.facts.shadows import IDS

Array = npt.NDArray[Any]

_ARITHMETIC: Mapping[str, Callable[[Array, Array], Array]] = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.shli": np.left_shift,
}
_CARRIES_ON = frozenset(
    {
        *_ARITHMETIC,
        "arith.extsi",
        "arith.select",
        "tt.splat",
        "tt.broadcast",
        "tt.expand_dims",
        "tt.reshape",
        "tt.trans",
    }
)
"""Operations that hand an overflow on. Others (a remainder, a bit mask) bring it into range."""
_NARROW_BYTES = 4


def address_arithmetic(trace: KernelTrace) -> frozenset[Command]:
    """Return the 32-bit operations on data whose result becomes part of an address."""
    made: dict[int, Math] = {}
    carried: dict[int, list[Tile]] = {}
    pending: list[Tile] = []
    for command in trace.commands():
        if isinstance(command, Math):
            made[command.dst.slot] = command
        elif isinstance(command, Loop):
            for each in command.carried:
                sources = [x for x in (each.init, each.yielded) if isinstance(x, Tile)]
                carried[each.arg.slot] = carried[each.result.slot] = sources
        elif isinstance(command, Transfer):
            gather = access_of(command).gather
            if gather is not None:
                pending.append(gather)
    found: set[Command] = set()
    seen: set[int] = set()
    while pending:
        slot = pending.pop().slot
        if slot in seen:
            continue
        seen.add(slot)
        pending += carried.get(slot, [])
        maker = made.get(slot)
        if maker is not None and maker.op in _CARRIES_ON:
            pending += [operand for operand in maker.inputs if isinstance(operand, Tile)]
            if maker.op in _ARITHMETIC and maker.dst.dtype.itemsize == _NARROW_BYTES:
                found.add(maker)
    return frozenset(found)


class Overflow:
    """The step after such an operation: puts its number where the exact result did not fit."""

    def __init__(self, command: Math, inputs: list[int], target: int, number: int) -> None:
        self._function = _ARITHMETIC[command.op]
        self._slot = command.dst.slot
        self._inputs, self._target, self._number = inputs, target, number

    def __call__(self, frame: Frame) -> None:
        values = frame.values
        wide = [values[slot].astype(np.int64) for slot in self._inputs]
        bad = self._function(*wide) != values[self._slot]
        if bad.any():
            before = values[self._target]
            kept = np.zeros(1, IDS) if before is None else before
            values[self._target] = np.where(bad & (kept == 0), self._number, kept).astype(IDS)
