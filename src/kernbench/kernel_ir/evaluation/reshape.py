"""Reshape of separable tensors: axes are merged or split only where the result stays separable."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernbench.commands import NotSeparableError, Predicate, Separable, axis_dim, axis_of, is_axis
from kernbench.dtypes import Array

Shape = tuple[int, ...]


def factor(source: Shape, target: Shape) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return matching runs of axes: each pair holds as many elements on both sides.

    >>> factor((4, 6), (2, 2, 6))
    [((0,), (0, 1)), ((1,), (2,))]
    """
    pairs = []
    i = j = 0
    while i < len(source) or j < len(target):
        left, right = [i] if i < len(source) else [], [j] if j < len(target) else []
        a = source[i] if left else 1
        b = target[j] if right else 1
        i += len(left)
        j += len(right)
        while a != b:
            if a < b:
                left.append(i)
                a *= source[i]
                i += 1
            else:
                right.append(j)
                b *= target[j]
                j += 1
        pairs.append((tuple(left), tuple(right)))
    return pairs


def reshape(value: Separable, shape: Shape) -> Separable:
    """Return the same numbers in row-major order as a tensor of ``shape``.

    Raises:
        NotSeparableError: The result varies over two axes in a way that is no sum.
    """
    pairs = factor(value.shape, shape)
    axes = _moved_axes(pairs, value.shape, shape)
    units = tuple(axis for axis, length in enumerate(value.shape) if length == 1)
    if axes is not None and not _terms_over(value, units):
        return value.with_shape(shape, axes)
    result = Separable(shape, value.const)
    for left, right in pairs:
        owned = _terms_over(value, left)
        for outer in {_outer(dims) for dims in owned}:
            part = Separable((), 0, {d: a for d, a in owned.items() if _outer(d) == outer})
            array = _merged(part.dense, outer, left, value.shape, right, shape)
            result += _split_sum(array, outer, right, shape)
    rest = {dims: array for dims, array in value.terms.items() if not _has_axis(dims)}
    return result + Separable(shape, 0, rest)


def reshape_predicate(value: Predicate, shape: Shape) -> Predicate:
    """Do as :func:`reshape`, for a conjunction."""
    result = Predicate(shape, {d: a for d, a in value.terms.items() if not _has_axis(d)})
    for left, right in factor(value.shape, shape):
        owned = _terms_over(value, left)
        for outer in {_outer(dims) for dims in owned}:
            part = Predicate((), {d: a for d, a in owned.items() if _outer(d) == outer})
            array = _merged(part.dense, outer, left, value.shape, right, shape)
            result &= _split_conjunction(array, outer, right, shape)
    return result


def _moved_axes(
    pairs: list[tuple[tuple[int, ...], tuple[int, ...]]], source: Shape, target: Shape
) -> dict[int, int] | None:
    """Return where each axis goes if only axes of length 1 come and go, else None."""
    axes: dict[int, int] = {}
    for left, right in pairs:
        old = [axis for axis in left if source[axis] > 1]
        new = [axis for axis in right if target[axis] > 1]
        if len(old) > 1 or len(new) > 1:
            return None
        axes.update(zip(old, new, strict=True))
    return axes


def _has_axis(dims: tuple[int, ...]) -> bool:
    return bool(dims) and is_axis(dims[-1])


def _outer(dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(dim for dim in dims if not is_axis(dim))


def _terms_over(value: Separable | Predicate, axes: tuple[int, ...]) -> dict[Any, Array]:
    return {
        dims: array
        for dims, array in value.terms.items()
        if _has_axis(dims) and axis_of(dims[-1]) in axes
    }


def _merged(
    dense: Any,
    outer: tuple[int, ...],
    left: tuple[int, ...],
    source: Shape,
    right: tuple[int, ...],
    target: Shape,
) -> Array:
    """Return the terms over ``left`` as one array with axes ``outer`` and then ``right``."""
    array = dense((*outer, *(axis_dim(axis) for axis in left)))
    lead = array.shape[: len(outer)]
    full = np.broadcast_to(array, lead + tuple(source[axis] for axis in left))
    return full.reshape(lead + tuple(target[axis] for axis in right))


def _parts(
    array: Array, outer: tuple[int, ...], right: tuple[int, ...]
) -> list[tuple[tuple[int, ...], Array]]:
    """Return, for each target axis, its dims and the slice where all other target axes are 0."""
    lead = (slice(None),) * len(outer)
    parts = []
    for position, axis in enumerate(right):
        index = tuple(slice(None) if i == position else 0 for i in range(len(right)))
        parts.append(((*outer, axis_dim(axis)), array[lead + index]))
    return parts


def _split_sum(
    array: Array, outer: tuple[int, ...], right: tuple[int, ...], shape: Shape
) -> Separable:
    corner = array[(slice(None),) * len(outer) + (0,) * len(right)]
    terms = {dims: part - corner[..., None] for dims, part in _parts(array, outer, right)}
    base = Separable((), 0, {outer: corner}) if outer else Separable((), int(corner))
    result = base + Separable(shape, 0, terms)
    dims = (*outer, *(axis_dim(axis) for axis in right))
    if not np.array_equal(np.broadcast_to(result.dense(dims), array.shape), array):
        raise NotSeparableError
    return result.trimmed()


def _split_conjunction(
    array: Array, outer: tuple[int, ...], right: tuple[int, ...], shape: Shape
) -> Predicate:
    result = Predicate(shape)
    for position, axis in enumerate(right):
        others = tuple(len(outer) + i for i in range(len(right)) if i != position)
        part: Array = np.any(array, axis=others)
        result &= Predicate((), {(*outer, axis_dim(axis)): part})
    dims = (*outer, *(axis_dim(axis) for axis in right))
    if not np.array_equal(np.broadcast_to(result.dense(dims), array.shape), array):
        raise NotSeparableError
    return result
