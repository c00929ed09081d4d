"""Integer arithmetic: two's complement, signless as in TTIR."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernbench.commands import Math
from kernbench.dtypes import Array
from kernbench.kernel_ir import AS_SIGNED, COMPARISONS, PREDICATES
from kernbench.replay.numerics.conversions import Function, as_unsigned, dtype_of


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


def _unordered(a: Array, b: Array) -> Array:
    return np.isnan(a) | np.isnan(b)


_FLOAT_COMPARE: dict[str, Function] = {
    "false": lambda a, b: np.zeros(np.broadcast_shapes(a.shape, b.shape), np.bool_),
    "oeq": np.equal,
    "ogt": np.greater,
    "oge": np.greater_equal,
    "olt": np.less,
    "ole": np.less_equal,
    "one": lambda a, b: (a < b) | (a > b),
    "ord": lambda a, b: ~_unordered(a, b),
    "ueq": lambda a, b: ~((a < b) | (a > b)),
    "ugt": lambda a, b: ~(a <= b),
    "uge": lambda a, b: ~(a < b),
    "ult": lambda a, b: ~(a >= b),
    "ule": lambda a, b: ~(a > b),
    "une": np.not_equal,
    "uno": _unordered,
    "true": lambda a, b: np.ones(np.broadcast_shapes(a.shape, b.shape), np.bool_),
}


def _predicate(command: Math, names: tuple[str, ...]) -> str:
    attr = command.attrs["predicate"]
    return names[attr] if isinstance(attr, int) else str(attr)


def build_integer_comparison(command: Math) -> Function:
    """Return the comparison of two integer arrays."""
    name = _predicate(command, PREDICATES)
    if name in AS_SIGNED:
        function = COMPARISONS[AS_SIGNED[name]]
        return lambda a, b: function(as_unsigned(a), as_unsigned(b))
    compare = COMPARISONS[name]
    if dtype_of(command.inputs[0]).bits == 1 and name not in ("eq", "ne"):
        # A true i1 is -1 as a signed number.
        return lambda a, b: compare(b, a)
    return compare


def build_float_comparison(command: Math) -> Function:
    """Return the comparison of two floating-point arrays; NaN compares as the predicate says."""
    return _FLOAT_COMPARE[_predicate(command, tuple(_FLOAT_COMPARE))]
