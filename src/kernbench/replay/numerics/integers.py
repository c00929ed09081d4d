"""Integer arithmetic: two's complement, signless as in TTIR."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def div_c(a: Array, b: Array) -> Array:
    """Divide integers, rounding towards zero as C does."""
    quotient = np.floor_divide(a, b)
    inexact = (np.fmod(a, b) != 0) & ((a < 0) != (b < 0))
    quotient += inexact
    return quotient


def ceil_div(a: Array, b: Array) -> Array:
    """Divide integers, rounding up."""
    quotient = np.floor_divide(a, b)
    quotient += np.remainder(a, b) != 0
    return quotient


def add_int(a: Array, b: Array) -> Array:
    """Add integers; i1 modulo 2."""
    return a ^ b if a.dtype == np.bool_ else a + b


def mul_high(a: Array, b: Array) -> Array:
    """Return the upper half of the product of two arrays of unsigned integers."""
    if a.dtype.itemsize == 4:
        return ((a.astype(np.uint64) * b) >> np.uint64(32)).astype(np.uint32)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a_low, a_high, b_low, b_high = a & low, a >> half, b & low, b >> half
    middle = a_high * b_low + ((a_low * b_low) >> half)
    other = a_low * b_high + (middle & low)
    result: Array = a_high * b_high + (middle >> half) + (other >> half)
    return result
