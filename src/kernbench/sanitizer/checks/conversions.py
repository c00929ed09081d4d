"""Floats out of range of the integer type: the result of the conversion differs by machine.

A conversion gives what NVIDIA's GPUs give (ADR-0042), so its result is defined. It is reported if
it reaches memory or an address, not if the program drops it, for example by ``tl.where``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kernbench.commands import Command, Math
from kernbench.errors import ConversionWarning
from kernbench.replay import Frame, GroupPlan, Step, out_of_range
from kernbench.sanitizer.check import Check
from kernbench.sanitizer.facts.shadows import mark
from kernbench.sanitizer.launch_state import LaunchState
from kernbench.sanitizer.origins import LaneUse, Origin, Origins, UsedLane


@dataclass(frozen=True, slots=True)
class Converted(Origin):
    """The lane was out of range for a conversion."""

    is_defined = True
    uses = frozenset({LaneUse.ADDRESS, LaneUse.VALUE})
    op: str = ""

    def report(self, used: UsedLane, state: LaunchState) -> None:
        became = state.notes[Conversions][self.line]
        state.findings.warn(
            Conversions,
            f"{used.here} depends on {self.op} at {self.line}{self.through}, where {became} on "
            "NVIDIA's GPUs and something else on other machines; clamp the number before the "
            "conversion",
            ConversionWarning,
        )


class Conversions(Check):
    """Marks the results of conversions that were out of range."""

    def begin(self, launch: LaunchState) -> Any:
        """Return, by the line of a conversion, the first such number and its result."""
        return {}

    def computed(self, group: GroupPlan, command: Command, inputs: list[int]) -> list[Step]:
        if not isinstance(command, Math) or command.op not in ("arith.fptosi", "arith.fptoui"):
            return []
        shadow = group.shadow(command.dst.slot)
        return [_Conversion(command, inputs[0], shadow, self.kernel.origins)]


class _Conversion:
    """The step after a conversion to an integer: which lanes were out of range."""

    def __init__(self, command: Math, source: int, target: int, origins: Origins) -> None:
        self._dtype = command.dst.dtype.numpy
        self._is_signed = command.op == "arith.fptosi"
        self._source, self._slot, self._target = source, command.dst.slot, target
        sign = "" if self._is_signed else "u"
        self._to = f"{sign}int{8 * self._dtype.itemsize}"
        self._line = command.line
        self._number = origins.number(Converted(command.line, op=command.op))

    def __call__(self, frame: Frame) -> None:
        state: LaunchState = frame.state
        if not state.findings.wants(Conversions):
            return
        values = frame.values
        value = values[self._source]
        bad = out_of_range(value, self._dtype, is_signed=self._is_signed)
        if bad is None:
            return
        before = values[self._target]
        mark(values, self._target, bad, self._number)
        if values[self._target] is before:
            # Undefined lanes stay undefined.
            return
        known = state.notes[Conversions]
        if self._line not in known:
            mine = bad if before is None else bad & (before == 0)
            known[self._line] = self._in_words(value, values[self._slot], mine)

    def _in_words(self, value: Any, result: Any, bad: Any) -> str:
        at = np.unravel_index(int(np.argmax(bad)), bad.shape)
        number = float(np.broadcast_to(value, bad.shape)[at])
        became = np.broadcast_to(result, bad.shape)[at]
        if not self._is_signed:
            became = became.view(f"u{self._dtype.itemsize}")
        return f"{number:g} becomes {became} ({self._to})"
