"""Sums, products, quotients and roots of floats, rounded once in any direction.

An exact result is held as a float, a float remainder, and the sign of what remains after that, all
by error-free transformations; it is then rounded as a 62-bit integer.
Directions are named as in CUDA: ``rn`` to nearest (ties to even), ``rz`` towards zero, ``ru`` up,
``rd`` down; ``odd`` sets the last bit of inexact results, so that they can be rounded again.
Source: Dekker, "A floating-point technique for extending the available precision", 1971; Boldo and
Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd",
2008.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kernbench.dtypes import Array

FLOAT32 = np.dtype(np.float32)

# By item size: bits of the mantissa, and the exponent of the smallest number.
_FORMATS = {4: (24, -149), 8: (53, -1074)}
_BITS = 62
_SPLIT = 2.0**27 + 1
_FAR = 200
"""The difference of exponents beyond which the smaller term only affects the direction."""


@dataclass(frozen=True)
class _Exact:
    """The numbers ``(high + low + tail) * 2**exponent``; of ``tail`` only the sign counts."""

    high: Array
    low: Array
    tail: Array
    exponent: Array


def fma(a: Array, b: Array, c: Array, mode: str = "rn") -> Array:
    """Return ``a * b + c``, rounded once; all of one type, float32 or float64."""
    if mode == "rn" and a.dtype == FLOAT32:
        return _fma_of_float32(a, b, c)
    dtype = a.dtype
    a, b, c = (array.astype(np.float64) for array in (a, b, c))
    plain = a * b + c
    is_finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    a, b, c = (np.where(is_finite, array, 0) for array in (a, b, c))
    exact = _product_and_sum(a, b, c)
    result = _round(exact, dtype, mode)
    negative = np.signbit(a) ^ np.signbit(b)
    differ = negative != np.signbit(c)
    zero = np.where(np.where(differ, mode == "rd", negative), -0.0, 0.0)
    result = np.where(exact.high == 0, zero.astype(dtype), result)
    return np.asarray(np.where(is_finite, result, plain.astype(dtype)))


def fma_to_odd(a: Array, b: Array, c: Array) -> Array:
    """Return ``a * b + c`` of float32, rounded to odd, to be rounded again to a narrower type."""
    return fma(a, b, c, "odd") if a.dtype != FLOAT32 else _float64_to_odd(_sum_to_odd(a, b, c))


def add(a: Array, b: Array, mode: str) -> Array:
    """Return ``a + b`` rounded in the direction of ``mode``."""
    return fma(a, np.ones_like(a), b, mode)


def subtract(a: Array, b: Array, mode: str) -> Array:
    """Return ``a - b`` rounded in the direction of ``mode``."""
    return fma(a, np.ones_like(a), -b, mode)


def multiply(a: Array, b: Array, mode: str) -> Array:
    """Return ``a * b`` rounded in the direction of ``mode``."""
    # Adding a zero with the product's sign changes no sum, nor the sign of a zero sum.
    negative = np.signbit(a) ^ np.signbit(b)
    return fma(a, b, np.where(negative, -0.0, 0.0).astype(a.dtype), mode)


def divide(a: Array, b: Array, mode: str) -> Array:
    """Return ``a / b`` rounded in the direction of ``mode``."""
    plain = np.asarray(a / b)
    is_ordinary = np.isfinite(a) & np.isfinite(b) & (a != 0) & (b != 0)
    top, top_exponent = _parts(np.where(is_ordinary, a, 1))
    bottom, bottom_exponent = _parts(np.where(is_ordinary, b, 1))
    high = top / bottom
    rest = _less_product(top, high, bottom)
    low = rest / bottom
    # What remains has the sign of the remainder's own remainder divided by the divisor.
    tail = _less_product(rest, low, bottom) * bottom
    array = _round(_Exact(high, low, tail, top_exponent - bottom_exponent), plain.dtype, mode)
    return np.asarray(np.where(is_ordinary, array, plain))


def reciprocal(x: Array, mode: str) -> Array:
    """Return ``1 / x`` rounded in the direction of ``mode``."""
    return divide(np.ones_like(x), x, mode)


def square_root(x: Array, mode: str) -> Array:
    """Return the square root rounded in the direction of ``mode``."""
    plain = np.asarray(np.sqrt(x))
    is_ordinary = np.isfinite(x) & (x > 0)
    part, exponent = _parts(np.where(is_ordinary, x, 1))
    is_odd = exponent % 2 == 1
    part = np.where(is_odd, 2 * part, part)
    high = np.sqrt(part)
    rest = _less_product(part, high, high)
    low = rest / (2 * high)
    # (high + low)**2 is slightly more than high**2 + 2 * high * low.
    tail = _less_product(rest, 2 * high, low) - low * low
    exact = _Exact(high, low, tail, (exponent - is_odd) // 2)
    return np.asarray(np.where(is_ordinary, _round(exact, plain.dtype, mode), plain))


def reciprocal_square_root(x: Array) -> Array:
    """Return one over the square root of float32, to nearest."""
    wide = x.astype(np.float64)
    square_root = (1 / np.sqrt(wide)).astype(np.float32)
    for towards in (np.float32(np.inf), np.float32(0)):
        other = np.nextafter(square_root, towards)
        middle = (square_root.astype(np.float64) + other) / 2
        # The square of 25 bits is exact, and x times it is 1 if the root is a midpoint.
        left = _less_product(np.ones_like(wide), wide, middle * middle)
        is_beyond = left > 0 if towards else left < 0
        square_root = np.where(
            is_beyond & np.isfinite(other) & (x > 0) & np.isfinite(x), other, square_root
        )
    return np.asarray(square_root)


def _fma_of_float32(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c`` to nearest: in float64, recomputed exactly where that would round twice."""
    wide = np.asarray(a.astype(np.float64) * b)
    wide = np.add(wide, c, out=wide if c.shape == wide.shape else None)
    fma = np.asarray(wide.astype(np.float32))
    # Exactly half of float32's last bit: what float64 dropped decides. Subnormal numbers have
    # fewer bits, but zero is exact.
    spare = np.bitwise_and(wide.view(np.int64), 0x1FFFFFFF)
    doubtful = np.asarray(spare == 0x10000000)
    size = np.abs(wide, out=spare.view(np.float64))
    doubtful |= (size < 2.0**-125) & (size > 0)
    if doubtful.any():
        chosen = (np.broadcast_to(array, wide.shape)[doubtful] for array in (a, b, c))
        fma[doubtful] = _sum_to_odd(*chosen).astype(np.float32)
    return fma


def _sum_to_odd(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c`` of float32 as float64, with an odd last bit if it is inexact."""
    total, error = _two_sum(a.astype(np.float64) * b, c.astype(np.float64))
    return _made_odd(total, error, np.int64)


def _float64_to_odd(x: Array) -> Array:
    float64 = x.astype(np.float32)
    float64 = np.where(
        np.isinf(float64) & np.isfinite(x), np.nextafter(float64, np.float32(0)), float64
    )
    return _made_odd(float64, x - float64, np.int32)


def _made_odd(array: Array, error: Array, integers: type) -> Array:
    inexact = (error != 0) & np.isfinite(error) & (array.view(integers) & 1 == 0)
    towards = np.where(error > 0, np.inf, -np.inf).astype(array.dtype)
    return np.asarray(np.where(inexact, np.nextafter(array, towards), array))


def _parts(x: Array) -> tuple[Array, Array]:
    """Return mantissas in [0.5, 1) with the sign, as float64, and exponents."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    return mantissa, exponent.astype(np.int64)


def _product_and_sum(a: Array, b: Array, c: Array) -> _Exact:
    (x, x_exponent), (y, y_exponent), (z, z_exponent) = _parts(a), _parts(b), _parts(c)
    is_nothing = (a == 0) | (b == 0)
    exponent = x_exponent + y_exponent
    apart = np.where(is_nothing | (c == 0), 0, z_exponent - exponent)
    near = np.clip(apart, -_FAR, _FAR).astype(np.int32)
    exponent = np.where(is_nothing | (apart > _FAR), z_exponent - near, exponent)
    high, low = _two_product(x, y)
    first, first_error = _two_sum(np.ldexp(z, near), low)
    second, second_error = _two_sum(high, first)
    rest, tail = _two_sum(second_error, first_error)
    return _Exact(*_two_sum(second, rest), tail, exponent)


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def _halves(x: Array) -> tuple[Array, Array]:
    scaled = _SPLIT * x
    high = scaled - (scaled - x)
    return high, x - high


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _less_product(x: Array, a: Array, b: Array) -> Array:
    """Return ``x - a * b`` for a product that is near ``x``."""
    product, error = _two_product(a, b)
    return (x - product) - error


def _round(exact: _Exact, dtype: np.dtype[Any], mode: str) -> Array:
    """Return the numbers in ``dtype``; zeros have the sign of ``high``."""
    precision, smallest = _FORMATS[dtype.itemsize]
    negative = np.signbit(exact.high)
    whole, exponent = _whole(exact)
    bits = 61 + (whole >= 1 << 61).astype(np.int64) + (whole >= 1 << 62)
    drop = np.maximum(bits - precision, smallest - exponent)
    whole = np.where(drop > 63, np.minimum(whole, 1), whole).astype(np.uint64)
    by = np.minimum(drop, 63).astype(np.uint64)
    kept, rest = whole >> by, whole & ((np.uint64(1) << by) - np.uint64(1))
    half = np.uint64(1) << (by - np.uint64(1))
    if mode == "odd":
        kept |= rest != 0
    elif mode == "rn":
        kept += (rest > half) | ((rest == half) & (kept & np.uint64(1) == 1))
    elif mode != "rz":
        kept += (rest != 0) & (negative == (mode == "rd"))
    power = np.clip(exponent + np.minimum(drop, 63), -5000, 5000).astype(np.int32)
    # If only a direction is left of the magnitude, 1 stands for the smallest number.
    power = np.where(drop > 63, smallest, power)
    result = np.ldexp(kept.astype(np.float64), power).astype(dtype)
    if mode != "rn":
        stays = (mode not in ("ru", "rd")) | (negative == (mode == "ru"))
        result = np.where(np.isinf(result) & stays, np.finfo(dtype).max, result)
    return np.asarray(np.where(negative, -result, result).astype(dtype))


def _whole(exact: _Exact) -> tuple[Array, Array]:
    """Return magnitudes as 62-bit integers, odd where inexact, and their exponents."""
    sign = np.where(np.signbit(exact.high), -1.0, 1.0)
    mantissa, exponent = np.frexp(np.abs(exact.high))
    rest = np.ldexp(exact.low * sign, _BITS - exponent)
    below = np.floor(rest)
    whole = np.ldexp(mantissa, _BITS).astype(np.int64) + below.astype(np.int64)
    is_between = rest != below
    whole -= ~is_between & (exact.tail * sign < 0)
    whole |= is_between | (exact.tail != 0)
    return whole, exact.exponent + exponent - _BITS


OPERATIONS: dict[str, Callable[..., Array]] = {
    "add": add,
    "sub": subtract,
    "mul": multiply,
    "div": divide,
    "rcp": reciprocal,
    "sqrt": square_root,
    "fma": fma,
}
"""Operations by CUDA's names."""


def in_direction(name: str, mode: str) -> Callable[..., Array]:
    """Return the operation ``name`` on arrays, rounded in the direction of ``mode``."""
    return partial(OPERATIONS[name], mode=mode)
