"""``tt.reduce``: named combines as one numpy reduction, other regions as a tree of pairs.

The tree keeps the order of operands and only regroups them, so it is right for every associative
combine. float16 and bfloat16 sums are kept in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.commands import CombineRegion, Math, MathClass, Reduce, Splat, Tile
from kernbench.errors import UnsupportedOpError
from kernbench.replay.numerics.elementwise import NUMERICS, build_function
from kernbench.replay.numerics.extremes import ARG_EXTREMES, arg_extreme
from kernbench.replay.numerics.halves import narrow, widen
from kernbench.replay.numerics.ops.registry import Numeric, Seen
from kernbench.replay.numerics.ops.shapes import full
from kernbench.replay.numerics.scans import named_scan, region_scan

Array = npt.NDArray[Any]
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
