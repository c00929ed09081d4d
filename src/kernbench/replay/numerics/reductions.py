"""``tt.reduce``: named combines as one numpy reduction, other regions as a tree of pairs.

The tree keeps the order of operands and only regroups them, so it is right for every associative
combine. float16 and bfloat16 sums are kept in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from kernbench.commands import CombineRegion, Math, MathClass, Reduce, Splat, Tile
from kernbench.dtypes import Array
from kernbench.errors import UnsupportedOpError
from kernbench.replay.numerics.conversions import as_unsigned, narrow, widen
from kernbench.replay.numerics.elementwise import NUMERICS, build_function
from kernbench.replay.numerics.ops.registry import Numeric, Seen
from kernbench.replay.numerics.ops.shapes import full, same_lead

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


Reduction = Callable[[list[Array]], list[Array]]
"""A function from the inputs' arrays ``[programs, *tile]`` to one array per destination."""


def build_reduction(command: Reduce, num_warps: int = 4) -> Reduction:
    """Return the function that reduces, or scans, the inputs along the command's axis.

    ``num_warps`` of a program decide which elements meet first, where that makes a difference.

    Raises:
        UnsupportedOpError: The combine has neither a known name nor a region.
    """
    axis = 1 + command.axis
    shape = command.inputs[0].shape
    combine = command.combine
    if command.scan:
        return _scan(command)
    if combine in ARG_EXTREMES:
        return arg_extreme(combine, axis, shape, num_warps)
    if combine in NUMERICS:
        named = _named(combine, NUMERICS[combine], axis, shape, command.dsts[0].dtype.numpy)
        if named is not None:
            return named
    if command.region is not None:
        return _tree(command.region, axis, shape)
    raise UnsupportedOpError(f"tt.reduce with {combine!r} at {command.line} cannot run yet")


def _scan(command: Reduce) -> Reduction:
    named = named_scan(command)
    if named is not None:
        return named
    region = command.region or _pair_region(command)
    return region_scan(command, build_region(region))


def _pair_region(command: Reduce) -> CombineRegion:
    """Return a named combine as a region."""
    dst = command.dsts[0]
    a, b, c = (Tile(slot, (), dst.dtype) for slot in (-1, -2, -3))
    step = Math(c, command.combine, (a, b), MathClass.SIMPLE, command.line)
    return CombineRegion((a, b), (step,), (c,))


def _named(
    combine: str, numeric: Numeric, axis: int, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Reduction | None:
    if numeric.combine is None:
        return None
    function: Callable[..., Array] = numeric.combine.reduce
    if numeric.seen is Seen.AS_UNSIGNED:
        return _unsigned(function, axis, shape)
    if numeric.seen is Seen.IN_FLOAT32:
        return lambda inputs: [narrow(function(widen(full(inputs[0], shape)), axis=axis), dtype)]
    if combine == "arith.addi" and dtype == np.bool_:
        function = np.bitwise_xor.reduce
    if combine in ("arith.addi", "arith.muli"):
        return lambda inputs: [function(full(inputs[0], shape), axis=axis, dtype=dtype)]
    return lambda inputs: [function(full(inputs[0], shape), axis=axis)]


def _unsigned(function: Callable[..., Array], axis: int, shape: tuple[int, ...]) -> Reduction:
    def reduced(inputs: list[Array]) -> list[Array]:
        (array,) = inputs
        bits = full(array, shape).view(f"u{array.dtype.itemsize}")
        return [function(bits, axis=axis).view(array.dtype)]

    return reduced


def _tree(region: CombineRegion, axis: int, shape: tuple[int, ...]) -> Reduction:
    combine = build_region(region)

    def reduced(inputs: list[Array]) -> list[Array]:
        parts = [np.moveaxis(full(a, shape), axis, 0) for a in inputs]
        while len(parts[0]) > 1:
            even = len(parts[0]) // 2 * 2
            joined = combine([p[0:even:2] for p in parts], [p[1:even:2] for p in parts])
            if even < len(parts[0]):
                lengths = [
                    np.broadcast_shapes(j.shape[1:], p.shape[1:])
                    for j, p in zip(joined, parts, strict=True)
                ]
                joined = [
                    np.concatenate(
                        [np.broadcast_to(j, (len(j), *s)), np.broadcast_to(p[even:], (1, *s))]
                    )
                    for j, p, s in zip(joined, parts, lengths, strict=True)
                ]
            parts = joined
        return [p[0] for p in parts]

    return reduced


def build_region(region: CombineRegion) -> Callable[[list[Array], list[Array]], list[Array]]:
    """Return the region as a function of two lists of equally shaped arrays."""
    steps = [(build_function(command), command) for command in region.commands]

    def combined(left: list[Array], right: list[Array]) -> list[Array]:
        values: dict[int, Array] = {}
        for tile, array in zip(region.args, [*left, *right], strict=True):
            values[id(tile)] = array

        def fetch(operand: Any) -> Array:
            if isinstance(operand, Tile):
                return values[id(operand)]
            if isinstance(operand, Splat):
                return np.full((1,) * left[0].ndim, operand.value, operand.dtype.numpy)
            raise UnsupportedOpError(f"a reduce region reads {type(operand).__name__}")

        for function, command in steps:
            values[id(command.dst)] = function(*map(fetch, command.inputs))
        return [fetch(result) for result in region.results]

    return combined


Combine = Callable[[list[Array], list[Array]], list[Array]]
Scan = Callable[[list[Array]], list[Array]]


def named_scan(command: Reduce) -> Scan | None:
    """Return the scan by a combine for which numpy has a function, or None."""
    numeric = NUMERICS.get(command.combine)
    dtype, shape = command.dsts[0].dtype.numpy, command.inputs[0].shape
    if numeric is None or numeric.combine is None or dtype == np.bool_:
        return None
    if numeric.seen is Seen.AS_UNSIGNED:
        return None
    axis = 1 + command.axis
    accumulate = numeric.combine.accumulate
    backwards = command.scan == "reverse"

    def scanned(inputs: list[Array]) -> list[Array]:
        array = full(inputs[0], shape)
        wide = widen(array) if dtype.kind in "fV" else array
        if backwards:
            wide = np.flip(wide, axis)
        # Without a dtype numpy would sum small integers in 64 bits.
        value = accumulate(wide, axis=axis, dtype=wide.dtype)
        if backwards:
            value = np.flip(value, axis)
        return [narrow(value, dtype)]

    return scanned


def region_scan(command: Reduce, combine: Combine) -> Scan:
    """Return the scan by any associative combine, in log2(length) steps.

    After the step of distance ``d`` an element holds the combination of the ``2 d`` elements up to
    it; operands keep their order. Source: Hillis and Steele, "Data parallel algorithms", CACM
    29(12).
    """
    axis, shape = 1 + command.axis, command.inputs[0].shape
    backwards = command.scan == "reverse"

    def scanned(inputs: list[Array]) -> list[Array]:
        arrays = same_lead(tuple(full(array, shape) for array in inputs))
        parts = [np.moveaxis(array, axis, 0) for array in arrays]
        if backwards:
            parts = [part[::-1] for part in parts]
        distance = 1
        while distance < len(parts[0]):
            joined = combine([p[:-distance] for p in parts], [p[distance:] for p in parts])
            parts = [
                np.concatenate([part[:distance], np.broadcast_to(new, part[distance:].shape)])
                for part, new in zip(parts, joined, strict=True)
            ]
            distance *= 2
        if backwards:
            parts = [part[::-1] for part in parts]
        return [np.moveaxis(part, 0, axis) for part in parts]

    return scanned
