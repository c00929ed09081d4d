"""Floats that no integer of the asked type holds: what they become differs by machine.

A conversion gives what NVIDIA's GPUs give (ADR-0103), so its result is defined. Reported is one
that matters: that reaches memory or an address. Lanes that the program drops, as ``tl.where`` does,
do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kernbench.commands import Math
from kernbench.replay import Frame, out_of_range
from kernbench.sanitizer.checks.origins import Origin, Origins
from kernbench.sanitizer.facts.shadows import IDS

if TYPE_CHECKING:
    from kernbench.sanitizer.facts.launch import LaunchState

Array = npt.NDArray[Any]


class ConversionCheck:
    """The step after a conversion to an integer: which lanes were out of range."""

    def __init__(self, command: Math, source: int, target: int, origins: Origins) -> None:
        self._dtype = command.dst.dtype.numpy
        self._is_signed = command.op == "arith.fptosi"
        self._source, self._slot, self._target = source, command.dst.slot, target
        sign = "" if self._is_signed else "u"
        self._to = f"{sign}int{8 * self._dtype.itemsize}"
        self._line = command.line
        self._number = origins.number(Origin(command.line, converted=command.op))

    def __call__(self, frame: Frame) -> None:
        state: LaunchState = frame.state
        if state.on_conversion is None:
            return
        values = frame.values
        given = values[self._source]
        bad = out_of_range(given, self._dtype, is_signed=self._is_signed)
        if bad is None:
            return
        before = values[self._target]
        if before is not None:
            # What is undefined stays so.
            bad = bad & (before == 0)
            if not bad.any():
                return
        at = np.unravel_index(int(np.argmax(bad)), bad.shape)
        number = float(np.broadcast_to(given, bad.shape)[at])
        became = np.broadcast_to(values[self._slot], bad.shape)[at]
        if not self._is_signed:
            became = became.view(f"u{self._dtype.itemsize}")
        state.converted.setdefault(self._line, f"{number:g} becomes {became} ({self._to})")
        values[self._target] = np.where(bad, self._number, 0 if before is None else before).astype(
            IDS
        )


def report_conversions(state: LaunchState, shadow: Array, origins: Origins, here: str) -> None:
    """Report the first number that was out of range among lanes with an effect, once."""
    if state.on_conversion is None:
        return
    for number in np.unique(shadow).tolist():
        origin = origins[number] if number else None
        if origin is not None and origin.converted:
            report, state.on_conversion = state.on_conversion, None
            became = state.converted[origin.line]
            report(
                f"{here} depends on {origin}, where {became} on NVIDIA's GPUs and something else "
                "on other machines; clamp the number before the conversion"
            )
            return
