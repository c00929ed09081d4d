"""Integer arithmetic without a result: division by zero, and shifts by as many bits as there are.

Such a result is undefined in LLVM's IR: a compiler may give anything, and what GPUs give differs by
what else a kernel computes. It is reported if it reaches memory, an address or a decision, not if
the program drops it, for example by ``tl.where``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kernbench.commands import Command, Math
from kernbench.dtypes import Array
from kernbench.errors import UndefinedValueError
from kernbench.replay import Frame, GroupPlan, Step
from kernbench.sanitizer.check import Check
from kernbench.sanitizer.facts.shadows import mark
from kernbench.sanitizer.launch_state import LaunchState
from kernbench.sanitizer.origins import Origin, UsedLane


@dataclass(frozen=True, slots=True)
class UndefinedArithmetic(Origin):
    """The lane was computed by an operation that has no result for its operands."""

    op: str = ""

    def report(self, used: UsedLane, state: LaunchState) -> None:
        raise UndefinedValueError(
            f"{used.here} {used.what}: it comes from {self.op} at {self.line}{self.through}, which "
            f"{state.notes[Arithmetic][self.line]}; choose another operand or drop the result "
            "there, by tl.where"
        )


def _by_zero(a: Array, b: Array) -> Array:
    return np.broadcast_to(b == 0, np.broadcast_shapes(a.shape, b.shape))


def _shifts_too_far(a: Array, b: Array) -> Array:
    too_far = (b < 0) | (b >= 8 * a.dtype.itemsize)
    return np.broadcast_to(too_far, np.broadcast_shapes(a.shape, b.shape))


_WRONG: dict[str, tuple[str, Callable[[Array, Array], Array]]] = {
    **dict.fromkeys(("arith.divui", "arith.remui", "arith.ceildivui"), ("divides", _by_zero)),
    **dict.fromkeys(
        ("arith.divsi", "arith.remsi", "arith.ceildivsi", "arith.floordivsi"),
        ("divides", lambda a, b: np.asarray((b == 0) | ((b == -1) & (a == np.iinfo(a.dtype).min)))),
    ),
    **dict.fromkeys(("arith.shli", "arith.shrsi", "arith.shrui"), ("shifts", _shifts_too_far)),
}
"""Each operation's verb and the lanes for which it has no result."""


class Arithmetic(Check):
    """Marks lanes of integer operations that have no result."""

    def begin(self, launch: LaunchState) -> Any:
        """Return, by the line of an operation, the first such operands in words."""
        return {}

    def computed(self, group: GroupPlan, command: Command, inputs: list[int]) -> list[Step]:
        if not isinstance(command, Math) or command.op not in _WRONG:
            return []
        number = self.kernel.origins.number(UndefinedArithmetic(command.line, op=command.op))
        return [partial(_look, command, inputs, group.shadow(command.dst.slot), number)]


def _look(command: Math, inputs: list[int], target: int, number: int, frame: Frame) -> None:
    values = frame.values
    verb, wrong = _WRONG[command.op]
    a, b = (values[slot] for slot in inputs)
    bad = wrong(a, b)
    if not bad.any():
        return
    before = values[target]
    mine = bad if before is None else bad & (before == 0)
    mark(values, target, bad, number)
    state: LaunchState = frame.state
    known = state.notes[Arithmetic]
    if mine.any() and command.line not in known:
        at = np.unravel_index(int(np.argmax(mine)), mine.shape)
        left, right = (int(np.broadcast_to(item, mine.shape)[at]) for item in (a, b))
        known[command.line] = f"{verb} {left} by {right}"
