"""Bessel functions against mpmath, held to the errors that CUDA documents."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import pytest

from kernbench.replay.numerics.libdevice.bessel import _ZEROS
from kernbench.replay.numerics.libdevice.functions import find_function

Array = npt.NDArray[Any]
Floats = type[np.float32] | type[np.float64]

# The largest errors in units of the last place below 8, and absolute from there on.
# Source: CUDA C++ Programming Guide, "Mathematical Functions", tables of maximum errors.
BOUNDS: dict[str, tuple[int, int]] = {"j0": (9, 7), "j1": (9, 10), "y0": (9, 7), "y1": (9, 10)}
FAR: dict[Floats, float] = {np.float32: 2.2e-6, np.float64: 5e-12}
EXACT = {"j": mpmath.besselj, "y": mpmath.bessely, "i": mpmath.besseli}


def call(name: str, dtype: Floats, *arrays: Any) -> Array:
    suffix = "f" if dtype == np.float32 else ""
    result: Array = find_function(f"__nv_{name}{suffix}", np.dtype(dtype), "here")(*arrays)
    assert result.dtype == dtype
    return result


def exact(kind: str, order: int, x: Any) -> Any:
    with mpmath.workdps(40):
        return EXACT[kind](order, mpmath.mpf(float(x)))


def error_in_ulps(value: Any, expected: Any, dtype: Floats) -> float:
    with mpmath.workdps(40):
        return float(
            abs(mpmath.mpf(float(value)) - expected) / float(np.spacing(dtype(abs(expected))))
        )


def numbers_below_8(dtype: Floats) -> Array:
    generator = np.random.default_rng(7)
    zeros = [zero for item in _ZEROS.values() for zero, _, _ in item]
    beside = [zero + step for zero in zeros for step in (1e-9, 0.0099, -0.0101)]
    some = generator.uniform(0, 8, 60), 10 ** generator.uniform(-30, 0, 20), [1e-300, 1e-11, 8]
    x = np.array([*zeros, *beside, *np.concatenate(some)]).astype(dtype)
    numbers: Array = x[np.greater(x, 0)]
    return numbers


@pytest.mark.parametrize("dtype", FAR)
@pytest.mark.parametrize("name", BOUNDS)
def test_errors_are_within_those_of_cuda(name: str, dtype: Floats) -> None:
    kind, order = name[0], int(name[1])
    bound = BOUNDS[name][dtype is np.float64]
    x = numbers_below_8(dtype)
    for number, result in zip(x, call(name, dtype, x), strict=True):
        assert error_in_ulps(result, exact(kind, order, number), dtype) <= bound, number
    far = np.array([8.5, 19.99, 20.01, 33.3, 1e3, 12345.678, 1e9]).astype(dtype)
    for number, answer in zip(far, call(name, dtype, far), strict=True):
        assert abs(float(answer - exact(kind, order, number))) <= FAR[dtype], number


@pytest.mark.parametrize("dtype", FAR)
@pytest.mark.parametrize("order", [0, 1])
def test_modified_functions_are_within_cudas_six_units(order: int, dtype: Floats) -> None:
    last = 85.0 if dtype == np.float32 else 700.0
    x = np.array([1e-30, 0.1, 1, 3, 7.7, 15, 29.9, 30.1, 60, last]).astype(dtype)
    for number, result in zip(x, call(f"cyl_bessel_i{order}", dtype, x), strict=True):
        assert error_in_ulps(result, exact("i", order, number), dtype) <= 6, number


@pytest.mark.parametrize("order", [2, 5, 64, 128])
def test_other_orders(order: int) -> None:
    x = np.array([1e-12, 0.3, 3, 8.1, 19, 21, 63.9, 64.1, 128, 500])
    orders = np.full(x.shape, order, np.int32)
    first, second = (call(name, np.float64, orders, x) for name in ("jn", "yn"))
    for number, j, y in zip(x, first, second, strict=True):
        assert abs(float(j - exact("j", order, number))) <= FAR[np.float64], number
        expected = exact("y", order, number)
        assert y == (
            pytest.approx(float(expected), rel=1e-13) if abs(expected) < 1e308 else -np.inf
        )


def test_orders_of_one_tile_may_differ() -> None:
    orders, x = np.arange(5, dtype=np.int32), np.array([2.5, 25.0, 1e-11, 0.5, 4.0])
    result = call("jn", np.float64, orders, x)
    expected = [float(exact("j", int(order), at)) for order, at in zip(orders, x, strict=True)]
    np.testing.assert_allclose(result, expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize("dtype", FAR)
def test_edges(dtype: Floats) -> None:
    x = np.array([0, np.inf, -np.inf, np.nan], dtype)
    with np.errstate(all="ignore"):
        for name, expected in {
            "j0": [1, 0, 0, np.nan],
            "j1": [0, 0, 0, np.nan],
            "y0": [-np.inf, 0, np.nan, np.nan],
            "y1": [-np.inf, 0, np.nan, np.nan],
            "cyl_bessel_i0": [1, np.inf, np.inf, np.nan],
            "cyl_bessel_i1": [0, np.inf, -np.inf, np.nan],
        }.items():
            np.testing.assert_array_equal(call(name, dtype, x), np.array(expected, dtype), name)
        orders = np.array([-1, 3, 2_000_000_000, 3], np.int32)
        at = np.array([1, -2, 1e-5, 0], dtype)
        first, second = call("jn", dtype, orders, at), call("yn", dtype, orders, at)
    np.testing.assert_allclose(first, [np.nan, -float(exact("j", 3, 2)), 0, 0], rtol=1e-6)
    np.testing.assert_array_equal(second, [np.nan, np.nan, -np.inf, -np.inf])
