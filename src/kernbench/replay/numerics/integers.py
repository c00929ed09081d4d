"""Integer arithmetic: two's complement, signless as in TTIR."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def by_zero(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Return a division, or a remainder, with what NVIDIA's GPUs give where the divisor is zero.

    All bits are one; of 64-bit numbers only the low half of them where the dividend fits into 32
    bits, for which they divide these alone. Source: what PyTorch's ``test_binary_ufuncs.py``
    measures (``test_fmod_remainder_by_zero_integral``).
    """

    def divided(a: Array, b: Array) -> Array:
        result = function(a, b)
        if b.all():
            return result
        ones: Any = np.array(-1).astype(result.dtype)
        if result.dtype.itemsize == 8:
            ones = np.where((a >= 0) & (a <= _LOW_BITS), _LOW_BITS, -1).astype(result.dtype)
        return np.where(b == 0, ones, result)

    return divided


_LOW_BITS = 0xFFFFFFFF


def _div_c(a: Array, b: Array) -> Array:
    """Divide integers, rounding towards zero as C does."""
    quotient = np.floor_divide(a, b)
    inexact = (np.fmod(a, b) != 0) & ((a < 0) != (b < 0))
    quotient += inexact
    return quotient


def _ceil_div(a: Array, b: Array) -> Array:
    """Divide integers, rounding up."""
    quotient = np.floor_divide(a, b)
    quotient += np.remainder(a, b) != 0
    return quotient


div_c = by_zero(_div_c)
floor_div = by_zero(np.floor_divide)
ceil_div = by_zero(_ceil_div)
rem_c = by_zero(np.fmod)


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
