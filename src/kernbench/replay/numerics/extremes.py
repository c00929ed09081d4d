"""``argmax`` and ``argmin``: numpy's, and where there is NaN as the lanes of a GPU combine it."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.replay.numerics.conversions import as_unsigned
from kernbench.replay.numerics.halves import widen
from kernbench.replay.numerics.ops.shapes import full, same_lead

Array = npt.NDArray[Any]
Pairs = tuple[Array, ...]
"""Numbers to compare, the numbers themselves, and their indices."""

ARG_EXTREMES: dict[str, Callable[..., Array]] = {
    "argmax": np.argmax,
    "argmin": np.argmin,
    "argmaxu": np.argmax,
    "argminu": np.argmin,
}
_LANES = 32
_VECTOR_BYTES = 16


def arg_extreme(
    combine: str, axis: int, shape: tuple[int, ...], num_warps: int
) -> Callable[[list[Array]], list[Array]]:
    """Return the reduction of values and their indices to the best value and its index."""
    find = ARG_EXTREMES[combine]
    in_order = _in_order_of_lanes(combine == "argmax", axis, shape, num_warps)

    def reduced(inputs: list[Array]) -> list[Array]:
        values, index = (full(array, shape) for array in inputs)
        ordered = values
        if values.dtype.kind in "fV":
            ordered = widen(values)
            if np.isnan(ordered).any():
                return in_order(ordered, values, index)
        elif combine.endswith("u"):
            ordered = as_unsigned(values)
        where = np.expand_dims(find(ordered, axis=axis), axis)
        if index.dtype.kind in "iu" and not (np.diff(index, axis=axis) > 0).all():
            values, index, ordered, where = same_lead((values, index, ordered, where))
            # The first of equal values need not have the lowest index: lanes may hold what a loop
            # has met last.
            equal = ordered == np.take_along_axis(ordered, where, axis)
            lowest = np.where(equal, index, np.iinfo(index.dtype).max)
            where = np.expand_dims(np.argmin(lowest, axis=axis), axis)
        best = np.take_along_axis(values, where, axis).squeeze(axis)
        if len(index) != len(where):
            index, where = same_lead((index, where))
        return [best, np.take_along_axis(index, where, axis).squeeze(axis)]

    return reduced


def _in_order_of_lanes(
    is_max: bool, axis: int, shape: tuple[int, ...], num_warps: int
) -> Callable[[Array, Array, Array], list[Array]]:
    """Return the reduction of numbers with NaN among them in the order in which a GPU's lanes meet.

    Triton's function keeps the right pair unless the left one is better, or as good with a lower
    index. So NaN wins from the right and loses from the left, and what it met is gone: the order
    decides. A thread goes through its elements one after another; then the lanes of a warp, and
    then the warps, are halved again and again, each with the one half of them away to its right.
    Source: Triton, ``ReduceOpToLLVM.cpp``.
    """

    def better(left: Pairs, right: Pairs) -> Pairs:
        wins = left[0] > right[0] if is_max else left[0] < right[0]
        wins |= (left[0] == right[0]) & (left[2] < right[2])
        return tuple(np.where(wins, a, b) for a, b in zip(left, right, strict=True))

    def reduced(*value: Array) -> list[Array]:
        turns, warps, lanes, side = _spread_over_threads(
            shape, axis - 1, value[1].dtype.itemsize, num_warps
        )
        parts = [np.moveaxis(array, axis, 0) for array in same_lead(value)]
        parts = [part.reshape(turns, warps, lanes, side, *part.shape[1:]) for part in parts]
        own = [(turn, slice(None), slice(None), at) for turn in range(turns) for at in range(side)]
        best = reduce(better, [tuple(part[place] for part in parts) for place in own])
        for at in (1, 0):
            while best[0].shape[at] > 1:
                left, right = zip(*(np.split(array, 2, at) for array in best), strict=True)
                best = better(left, right)
        return [array[0, 0] for array in best[1:]]

    return reduced


def _spread_over_threads(
    shape: tuple[int, ...], axis: int, itemsize: int, num_warps: int
) -> tuple[int, int, int, int]:
    """Return turns, warps, lanes and elements side by side along an axis of a tile.

    As loads of whole rows spread it over threads: 16 bytes each where there are so many. Source:
    Triton, ``Coalesce.cpp`` and the builder of ``BlockedEncodingAttr``.
    """
    threads, lanes, warps = _LANES * num_warps, _LANES, num_warps
    side = max(min(_VECTOR_BYTES // itemsize, int(np.prod(shape)) // threads, shape[-1]), 1)
    for at in range(len(shape) - 1, axis, -1):
        here = min(threads, shape[at] // side)
        own = min(here, lanes)
        threads, lanes, warps = threads // here, lanes // own, warps // min(here // own, warps)
        side = 1
    lanes = min(lanes, shape[axis] // side)
    warps = min(warps, shape[axis] // (side * lanes))
    return shape[axis] // (side * lanes * warps), warps, lanes, side
