"""The elements that ``tt.gather`` names and the bins that ``tt.histogram`` counts in, on data.

Both have a length that the kernel's text says. What lies outside of it a GPU looks for in shared
memory that is something else's, or counts in another bin: it is refused as an access outside of a
tensor is.
"""

from __future__ import annotations

import numpy as np

from kernbench.commands import Math
from kernbench.dtypes import Array
from kernbench.errors import OutOfBoundsError
from kernbench.replay.numerics.ops.lookup import widened
from kernbench.replay.steps.diagnostics import coordinates, programs_of
from kernbench.replay.steps.frame import Frame
from kernbench.replay.steps.sites import Chunks

_ADVICE = {
    "tt.gather": "clamp the index, or choose an element that is there with tl.where",
    "tt.histogram": "leave it out by mask=, or take more bins",
}
RANGED = frozenset(_ADVICE)
"""The operations of which an operand must lie in a range."""


class RangeStep:
    """A step that raises if an index or a counted value is outside, in some program."""

    def __init__(self, command: Math, slots: tuple[int, ...], chunks: Chunks, kernel: str) -> None:
        self._command, self._chunks, self._kernel = command, chunks, kernel
        self._mask: int | None = None
        if command.op == "tt.gather":
            self._slot = slots[1]
            self._length = command.inputs[0].shape[int(command.attrs["axis"])]
        else:
            self._slot = slots[0]
            self._mask = slots[1] if len(slots) > 1 else None
            (self._length,) = command.dst.shape

    def __call__(self, frame: Frame) -> None:
        array = widened(frame.values[self._slot])
        outside = (array < 0) | (array >= self._length)
        if outside.any() and self._mask is not None:
            outside = outside & frame.values[self._mask]
        if outside.any():
            raise self._error(frame, array, outside)

    def _error(self, frame: Frame, array: Array, outside: Array) -> OutOfBoundsError:
        command, is_gather = self._command, self._command.op == "tt.gather"
        shape = command.inputs[1 if is_gather else 0].shape
        outside = np.broadcast_to(outside, (frame.num_programs, *shape))
        first, *lane = (int(axis[0]) for axis in np.nonzero(outside))
        value = int(np.broadcast_to(array, outside.shape)[(first, *lane)])
        program = coordinates(int(programs_of(self._chunks, frame)[first]), self._chunks.grid)
        what = (
            f"chooses element {value} of axis {command.attrs['axis']}, which has {self._length}"
            if is_gather
            else f"counts {value} in {self._length} bins (0 to {self._length - 1})"
        )
        return OutOfBoundsError(
            f"{command.op} at {command.line} {what} (kernel {self._kernel}, program {program}, "
            f"lane {tuple(lane)}); {_ADVICE[command.op]}"
        )
