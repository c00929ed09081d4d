"""Where NaN and Inf first appear: in a launch whose programs read only finite numbers."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from kernbench.commands import Command, Gemm, Math, Operand, Splat
from kernbench.dtypes import Array
from kernbench.errors import NonFiniteError, NonFiniteWarning
from kernbench.replay import Chunks, Frame, GroupPlan, Step, operands, results
from kernbench.sanitizer.accesses import WatchedAccess
from kernbench.sanitizer.check import Check, WatchedKernel
from kernbench.sanitizer.launch_state import LaunchState


class _Programs:
    """What each program of a launch has read and made, by linear id."""

    def __init__(self, count: int) -> None:
        self.has_read: Array = np.zeros(count, np.bool_)
        """Whether it has read NaN or Inf, so that its results are not new ones."""
        self.first: Array = np.zeros(count, np.int64)
        """The number of the command that first made NaN, from 1; 0 for none."""


class NonFinite(Check):
    """Tracks programs that read and make NaN and Inf, and reports the first new one stored.

    Kernels that compute with Inf (such as an online softmax) make Inf on purpose: there only NaN
    counts (ADR-0020 D6).
    """

    def __init__(self, kernel: WatchedKernel) -> None:
        super().__init__(kernel)
        self._nan_only = False
        self._names: list[str] = []
        """The commands that may make NaN."""
        self._numbers: dict[str, int] = {}

    def sees(self, command: Command) -> None:
        self._nan_only |= any(_is_infinite(operand) for operand in operands(command))

    def begin(self, launch: LaunchState) -> Any:
        """Return the records of programs, None if there is nothing to report.

        That is so if the run has reported a NaN, or if an argument of the launch is one.
        """
        if not launch.findings.wants(NonFinite):
            return None
        for param in launch.params:
            if isinstance(param, float) and not math.isfinite(param):
                return None
        return _Programs(launch.num_programs)

    def before(self, group: GroupPlan, access: WatchedAccess) -> list[Step]:
        if access.stored is None:
            return []
        steps, slot = group.fetch(access.stored)
        return [*steps, partial(_check_stored, access, slot, self._names)]

    def after(self, group: GroupPlan, access: WatchedAccess) -> list[Step]:
        return [] if access.loaded is None else [partial(_note_read, access, access.loaded.slot)]

    def computed(self, group: GroupPlan, command: Command, inputs: list[int]) -> list[Step]:
        steps: list[Step] = []
        for tile in results(command):
            if _is_float(tile.dtype.numpy):
                product = "tt.dot" if isinstance(command, Gemm) else "tt.reduce"
                op = command.op if isinstance(command, Math) else product
                number = self._number(f"{op} at {command.line}")
                looks = np.isnan if self._nan_only else _is_not_finite
                steps.append(partial(_note_made, group.chunks, number, tile.slot, looks))
        return steps

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            self._names.append(name)
            self._numbers[name] = len(self._names)
        return self._numbers[name]


def _note_read(access: WatchedAccess, slot: int, frame: Frame) -> None:
    """Record the programs that have read NaN or Inf."""
    kept: _Programs | None = frame.state.notes[NonFinite]
    value = frame.values[slot]
    if kept is None or not _is_float(value.dtype):
        return
    bad = ~np.isfinite(value)
    if bad.any():
        bad = bad & access.active(frame)
        kept.has_read[_ids(access.site.chunks, frame)] |= _by_program(bad)


def _note_made(chunks: Chunks, number: int, slot: int, looks: Any, frame: Frame) -> None:
    """Record the programs that had no NaN before this command."""
    kept: _Programs | None = frame.state.notes[NonFinite]
    if kept is None:
        return
    bad = looks(frame.values[slot])
    if bad.any():
        ids = _ids(chunks, frame)
        first = kept.first[ids]
        kept.first[ids] = np.where((first == 0) & _by_program(bad), number, first)


def _check_stored(access: WatchedAccess, slot: int, names: list[str], frame: Frame) -> None:
    """Report the first NaN that reaches memory, if its program made it.

    Raises:
        NonFiniteError: There is one, and the run takes it as an error.
    """
    kept: _Programs | None = frame.state.notes[NonFinite]
    value = frame.values[slot]
    if kept is None or not _is_float(value.dtype):
        return
    bad = ~np.isfinite(value)
    if not bad.any():
        return
    position = access.find(frame)
    inside = access.pick(bad, frame, position.positions)
    inside &= (kept.first[position.programs] > 0) & ~kept.has_read[position.programs]
    if not inside.any():
        return
    at = int(np.argmax(inside))
    number = access.pick(value, frame, position.positions[at : at + 1]).astype(np.float64)[0]
    name = names[int(kept.first[position.programs[at]]) - 1]
    state: LaunchState = frame.state
    state.notes[NonFinite] = None
    program = access.program(frame, int(position.positions[at]))
    text = (
        f"{name} ({state.launched}, program {program}) makes {number} out of finite numbers, and "
        f"tt.store at {access.site.line} writes it to "
        f"{access.element(frame, int(position.where[at]))}"
    )
    if state.checks.nan_is_error:
        state.findings.once(NonFinite)
        raise NonFiniteError(text)
    state.findings.warn(NonFinite, text, NonFiniteWarning)


def _ids(chunks: Chunks, frame: Frame) -> Array:
    """Return the linear ids of the programs of the frame's chunk."""
    return chunks.program_ids[chunks.bounds[frame.chunk] : chunks.bounds[frame.chunk + 1]]


def _is_float(dtype: np.dtype[Any]) -> bool:
    """Return whether the elements may be NaN."""
    if dtype.kind == "f":
        return True
    # ml_dtypes' bfloat16 and float8 are of kind V.
    return dtype.kind == "V" and dtype.type not in (ml_dtypes.int4, ml_dtypes.uint4)


def _is_infinite(operand: Operand) -> bool:
    """Return whether it is a constant that is Inf or NaN."""
    return (
        isinstance(operand, Splat)
        and isinstance(operand.value, float)
        and not math.isfinite(operand.value)
    )


def _by_program(bad: Array) -> Array:
    return np.asarray(bad.reshape(len(bad), -1).any(axis=1))


def _is_not_finite(value: Array) -> Array:
    return np.asarray(~np.isfinite(value))
