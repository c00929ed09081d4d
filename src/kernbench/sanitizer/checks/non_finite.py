"""Where NaN and Inf first appear: made by a launch whose programs read only finite numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from kernbench.replay import Frame
from kernbench.sanitizer.facts.lanes import LaneFinder
from kernbench.sanitizer.facts.launch import LaunchState, element

Array = npt.NDArray[Any]


def is_float(dtype: np.dtype[Any]) -> bool:
    """Return whether the elements may be NaN."""
    if dtype.kind == "f":
        return True
    # ml_dtypes' bfloat16 and float8 are of kind V.
    return dtype.kind == "V" and dtype.type not in (ml_dtypes.int4, ml_dtypes.uint4)


def note_read(frame: Frame, value: Array, lanes: LaneFinder) -> None:
    """Remember the programs that have read NaN or Inf: what they make of it is not new."""
    state: LaunchState = frame.state
    if state.on_non_finite is None or not is_float(value.dtype):
        return
    bad = ~np.isfinite(value)
    if bad.any():
        bad = bad & lanes.active(frame)
        state.has_read_non_finite = state.has_read_non_finite | _by_program(bad)


def note_made(site: int, slot: int, *, nan_only: bool) -> Callable[[Frame], None]:
    """Return the step that remembers which programs had no NaN before the command ``site``."""
    looks_bad = np.isnan if nan_only else _is_not_finite

    def step(frame: Frame) -> None:
        state: LaunchState = frame.state
        if state.on_non_finite is None:
            return
        bad = looks_bad(frame.values[slot])
        if bad.any():
            first = state.first_site
            state.first_site = np.where((first == 0) & _by_program(bad), site + 1, first)

    return step


def check_stored(frame: Frame, value: Array, lanes: LaneFinder, names: list[str]) -> None:
    """Report the first NaN that reaches memory, if its program has made it."""
    state: LaunchState = frame.state
    if state.on_non_finite is None or not is_float(value.dtype):
        return
    bad = ~np.isfinite(value)
    if not bad.any():
        return
    found = lanes.find(frame)
    inside = lanes.pick(bad, frame, found.positions)
    programs = lanes.positions_in_chunk(found.positions)
    made = np.broadcast_to(state.first_site, (frame.num_programs,))
    foreign = np.broadcast_to(state.has_read_non_finite, (frame.num_programs,))
    inside &= (made[programs] > 0) & ~foreign[programs]
    if not inside.any():
        return
    at = int(np.argmax(inside))
    position = int(found.positions[at])
    number = lanes.pick(value, frame, found.positions[at : at + 1]).astype(np.float64)[0]
    place = element(lanes.buffer(frame), int(found.where[at]), lanes.site.itemsize)
    report, state.on_non_finite = state.on_non_finite, None
    report(
        f"{names[int(made[programs[at]]) - 1]} ({state.launched}, program "
        f"{lanes.program(frame, position)}) makes {number} out of finite numbers, "
        f"and tt.store at {lanes.site.line} writes it to {place}"
    )


def _by_program(bad: Array) -> Array:
    return np.asarray(bad.reshape(len(bad), -1).any(axis=1))


def _is_not_finite(value: Array) -> Array:
    return np.asarray(~np.isfinite(value))
