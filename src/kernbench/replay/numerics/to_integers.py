"""Floats as integers, as PTX's ``cvt`` converts them: clamped, and NaN by its own rule (ADR-0103).

Triton converts to 8 bits by way of 16, which PTX has and 8 not: clamped to 16, then cut off.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


_LEAST, _MOST = np.minimum.reduce, np.maximum.reduce


def to_integers(wide: Array, result: np.dtype[Any], *, is_signed: bool) -> Array:
    """Return float32 or float64 numbers, rounded towards zero, as numpy's integers ``result``.

    These may be signed where the numbers are unsigned ones: the bits count.
    """
    found = _in_range(wide, result, is_signed)
    return _clamped(wide, result, is_signed) if found is None else found


def _in_range(wide: Array, result: np.dtype[Any], is_signed: bool) -> Array | None:
    """Return floats as integers if all of them are in range, else None.

    The processor itself notes when one is not in the range of what it converts to.
    """
    is_long = result.itemsize + (not is_signed) > 4
    try:
        with np.errstate(invalid="raise"):
            found: Array = wide.astype(np.int64 if is_long else np.int32)
    except FloatingPointError:
        return None
    if found.dtype == result and is_signed:
        return found
    least, most = _bounds(result, is_signed)
    if found.size and (_LEAST(found, None) < least or _MOST(found, None) > most):
        return None
    return found.astype(result)


def _clamped(wide: Array, result: np.dtype[Any], is_signed: bool) -> Array:
    limits = _limits(result, is_signed)
    # The largest integer as a float is the power of two above it, which does not fit either.
    above, below, missing = wide >= float(limits.max), wide <= float(limits.min), np.isnan(wide)
    inside = np.where(above | below | missing, wide.dtype.type(0), wide)
    found: Array = inside.astype(limits.dtype)
    found[above], found[below] = limits.max, limits.min
    # Source: PTX ISA, cvt: NaN is zero, but where float64 or 64 bits take part the highest bit.
    if wide.dtype == np.float64 or limits.bits == 64:
        found[missing] = limits.min if is_signed else 1 << (limits.bits - 1)
    return found.astype(result)


def out_of_range(given: Array, result: np.dtype[Any], *, is_signed: bool) -> Array | None:
    """Return which floats no integer of a type holds, rounded towards zero; None: no one."""
    wide = given.astype(np.float64)
    limits = np.iinfo(f"{'i' if is_signed else 'u'}{result.itemsize}")
    # NaN is in no range.
    inside = (wide > float(limits.min) - 1) & (wide < float(limits.max) + 1)
    # Where float64 does not tell the least integer from the one below it.
    bad: Array = ~(inside | (wide == float(limits.min)))
    return bad if bad.any() else None


@functools.cache
def _bounds(result: np.dtype[Any], is_signed: bool) -> tuple[int, int]:
    limits = _limits(result, is_signed)
    return int(limits.min), int(limits.max)


def _limits(result: np.dtype[Any], is_signed: bool) -> np.iinfo[Any]:
    return np.iinfo(f"{'i' if is_signed else 'u'}{max(result.itemsize, 2)}")
