"""Floats to integers as by PTX's ``cvt``: clamped, and NaN by its own rule (ADR-0042).

Triton converts to 8 bits through 16, as PTX has no 8: clamped to 16 bits, then truncated.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


_LEAST, _MOST = np.minimum.reduce, np.maximum.reduce


def to_integers(wide: Array, result: np.dtype[Any], *, is_signed: bool) -> Array:
    """Return floats rounded towards zero, as numpy integers of the type ``result``.

    ``result`` may be signed for unsigned numbers: only the bits matter.
    """
    array = _in_range(wide, result, is_signed)
    return _clamped(wide, result, is_signed) if array is None else array


def _in_range(wide: Array, result: np.dtype[Any], is_signed: bool) -> Array | None:
    """Return floats as integers if all of them are in range, otherwise None.

    The processor's invalid flag shows whether one is out of range.
    """
    is_long = result.itemsize + (not is_signed) > 4
    try:
        with np.errstate(invalid="raise"):
            array: Array = wide.astype(np.int64 if is_long else np.int32)
    except FloatingPointError:
        return None
    if array.dtype == result and is_signed:
        return array
    least, most = _bounds(result, is_signed)
    if array.size and (_LEAST(array, None) < least or _MOST(array, None) > most):
        return None
    return array.astype(result)


def _clamped(wide: Array, result: np.dtype[Any], is_signed: bool) -> Array:
    limits = _limits(result, is_signed)
    # As a float, the largest integer rounds up to a power of two, which does not fit.
    above, below, missing = wide >= float(limits.max), wide <= float(limits.min), np.isnan(wide)
    inside = np.where(above | below | missing, wide.dtype.type(0), wide)
    array: Array = inside.astype(limits.dtype)
    array[above], array[below] = limits.max, limits.min
    # Source: PTX ISA, cvt: NaN becomes 0; with float64 or 64 bits, only the highest bit is set.
    if wide.dtype == np.float64 or limits.bits == 64:
        array[missing] = limits.min if is_signed else 1 << (limits.bits - 1)
    return array.astype(result)


def out_of_range(array: Array, result: np.dtype[Any], *, is_signed: bool) -> Array | None:
    """Return which floats, rounded towards zero, an integer type cannot hold; None if none."""
    wide = array.astype(np.float64)
    limits = np.iinfo(f"{'i' if is_signed else 'u'}{result.itemsize}")
    # NaN is in no range.
    inside = (wide > float(limits.min) - 1) & (wide < float(limits.max) + 1)
    # Where float64 cannot distinguish the smallest integer from the one below it.
    bad: Array = ~(inside | (wide == float(limits.min)))
    return bad if bad.any() else None


@functools.cache
def _bounds(result: np.dtype[Any], is_signed: bool) -> tuple[int, int]:
    limits = _limits(result, is_signed)
    return int(limits.min), int(limits.max)


def _limits(result: np.dtype[Any], is_signed: bool) -> np.iinfo[Any]:
    return np.iinfo(f"{'i' if is_signed else 'u'}{max(result.itemsize, 2)}")
