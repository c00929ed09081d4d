"""CUDA's math library by symbol, against Python's integers, fractions, scipy and inverses."""

from __future__ import annotations

import ast
import inspect
import math
import re
import struct
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from triton.language.extra.cuda import libdevice

from kernbench.errors import UnsupportedOpError
from kernbench.replay.numerics.libdevice.functions import find_function

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
I32, I64 = np.dtype(np.int32), np.dtype(np.int64)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


def call(symbol: str, *values: Any, result: np.dtype[Any]) -> Any:
    function = find_function(f"__nv_{symbol}", result, "here")
    answer = function(*(np.asarray(value)[None] for value in values))
    assert answer.dtype == result
    return answer[0]


NUMPY: dict[str, np.dtype[Any]] = {
    "fp32": F32,
    "fp64": F64,
    "int32": I32,
    "uint32": I32,
    "int64": I64,
    "uint64": I64,
}


def words(node: ast.expr) -> list[str]:
    return [str(item.value) for item in ast.walk(node) if isinstance(item, ast.Constant)]


def overloads() -> list[tuple[str, list[np.dtype[Any]], np.dtype[Any]]]:
    """Return every symbol with its operands' types and its result's, as TTIR has them."""
    answer = []
    for node in ast.walk(ast.parse(inspect.getsource(libdevice))):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                assert key is not None
                names, (symbol, result) = words(key), words(value)
                answer.append((symbol, [NUMPY[name] for name in names], NUMPY[result]))
    return answer


def test_every_overload_of_tritons_libdevice_runs() -> None:
    every = overloads()
    assert {symbol for symbol, _, _ in every} == set(
        re.findall(r'"(__nv_\w+)"', inspect.getsource(libdevice))
    )
    for symbol, operands, result in every:
        arrays = [np.array([[1, 3], [0, 2]], dtype) for dtype in operands]
        answer = find_function(symbol, result, "here")(*arrays)
        assert (answer.dtype, answer.shape) == (result, (2, 2)), symbol
        # Scalars of a kernel are one number for each program, and one for all broadcasts.
        one = [arrays[0][:1], *arrays[1:]]
        np.testing.assert_array_equal(find_function(symbol, result, "here")(*one)[0], answer[0])


def test_an_unknown_symbol_names_the_nearest_and_the_line() -> None:
    with pytest.raises(UnsupportedOpError, match=r"'__nv_tanq' at k.py:3 .*did you mean tan"):
        find_function("__nv_tanq", F32, "k.py:3")


def reversed_bits(value: int, bits: int) -> int:
    text = f"{value % 2**bits:0{bits}b}"[::-1]
    result = int(text, 2)
    return result - 2**bits if result >= 2 ** (bits - 1) else result


@pytest.mark.parametrize(("suffix", "bits"), [("", 32), ("ll", 64)])
@given(data=st.data())
def test_functions_of_bits_are_those_of_pythons_integers(
    suffix: str, bits: int, data: st.DataObject
) -> None:
    value = data.draw(INT32 if bits == 32 else INT64)
    x = np.array(value, I32 if bits == 32 else I64)
    unsigned = value % 2**bits
    assert call(f"popc{suffix}", x, result=I32) == unsigned.bit_count()
    assert call(f"clz{suffix}", x, result=I32) == bits - unsigned.bit_length()
    lowest = (unsigned & -unsigned).bit_length()
    assert call(f"ffs{suffix}", x, result=I32) == lowest
    assert call(f"brev{suffix}", x, result=x.dtype) == reversed_bits(value, bits)


@given(a=INT64, b=INT64)
def test_high_halves_of_products(a: int, b: int) -> None:
    x, y = np.int64(a), np.int64(b)
    assert call("mul64hi", x, y, result=I64) == a * b >> 64
    high = (a % 2**64) * (b % 2**64) >> 64
    assert int(call("umul64hi", x, y, result=I64)) % 2**64 == high
    small = [value % 2**32 - 2**31 for value in (a, b)]
    result = call("mulhi", *map(np.int32, small), result=I32)
    assert result == small[0] * small[1] >> 32


@given(a=INT32, b=INT32)
def test_means_do_not_overflow(a: int, b: int) -> None:
    assert call("hadd", np.int32(a), np.int32(b), result=I32) == (a + b) // 2
    assert call("rhadd", np.int32(a), np.int32(b), result=I32) == (a + b + 1) // 2


@given(a=INT32, b=INT32, c=INT32)
def test_integers_of_unsigned_functions(a: int, b: int, c: int) -> None:
    arrays = np.int32(a), np.int32(b), np.int32(c)
    x, y, z = (value % 2**32 for value in (a, b, c))
    expected = {
        "uhadd": (x + y) // 2,
        "urhadd": (x + y + 1) // 2,
        "umul24": (x % 2**24) * (y % 2**24),
    }
    for name, value in expected.items():
        assert int(call(name, *arrays[:2], result=I32)) % 2**32 == value % 2**32, name
    assert int(call("usad", *arrays, result=I32)) % 2**32 == (abs(x - y) + z) % 2**32
    assert int(call("sad", *arrays, result=I32)) % 2**32 == (abs(a - b) + z) % 2**32
    stock = (x | y << 32).to_bytes(8, "little")
    picked = bytes(stock[z >> 4 * place & 7] for place in range(4))
    assert int(call("byte_perm", *arrays, result=I32)) % 2**32 == int.from_bytes(picked, "little")


@given(x=st.floats())
def test_words_of_a_double(x: float) -> None:
    high, low = struct.unpack("<ii", struct.pack("<d", x))[::-1]
    assert call("double2hiint", np.float64(x), result=I32) == high
    assert call("double2loint", np.float64(x), result=I32) == low
    joined = call("hiloint2double", np.int32(high), np.int32(low), result=F64)
    assert struct.pack("<d", joined) == struct.pack("<d", x)


@given(x=st.floats(allow_nan=False))
def test_the_reciprocal_of_a_high_word(x: float) -> None:
    result = float(call("rcp64h", np.float64(x), result=F64))
    assert struct.unpack("<I", struct.pack("<d", result)[:4]) == (0,)
    assert math.copysign(1, result) == math.copysign(1, x)
    if abs(x) < sys.float_info.min:
        assert math.isinf(result)
    elif abs(x) > 4e307:
        assert abs(result) < 1e-307
    else:
        assert result == pytest.approx(1 / x, rel=2**-19)


DIRECTIONS: dict[str, Callable[[Fraction], int]] = {
    "rn": round,
    "rz": math.trunc,
    "ru": math.ceil,
    "rd": math.floor,
}


@pytest.mark.parametrize("mode", DIRECTIONS)
@given(x=st.floats(width=32, allow_nan=False))
def test_floats_become_integers_in_the_direction_asked_for_and_saturate(
    mode: str, x: float
) -> None:
    for name, low, high, dtype in (
        ("int", -(2**31), 2**31 - 1, I32),
        ("uint", 0, 2**32 - 1, np.dtype(np.uint32)),
        ("ll", -(2**63), 2**63 - 1, I64),
        ("ull", 0, 2**64 - 1, np.dtype(np.uint64)),
    ):
        exact = DIRECTIONS[mode](Fraction(x)) if math.isfinite(x) else int(math.copysign(2**99, x))
        result = call(f"float2{name}_{mode}", np.float32(x), result=dtype)
        assert int(result) == min(max(exact, low), high)


def neighbours(x: float) -> tuple[float, float]:
    nearest = np.float32(x)
    return float(np.nextafter(nearest, np.float32(-np.inf))), float(
        np.nextafter(nearest, np.float32(np.inf))
    )


@pytest.mark.parametrize("mode", ["rz", "ru", "rd"])
@given(value=INT64)
def test_integers_become_floats_in_the_direction_asked_for(mode: str, value: int) -> None:
    result = float(call(f"ll2float_{mode}", np.int64(value), result=F32))
    below, above = neighbours(result)
    exact = Fraction(value)
    if mode == "rd" or (mode == "rz" and value >= 0):
        assert Fraction(result) <= exact < Fraction(above)
    else:
        assert Fraction(below) < exact <= Fraction(result)


def test_nan_is_no_integer_and_bits_stay_bits() -> None:
    assert call("float2int_rz", np.float32(np.nan), result=I32) == 0
    assert call("float_as_int", np.float32(1), result=I32) == 0x3F800000
    assert call("int_as_float", np.int32(0x40000000), result=F32) == 2
    for x, nan, infinite in ((np.nan, True, False), (np.inf, False, True), (1.0, False, False)):
        assert bool(call("isnanf", np.float32(x), result=I32)) == nan
        assert bool(call("isinfd", np.float64(x), result=I32)) == infinite
        assert bool(call("finitef", np.float32(x), result=I32)) == (not nan and not infinite)
    assert call("signbitf", np.float32(-0.0), result=I32) == 1


@given(x=st.floats(-0.999, 0.999), p=st.floats(0.001, 0.999))
def test_inverses_undo_what_they_are_inverse_to(x: float, p: float) -> None:
    assert math.erf(call("erfinv", x, result=F64)) == pytest.approx(x, abs=1e-12)
    assert math.erfc(call("erfcinv", p * 2, result=F64)) == pytest.approx(p * 2, abs=1e-12)
    quantile = call("normcdfinv", p, result=F64)
    assert call("normcdf", quantile, result=F64) == pytest.approx(p, abs=1e-12)


@pytest.mark.parametrize("x", [-3.0, -0.5, 0.0, 0.7, 3.0, 9.9, 10.1, 30.0, 1e6])
def test_special_functions_agree_with_scipy(x: float) -> None:
    special = pytest.importorskip("scipy.special")
    expected = {
        "erfcx": special.erfcx(x),
        "lgamma": special.gammaln(x) if x > 0 or x % 1 else np.inf,
        "normcdf": special.ndtr(x),
        "exp10": special.exp10(x) if x < 300 else np.inf,
        "sinpi": special.sindg(180 * x) if abs(x) < 100 else 0.0,
        "cospi": special.cosdg(180 * x) if abs(x) < 100 else 1.0,
    }
    for name, value in expected.items():
        assert call(name, np.float64(x), result=F64) == pytest.approx(value, rel=1e-12, abs=1e-12)


def test_norms_neither_overflow_nor_lose_small_parts() -> None:
    large = np.float32(3e38)
    assert call("hypotf", np.float32(3e30), np.float32(4e30), result=F32) == np.float32(5e30)
    assert call("norm3df", *[np.float32(v) for v in (2, 3, 6)], result=F32) == 7
    assert call("rnorm4df", *[np.float32(v) for v in (2, 4, 5, 6)], result=F32) == pytest.approx(
        1 / 9
    )
    assert np.isinf(call("hypotf", large, large, result=F32))


def test_rounding_and_remainders_are_those_of_c() -> None:
    for x, expected in ((2.5, 3), (-2.5, -3), (0.5, 1), (1.49, 1)):
        assert call("roundf", np.float32(x), result=F32) == expected
        assert call("llroundf", np.float32(x), result=I64) == expected
    assert call("rintf", np.float32(2.5), result=F32) == 2
    assert call("remainder", 5.0, 3.0, result=F64) == -1
    assert call("fdimf", np.float32(2), np.float32(5), result=F32) == 0
    assert call("logbf", np.float32(10), result=F32) == 3
    assert call("ilogb", 0.1, result=I32) == -4
    assert call("ldexpf", np.float32(0.75), np.int32(4), result=F32) == 12
    assert call("saturatef", np.float32(np.nan), result=F32) == 0
