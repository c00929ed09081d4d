"""Launches whose operands and result are one box of memory each, run without a frame.

Products and elementwise operations of a tensor-parallel program are such: three views and one call
of numpy. What a frame costs, 20 us a launch where many ranks have emptied the caches, is as much as
numpy takes for a small matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kernbench.dtypes import Array
from kernbench.replay.plans.group_plan import GroupPlan
from kernbench.replay.steps.access import StoreResult, TileLoad
from kernbench.replay.steps.frame import Frame, PointerArg
from kernbench.replay.steps.geometry import Box
from kernbench.replay.steps.sites import AccessSite
from kernbench.replay.steps.step import Freeing


class _View(NamedTuple):
    """Where in the memory of a parameter a box lies, relative to its pointer."""

    param: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    strides: tuple[int, ...]


class Straight:
    """A plan of loads, an operation and its store; :meth:`run` does what its steps would do."""

    def __init__(
        self,
        loads: Sequence[_View],
        store: _View,
        inputs: tuple[int, ...],
        step: StoreResult,
        overwritten: tuple[int, int] | None,
    ) -> None:
        self._loads = tuple(loads)
        self._store = store
        self._inputs = inputs
        self._into = step.into
        self._overwritten = overwritten
        """The range of bytes that are all stored, relative to the pointer; None: not known."""

    @classmethod
    def of(
        cls, groups: Sequence[GroupPlan], stored: dict[int, tuple[int, int]], params: Sequence[int]
    ) -> Straight | None:
        """Return the short way of a plan with these groups, None if its steps are others.

        ``stored`` are the ranges of bytes of parameters that are stored as wholes and not read;
        ``params`` the parameters that the plan accesses.
        """
        if len(groups) != 1 or not groups[0].is_simple:
            return None
        group = groups[0]
        steps = [step for step in group.steps if not isinstance(step, Freeing)]
        if not steps or not isinstance(steps[-1], StoreResult):
            return None
        last, frame = steps[-1], Frame({}, {}, {})
        frame.num_programs = group.chunks.bounds[1]
        slots: dict[int, int] = {}
        loads: list[_View] = []
        for step in steps[:-1]:
            if not isinstance(step, TileLoad) or step.dynamic or step.data_mask is not None:
                return None
            view = _view(step.site, frame)
            if view is None:
                return None
            slots[step.slot] = len(loads)
            loads.append(view)
        store = None if last.store.dynamic else _view(last.store.site, frame)
        if store is None or {view.param for view in (*loads, store)} != set(params):
            return None
        if not set(last.inputs) <= slots.keys():
            return None
        inputs = tuple(slots[slot] for slot in last.inputs)
        # What several programs store in one place is not computed there.
        if last.store.site.geometry(frame).lead == 1 and any(
            loads[number].shape[0] != 1 for number in inputs
        ):
            return None
        return cls(loads, store, inputs, last, stored.get(store.param))

    def run(self, params: Sequence[PointerArg | float | int | None]) -> bool:
        """Execute the launch; return False, with nothing done, where its steps have to."""
        param, shape, dtype, offset, strides = self._store
        argument = params[param]
        if type(argument) is not PointerArg:
            return False
        target, origin = argument
        arrays = []
        try:
            for load in self._loads:
                argument = params[load[0]]
                if type(argument) is not PointerArg or argument[0] is target:
                    return False
                view: Array = np.ndarray(
                    load[1], load[2], argument[0].bytes, argument[1] + load[3], load[4]
                )
                arrays.append(view)
            if target.is_unwritten and self._overwritten == (-origin, target.size_bytes - origin):
                memory = target.bytes_to_overwrite()
            else:
                memory = target.bytes
            out: Array = np.ndarray(shape, dtype, memory, origin + offset, strides)
        except (ValueError, TypeError):
            # Outside of a tensor: the steps say where, or take zeros.
            return False
        with np.errstate(all="ignore"):
            self._into(*[arrays[number] for number in self._inputs], out=out)
        return True


def _view(site: AccessSite, frame: Frame) -> _View | None:
    """Return the one box that an access outside of loops touches, None if it is not one."""
    box = site.geometry(frame).whole
    if not isinstance(box, Box) or site.param < 0:
        return None
    return _View(site.param, box.view_shape, site.dtype, box.offset, box.view_strides)
