"""Arithmetic that rounds once, in any direction, against Python's fractions."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kernbench.replay.numerics.exact import OPERATIONS, fma, in_direction, reciprocal_square_root

Array = npt.NDArray[Any]
Floats = type[np.float32] | type[np.float64]

COUNT = 600
FORMATS: dict[Floats, tuple[int, int]] = {np.float32: (24, -149), np.float64: (53, -1074)}


def rounded(exact: Fraction, dtype: Floats, mode: str, *, zero_is_negative: bool) -> Any:
    """Round a fraction to the float's precision, as IEEE 754 defines each direction."""
    if exact == 0:
        return dtype(-0.0 if zero_is_negative else 0.0)
    precision, smallest = FORMATS[dtype]
    size, negative = abs(exact), exact < 0
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    unit = Fraction(2) ** max(exponent - precision + 1, smallest)
    kept, rest = divmod(size, unit)
    if mode == "odd":
        kept |= rest != 0
    elif mode == "rn":
        kept += rest * 2 > unit or (rest * 2 == unit and kept % 2 == 1)
    else:
        kept += rest != 0 and {"rz": False, "ru": not negative, "rd": negative}[mode]
    largest = float(np.finfo(dtype).max)
    goes_beyond = {"rn": True, "ru": not negative, "rd": negative}.get(mode, False)
    result = kept * unit
    number = (
        float(result) if result <= Fraction(largest) else (math.inf if goes_beyond else largest)
    )
    return dtype(-number if negative else number)


def operands(dtype: Floats) -> tuple[Array, Array, Array]:
    """Return any bits, small whole numbers and fractions, edges, and sums that cancel."""
    generator = np.random.default_rng(5)
    info = np.finfo(dtype)
    edges: list[Any] = [
        0.0,
        -0.0,
        1.0,
        info.max,
        -info.max,
        info.tiny,
        info.smallest_subnormal,
        1 + info.eps,
    ]

    def draw() -> Array:
        bits = generator.bytes(COUNT * info.dtype.itemsize)
        x = np.frombuffer(bits, dtype).copy()
        part = COUNT // 3
        x[:part] = generator.integers(-4096, 4096, part) * 2.0 ** generator.integers(-12, 12, part)
        x[part : part + 64] = generator.choice(edges, 64)
        generator.shuffle(x)
        x[~np.isfinite(x)] = 3
        return x

    a, b, c = draw(), draw(), draw()
    with np.errstate(all="ignore"):
        c[:200] = -(a[:200] * b[:200])
        c[100:200] = np.nextafter(c[100:200], dtype(1))
    c[~np.isfinite(c)] = 3
    return a, b, c


def root(x: Fraction) -> Fraction:
    """Return the square root, or a fraction so near that every direction finds the same float."""
    shift = 2400
    whole = math.isqrt((x.numerator << shift) // x.denominator)
    fraction = Fraction(whole, 1 << shift // 2)
    return fraction if fraction * fraction == x else fraction + Fraction(1, 1 << shift // 2 + 2)


EXACT: dict[str, Callable[..., Fraction]] = {
    "add": lambda a, b, c: a + b,
    "sub": lambda a, b, c: a - b,
    "mul": lambda a, b, c: a * b,
    "fma": lambda a, b, c: a * b + c,
    "div": lambda a, b, c: a / b,
    "rcp": lambda a, b, c: 1 / a,
    "sqrt": lambda a, b, c: root(abs(a)),
}
COUNTS = {"rcp": 1, "sqrt": 1, "fma": 3}


def zero_is_negative(name: str, mode: str, a: Any, b: Any, c: Any) -> bool:
    """Say the sign of a zero: a product's own, and of a sum of two signs minus only downwards."""
    first, second, third = (bool(np.signbit(item)) for item in (a, b, c))
    if name in ("mul", "div"):
        return first != second
    if name in ("rcp", "sqrt"):
        return first and name == "rcp"
    terms = {"add": (first, second), "sub": (first, not second), "fma": (first != second, third)}
    one, other = terms[name]
    return one if one == other else mode == "rd"


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("mode", ["rn", "rz", "ru", "rd", "odd"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_results_are_the_exact_ones_rounded_once(name: str, mode: str, dtype: Floats) -> None:
    a, b, c = operands(dtype)
    if name == "sqrt":
        a = np.abs(a)
    with np.errstate(all="ignore"):
        result = in_direction(name, mode)(*(a, b, c)[: COUNTS.get(name, 2)])
    assert result.dtype == dtype
    divisor = {"div": b, "rcp": a}.get(name)
    for index in range(COUNT):
        if divisor is not None and divisor[index] == 0:
            continue
        exact = EXACT[name](*(Fraction(float(x[index])) for x in (a, b, c)))
        sign = zero_is_negative(name, mode, a[index], b[index], c[index])
        expected = rounded(exact, dtype, mode, zero_is_negative=sign)
        said = (a[index], b[index], c[index], result[index], expected)
        assert result[index].tobytes() == expected.tobytes(), said


@pytest.mark.parametrize("mode", ["rn", "rz", "ru", "rd"])
def test_what_is_not_finite_is_as_numpy_has_it(mode: str) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0, -0.0, 1, -1], np.float32)
    a, b = (item.ravel() for item in np.meshgrid(x, x))
    with np.errstate(all="ignore"):
        for name, function in (("div", np.divide), ("mul", np.multiply), ("sqrt", np.sqrt)):
            value = (a,) if name == "sqrt" else (a, b)
            result, expected = in_direction(name, mode)(*value), function(*value)
            np.testing.assert_array_equal(result, expected)
            np.testing.assert_array_equal(
                np.signbit(result[result == 0]), np.signbit(expected[expected == 0])
            )
        infinite = ~np.isfinite(a) | ~np.isfinite(b)
        result = in_direction("add", mode)(a[infinite], b[infinite])
        np.testing.assert_array_equal(result, a[infinite] + b[infinite])


def test_float32_fma_does_not_round_twice() -> None:
    # The sum lies so little above a middle between two float32 that float64 shows the middle.
    a, b = np.array([1 + 2**-12], np.float32), np.array([1 - 2**-12], np.float32)
    c = np.array([2.0**30], np.float32)
    small = np.array([1 + 2**-23], np.float32)
    exact = Fraction(float(small[0])) * Fraction(2) ** 6 + Fraction(2) ** 30
    for x, y, z in ((a, b, c), (small, np.array([64], np.float32), c), (-a, b, -c), (c, c, a)):
        exact = Fraction(float(x[0])) * Fraction(float(y[0])) + Fraction(float(z[0]))
        expected = rounded(exact, np.float32, "rn", zero_is_negative=False)
        assert fma(x, y, z)[0] == expected


def test_reciprocal_square_roots_are_to_nearest() -> None:
    generator = np.random.default_rng(6)
    x = np.abs(np.frombuffer(generator.bytes(8000), np.float32))
    x = x[np.isfinite(x) & (x > 0)]
    for number, result in zip(x, reciprocal_square_root(x), strict=True):
        exact = 1 / root(Fraction(float(number)))
        assert result == rounded(exact, np.float32, "rn", zero_is_negative=False)
    with np.errstate(all="ignore"):
        edges = reciprocal_square_root(np.array([0, -0.0, np.inf, -1, np.nan], np.float32))
    np.testing.assert_array_equal(edges, np.array([np.inf, -np.inf, 0, np.nan, np.nan], np.float32))
