"""Bessel functions of integer order, to the last bits of float64.

They are computed in the machine's extended floats: below ``_FAR`` by Miller's backward recurrence
and Neumann's series, above by Hankel's asymptotic series, and near a zero by the Taylor series
there, since near a zero the other series lose most of their bits.
Source: Abramowitz and Stegun, "Handbook of Mathematical Functions", 9.1.1, 9.1.27, 9.1.88, 9.1.89,
9.2.5 to 9.2.10, 9.6.10, 9.7.1 and 9.12.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kernbench.dtypes import Array

_WIDE = np.longdouble
_PI = _WIDE("3.14159265358979323846264338327950288")
_EULER = _WIDE("0.577215664901532860606512090082402431")
_FAR = 20.0
"""From where on Hankel's series, whose smallest term is ``exp(-2 * x)``, is exact to all bits."""
_FAR_GROWING = 30.0
_TERMS = 40
_SMALL = 1e-10
"""Below this, the first term of every series has all bits of float64."""
_BESIDE = 0.01
_TAYLOR_TERMS = 12

# By function and order: zeros below 8 as a float and its remainder, and the slopes there.
_ZEROS = {
    ("j", 0): (
        (2.404825557695773, -1.176691651530894e-16, -0.5191474972894667),
        (5.520078110286311, 8.088597146146722e-17, 0.34026480655836816),
    ),
    ("j", 1): (
        (3.8317059702075125, -1.5269184090088067e-16, -0.402759395702553),
        (7.015586669815619, -9.414165653410389e-17, 0.30011575252613254),
    ),
    ("y", 0): (
        (0.8935769662791675, 2.6596231539720385e-17, 0.8794208024971948),
        (3.957678419314858, -1.0764340697562706e-16, -0.40254267177502423),
        (7.086051060301773, -8.835285723085408e-17, 0.3000976149104752),
    ),
    ("y", 1): (
        (2.197141326031017, -4.8259835876454966e-17, 0.5207864124022675),
        (5.429681040794135, 4.162514026670377e-16, -0.3403180455234406),
    ),
}


@dataclass(frozen=True)
class _Pairs:
    """Both functions of orders 0 and 1, and the first one of the requested order."""

    j: tuple[Array, Array]
    y: tuple[Array, Array]
    j_of_order: Array


def first_kind(order: Array, x: Array) -> Array:
    """Return ``J`` of integer orders, at least 0, like CUDA's ``jn``; NaN of negative orders."""
    return _of_magnitude(_first_kind, order, x, odd_orders_are_odd=True)


def second_kind(order: Array, x: Array) -> Array:
    """Return ``Y`` of integer orders, at least 0, like CUDA's ``yn``; NaN of negative numbers."""
    magnitude = _of_magnitude(_second_kind, order, x)
    return np.asarray(np.where(x < 0, np.nan, np.where(x == 0, -np.inf, magnitude)).astype(x.dtype))


def modified_first_kind(order: int, x: Array) -> Array:
    """Return ``I`` of order 0 or 1, like CUDA's ``cyl_bessel_i0`` and ``cyl_bessel_i1``."""
    orders = np.full(x.shape, order)
    return _of_magnitude(_growing, orders, x, at_infinity=np.inf, odd_orders_are_odd=True)


def _of_magnitude(
    function: Callable[[Array, Array], Array],
    order: Array,
    x: Array,
    *,
    at_infinity: float = 0.0,
    odd_orders_are_odd: bool = False,
) -> Array:
    """Return a function of finite positive numbers at ``abs(x)``, and its limits elsewhere."""
    order, x = np.broadcast_arrays(order.astype(np.int64), x)
    result = np.full(x.shape, np.nan, _WIDE)
    wide = np.abs(x.astype(_WIDE))
    is_ordinary = np.isfinite(x) & (order >= 0)
    if is_ordinary.any():
        result[is_ordinary] = function(order[is_ordinary], wide[is_ordinary])
    result[np.isinf(x) & (order >= 0)] = at_infinity
    if odd_orders_are_odd:
        result = np.where(np.signbit(x) & (order % 2 == 1), -result, result)
    return np.asarray(result.astype(x.dtype))


def _first_kind(order: Array, x: Array) -> Array:
    first_kind = np.empty_like(x)
    # abs(J) is at most (x / 2)**n / n!, and n! at least (n / e)**n.
    some = np.maximum(order, 1)
    exponent = some * (np.log(np.maximum(x, _WIDE(1e-4000)) / 2) - np.log(some) + 1)
    vanishes = (exponent < -800) & (order > 0) & (x >= _SMALL)
    first_kind[vanishes] = 0
    upward = (x >= _FAR) & (order <= x) & ~vanishes
    first, second = _hankel(0, x[upward])[0], _hankel(1, x[upward])[0]
    first_kind[upward] = _recur_upward(order[upward], x[upward], first, second)
    small = x < _SMALL
    first_kind[small] = _power(order[small], x[small])
    others = ~(vanishes | upward | small)
    if others.any():
        at, orders = x[others], order[others]
        pairs = _recur_downward(orders, at)
        chosen = np.where(orders == 0, pairs.j[0], pairs.j_of_order)
        for index in (0, 1):
            chosen = np.where(orders == index, _beside_zeros("j", index, at, chosen), chosen)
        first_kind[others] = chosen
    return first_kind


def _second_kind(order: Array, x: Array) -> Array:
    first, second = _second_kinds(x)
    return _recur_upward(order, x, first, second)


def _second_kinds(x: Array) -> tuple[Array, Array]:
    first, second = np.empty_like(x), np.empty_like(x)
    small, far = x < _SMALL, x >= _FAR
    at = x[small]
    first[small], second[small] = 2 / _PI * (np.log(at / 2) + _EULER), -2 / (_PI * at)
    first[far], second[far] = _hankel(0, x[far])[1], _hankel(1, x[far])[1]
    others = ~(small | far)
    if others.any():
        at = x[others]
        pairs = _recur_downward(np.zeros(at.shape, np.int64), at)
        first[others] = _beside_zeros("y", 0, at, pairs.y[0])
        second[others] = _beside_zeros("y", 1, at, pairs.y[1])
    return first, second


def _recur_upward(order: Array, x: Array, first: Array, second: Array) -> Array:
    """Return the functions of an order from those of orders 0 and 1; overflows stay infinite."""
    recur_upward = np.where(order == 0, first, second)
    below, here = first, second
    for index in range(1, int(order.max(initial=0))):
        if np.isinf(here).all():
            return np.where(order > index, here, recur_upward)
        following = np.where(np.isinf(here), here, 2 * index / x * here - below)
        below, here = here, following
        recur_upward = np.where(order == index + 1, here, recur_upward)
    return recur_upward


def _recur_downward(order: Array, x: Array) -> _Pairs:
    """Return all by a downward recurrence from an order so high that ``J`` vanishes there."""
    largest = max(float(order.max()), float(x.max()))
    start = int(largest + 80 + 15 * largest ** (1 / 3)) // 2 * 2
    above, here = np.zeros_like(x), np.ones_like(x)
    # The series of 1, Neumann's two series, and the requested order; all to one unknown scale.
    sums = np.zeros((4, *x.shape), _WIDE)
    for index in range(start, 0, -1):
        half, is_odd = divmod(index, 2)
        sign = -1 if half % 2 else 1
        if not is_odd:
            sums[0] += 2 * here
            sums[1] += sign * here / half
        elif half:
            sums[2] += sign * index * here / (half * (half + 1))
        sums[3] = np.where(order == index, here, sums[3])
        above, here = here, 2 * index / x * here - above
        if index % 16 == 0:
            scale = np.where(np.abs(here) > 1e200, 1 / np.abs(here), _WIDE(1))
            above, here, sums = above * scale, here * scale, sums * scale
    unit = here + sums[0]
    j0, j1, for_y0, for_y1, asked = (item / unit for item in (here, above, *sums[1:]))
    logarithm = np.log(x / 2) + _EULER
    y0 = 2 / _PI * (logarithm * j0 - 2 * for_y0)
    y1 = 2 / _PI * ((logarithm - 1) * j1 - j0 / x - for_y1)
    return _Pairs((j0, j1), (y0, y1), asked)


def _beside_zeros(kind: str, order: int, x: Array, values: Array) -> Array:
    """Return the values, replaced near the function's zeros by the Taylor series there."""
    for high, low, slope in _ZEROS[kind, order]:
        distance = (x - _WIDE(high)) - _WIDE(low)
        beside = np.abs(distance) < _BESIDE
        if beside.any():
            values = np.where(beside, _taylor(order, high, slope, distance), values)
    return values


def _taylor(order: int, zero: float, slope: float, distance: Array) -> Array:
    """Sum the solution of Bessel's equation that has this zero and slope."""
    z = _WIDE(zero)
    terms = [_WIDE(0), _WIDE(0), _WIDE(0), _WIDE(slope)]  # orders -2 to 1
    for index in range(_TAYLOR_TERMS):
        two_before, before, here, after = terms[-4:]
        left = z * (index + 1) * (2 * index + 1) * after
        left += (index * index - order * order + z * z) * here + 2 * z * before + two_before
        terms.append(-left / (z * z * (index + 1) * (index + 2)))
    total = np.zeros_like(distance)
    for term in reversed(terms[2:]):
        total = total * distance + term
    return total


def _hankel_terms(order: int, x: Array) -> list[Array]:
    terms = [np.ones_like(x)]
    for index in range(1, _TERMS):
        terms.append(terms[-1] * (4 * order**2 - (2 * index - 1) ** 2) / (index * 8 * x))
    return terms


def _hankel(order: int, x: Array) -> tuple[Array, Array]:
    """Return ``J`` and ``Y`` of order 0 or 1 where ``x`` is large."""
    terms = _hankel_terms(order, x)
    signs = [1, 1, -1, -1] * (_TERMS // 4)
    signed = [sign * term for sign, term in zip(signs, terms, strict=True)]
    p, q = sum(signed[0::2], np.zeros_like(x)), sum(signed[1::2], np.zeros_like(x))
    sine, cosine = np.sin(x), np.cos(x)
    # Times the square root of 2: x less pi/4, and less another pi/2 for order 1.
    turned = (cosine + sine, sine - cosine) if order == 0 else (sine - cosine, -sine - cosine)
    scale = 1 / np.sqrt(_PI * x)
    return scale * (p * turned[0] - q * turned[1]), scale * (p * turned[1] + q * turned[0])


def _power(order: Array, x: Array) -> Array:
    """Return ``J`` of tiny numbers: the first term of its power series."""
    power = np.ones_like(x)
    # From order 64 on, the term is zero in float64.
    for index in range(1, min(int(order.max(initial=0)), 64) + 1):
        power = np.where(order >= index, power * (x / 2) / index, power)
    return power


def _growing(order: Array, x: Array) -> Array:
    of_one = order == 1
    term = np.where(of_one, x / 2, _WIDE(1))
    array = term.copy()
    near = np.minimum(x, _FAR_GROWING)
    for index in range(1, 2 * _TERMS):
        term = term * (near / 2) ** 2 / (index * (index + order))
        array = array + term
    far = x >= _FAR_GROWING
    for index in (0, 1):
        chosen = far & (order == index)
        at = x[chosen]
        signs = [1, -1] * (_TERMS // 2)
        terms = _hankel_terms(index, at)
        total = sum((s * term for s, term in zip(signs, terms, strict=True)), np.zeros_like(at))
        array[chosen] = np.exp(at) / np.sqrt(2 * _PI * at) * total
    return array
