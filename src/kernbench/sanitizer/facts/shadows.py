"""Propagation of shadows through operations: 0 is defined, others are numbers of origins.

Shadows have the axes of the values they belong to (a length of 1 stands for all), and None is a
value that is defined everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from kernbench.commands import Gemm, Math, Operand, Reduce
from kernbench.dtypes import Array
from kernbench.replay import SHAPE_OPS, full, same_lead, widened

Shadow = Array | None
Propagate = Callable[[Sequence[Shadow], Sequence[Array]], Shadow]
"""From the shadows and the values of the inputs to the shadow of the result."""

IDS = np.dtype(np.int16)


def clean(shadow: Array) -> Shadow:
    """Return the shadow, None if nothing is undefined."""
    return shadow if shadow.any() else None


def mark(values: list[Any], target: int, bad: Array, number: int) -> None:
    """Give lanes of the shadow in slot ``target`` an origin, but for those that have one."""
    before = values[target]
    if before is not None:
        bad = bad & (before == 0)
        if not bad.any():
            return
    values[target] = np.where(bad, number, 0 if before is None else before).astype(IDS)


def build_math(command: Math) -> Propagate:
    """Return the function from the shadows of an operation's inputs to that of its result."""
    op = command.op
    if op == "tt.gather":
        return _gathered(command)
    if op == "tt.histogram":
        return _counted(command)
    if op == "tt.mx_decode":
        return _decoded(command)
    if op in SHAPE_OPS:
        return _moved(command)
    if any(operand.shape not in ((), command.dst.shape) for operand in command.inputs):
        return _whole(command)
    spread = _spread(command)
    if op == "arith.select":
        return lambda shadows, values: _select(spread(shadows), spread(values))
    if op in ("arith.andi", "arith.ori"):
        absorbing = 0 if op == "arith.andi" else -1
        return lambda shadows, values: _absorbed(spread(shadows), spread(values), absorbing)
    return lambda shadows, _: union(spread(shadows))


def union(shadows: Sequence[Shadow]) -> Shadow:
    """Return the shadow of a result that needs every input."""
    arrays = [shadow for shadow in shadows if shadow is not None]
    if not arrays:
        return None
    total = arrays[0]
    for shadow in arrays[1:]:
        total = np.maximum(total, shadow)
    return total


def _spread(command: Math) -> Callable[[Sequence[Shadow]], list[Shadow]]:
    """Return the function that gives scalar inputs of a tile operation the tile's axes."""
    rank = len(command.dst.shape)
    scalar = [not operand.shape and rank > 0 for operand in command.inputs]

    def spread(arrays: Sequence[Shadow]) -> list[Shadow]:
        return [
            array.reshape(len(array), *(1,) * rank)
            if array is not None and is_scalar and array.ndim == 1
            else array
            for array, is_scalar in zip(arrays, scalar, strict=True)
        ]

    return spread


def _select(shadows: Sequence[Shadow], values: Sequence[Shadow]) -> Shadow:
    condition, a, b = shadows
    if a is None and b is None:
        return condition
    chosen = values[0]
    assert chosen is not None
    zero = np.zeros((1,) * chosen.ndim, IDS)
    picked = np.where(chosen, zero if a is None else a, zero if b is None else b)
    return clean(picked if condition is None else np.maximum(picked, condition))


def _absorbed(shadows: Sequence[Shadow], values: Sequence[Shadow], absorbing: int) -> Shadow:
    """Propagate through ``and`` and ``or``: one defined operand may determine the result."""
    total = union(shadows)
    if total is None:
        return None
    for shadow, value in zip(shadows, values, strict=True):
        assert value is not None
        settles = value if value.dtype == np.bool_ and absorbing else value == absorbing
        if value.dtype == np.bool_ and not absorbing:
            settles = ~value
        total = np.where(settles if shadow is None else settles & (shadow == 0), 0, total)
    return clean(total.astype(IDS))


def _moved(command: Math) -> Propagate:
    function = SHAPE_OPS[command.op](command)

    def moved(shadows: Sequence[Shadow], _: Sequence[Array]) -> Shadow:
        if all(shadow is None for shadow in shadows):
            return None
        return clean(
            function(
                *[
                    np.zeros((1,) * (1 + len(operand.shape)), IDS) if shadow is None else shadow
                    for shadow, operand in zip(shadows, command.inputs, strict=True)
                ]
            )
        )

    return moved


def _gathered(command: Math) -> Propagate:
    """Return the rule for ``tt.gather``: an element is what was chosen, if it is known which."""
    axis = 1 + int(command.attrs["axis"])
    source, where = (operand.shape for operand in command.inputs)

    def chosen(shadows: Sequence[Shadow], values: Sequence[Array]) -> Shadow:
        of_source, of_index = shadows
        if of_source is None:
            return of_index
        x, index = same_lead((full(of_source, source), full(widened(values[1]), where)))
        picked = np.take_along_axis(x, index, axis)
        return clean(picked if of_index is None else np.maximum(picked, of_index))

    return chosen


def _decoded(command: Math) -> Propagate:
    """Return the rule for the operand of a ``tl.dot_scaled``: its elements, and their scales."""
    axis, packed = (1 + int(command.attrs[name]) for name in ("axis", "packed_axis"))
    shapes = [operand.shape for operand in command.inputs]

    def decoded(shadows: Sequence[Shadow], _: Sequence[Array]) -> Shadow:
        parts: list[Shadow] = []
        for index, (shadow, shape) in enumerate(zip(shadows, shapes, strict=True)):
            if shadow is None:
                continue
            spread, along = full(shadow, shape), axis if index else packed
            if index and axis != spread.ndim - 1:
                spread = spread.swapaxes(-1, -2)
            parts.append(
                np.repeat(spread, command.dst.shape[along - 1] // spread.shape[along], along)
            )
        return union(parts)

    return decoded


def _counted(command: Math) -> Propagate:
    """Return the rule for ``tt.histogram``: every bin depends on every lane that is counted."""
    mixed = _whole(command)

    def counted(shadows: Sequence[Shadow], values: Sequence[Array]) -> Shadow:
        if len(shadows) > 1 and shadows[0] is not None:
            left_out = ~values[1] if shadows[1] is None else ~values[1] & (shadows[1] == 0)
            shadows = (np.where(left_out, 0, shadows[0]).astype(IDS), shadows[1])
        total = mixed(shadows, values)
        return None if total is None else clean(total)

    return counted


def _whole(command: Math) -> Propagate:
    """Return the rule for operations that may mix all lanes of a program."""
    rank = len(command.dst.shape)

    def mixed(shadows: Sequence[Shadow], _: Sequence[Array]) -> Shadow:
        reshapes = [
            shadow.reshape(len(shadow), -1).max(axis=1).reshape(-1, *(1,) * rank)
            for shadow in shadows
            if shadow is not None
        ]
        return union(reshapes)

    return mixed


def gemm_shadow(command: Gemm, shadows: Sequence[Shadow]) -> Shadow:
    """Return the shadow of a product: an undefined lane makes its row, or its column, undefined."""
    a, b = shadows[:2]
    parts: list[Shadow] = [None if len(shadows) < 3 else shadows[2]]
    if a is not None:
        parts.append(a.max(axis=-1, keepdims=True))
    if b is not None:
        parts.append(b.max(axis=-2, keepdims=True))
    return union(parts)


def reduce_shadow(command: Reduce, shadows: Sequence[Shadow]) -> Shadow:
    """Return the shadow of every result of a reduction, or of a scan."""
    axis = 1 + command.axis
    shape = command.inputs[0].shape
    if command.scan:
        return union([None if s is None else _scanned(full(s, shape), command) for s in shadows])
    return union([None if s is None else full(s, shape).max(axis=axis) for s in shadows])


class Swaps:
    """Exclusive ors that give each of two neighbours the other's value, as ``tl.flip`` does.

    ``x ^ xor_sum(x)`` along an axis of length 2 is the other element. Nothing but the text of a
    kernel says so: each of the two operations mixes what it is given.
    """

    def __init__(self) -> None:
        self._sums: dict[int, tuple[Operand, Operand, int]] = {}
        """What tiles are sums, by the id of the tile, which is kept too: of which tile, along which
        axis, it is the sum.

        Slots are given to other tiles in kernels that decide by data.
        """

    def sees(self, command: Reduce) -> None:
        """Record a reduction."""
        (source, *others), axis = command.inputs, command.axis
        if others or command.scan or command.combine != "arith.xori":
            return
        if source.shape[axis] == _NEIGHBOURS:
            dst = command.dsts[0]
            self._sums[id(dst)] = dst, source, axis

    def of(self, command: Math) -> Propagate | None:
        """Return the rule for an operation that swaps neighbours, None if it does not."""
        known = [self._sums.get(id(tile)) for tile in command.inputs]
        if command.op in ("tt.expand_dims", "tt.broadcast", "tt.reshape") and known[0] is not None:
            # The sum of each pair, spread over the two again.
            self._sums[id(command.dst)] = (command.dst, *known[0][1:])
        if command.op != "arith.xori":
            return None
        for at, triple in enumerate(reversed(known)):
            if triple is not None and triple[1] is command.inputs[at]:
                shape, axis = command.dst.shape, 1 + triple[2]
                return partial(_flipped, at, shape, axis)
        return None


_NEIGHBOURS = 2


def _flipped(
    at: int, shape: tuple[int, ...], axis: int, shadows: Sequence[Shadow], _: Sequence[Array]
) -> Shadow:
    shadow = shadows[at]
    return None if shadow is None else np.flip(full(shadow, shape), axis)


def _scanned(shadow: Array, command: Reduce) -> Array:
    """Spread undefined lanes to every element that is combined after them."""
    axis = 1 + command.axis
    if command.scan == "reverse":
        return np.flip(np.maximum.accumulate(np.flip(shadow, axis), axis=axis), axis)
    return np.maximum.accumulate(shadow, axis=axis)
