"""Every elementwise operation against Python's own numbers, in every element type."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.commands import UNKNOWN_LINE, Math, MathClass, Tile
from kernbench.dtypes import as_dtype
from kernbench.errors import UnsupportedOpError
from kernbench.replay.numerics.elementwise import build_function

RNG = np.random.default_rng(1)
FLOATS = ("f16", "bf16", "f32", "f64")
INTS = ("i8", "i16", "i32", "i64")


def apply(op: str, *arrays: Any, dtype: str | None = None, **attrs: Any) -> np.ndarray:
    """Run one operation on one program's tiles; the result has the declared type."""
    arrays = tuple(np.asarray(array) for array in arrays)
    tiles = tuple(Tile(i, a.shape, as_dtype(a.dtype)) for i, a in enumerate(arrays))
    kind = as_dtype(dtype) if dtype else tiles[0].dtype
    command = Math(Tile(9, arrays[0].shape, kind), op, tiles, MathClass.SIMPLE, UNKNOWN_LINE, attrs)
    with np.errstate(all="ignore"):
        result = build_function(command)(*(array[None] for array in arrays))
    assert result.dtype == kind.numpy
    return result[0]


def as_f64(array: np.ndarray) -> np.ndarray:
    """Exact, and numpy knows this type's NaN."""
    with np.errstate(all="ignore"):
        return array.astype(np.float64)


def _floats(dtype: str, count: int = 200) -> np.ndarray:
    special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, 2.5, -2.5]
    values = np.concatenate([special, RNG.standard_normal(count) * 4])
    return values.astype(as_dtype(dtype).numpy)


BINARY = {
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.remf": np.fmod,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
}


@pytest.mark.adr("0005-D5")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", BINARY)
def test_float_arithmetic_rounds_once_per_operation(op: str, dtype: str) -> None:
    a, b = _floats(dtype), RNG.permutation(_floats(dtype))
    wide = np.float64 if dtype == "f64" else np.float32
    with np.errstate(all="ignore"):
        expected = BINARY[op](a.astype(wide), b.astype(wide)).astype(a.dtype)
    np.testing.assert_array_equal(as_f64(apply(op, a, b)), as_f64(expected))


UNARY = {
    "math.exp": math.exp,
    "math.exp2": lambda x: 2.0**x,
    "math.log": math.log,
    "math.log2": math.log2,
    "math.sqrt": math.sqrt,
    "math.rsqrt": lambda x: 1 / math.sqrt(x),
    "math.sin": math.sin,
    "math.cos": math.cos,
    "math.tanh": math.tanh,
    "math.erf": math.erf,
    "math.erfc": math.erfc,
    "math.floor": math.floor,
    "math.ceil": math.ceil,
    "math.trunc": math.trunc,
    "math.absf": abs,
    "arith.negf": lambda x: -x,
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", UNARY)
def test_functions_are_those_of_python(op: str, dtype: str) -> None:
    x = np.linspace(0.01, 5, 300).astype(as_dtype(dtype).numpy)
    if op not in ("math.log", "math.log2", "math.sqrt", "math.rsqrt"):
        x = np.concatenate([-x, x])
    expected = np.array([UNARY[op](float(v)) for v in x])
    tolerance = {"f16": 1e-3, "bf16": 8e-3, "f32": 5e-7, "f64": 1e-14}[dtype]
    np.testing.assert_allclose(
        apply(op, x).astype(np.float64), expected, rtol=tolerance, atol=2.5e-7 * (dtype != "f64")
    )


def test_erf_at_the_edges() -> None:
    x = np.array([0.0, 10.0, -10.0, np.inf, -np.inf, np.nan, 3.9], np.float32)
    expected = np.array([0, 1, -1, 1, -1, np.nan, 1], np.float32)
    np.testing.assert_allclose(apply("math.erf", x), expected, atol=1e-6)


@pytest.mark.parametrize(("value", "away", "even"), [(2.5, 3, 2), (-2.5, -3, -2), (0.5, 1, 0)])
def test_rounding_modes(value: float, away: float, even: float) -> None:
    x = np.array([value], np.float32)
    assert apply("math.round", x)[0] == away
    assert apply("math.roundeven", x)[0] == even


def test_fma_rounds_once() -> None:
    a = np.array([1 + 2**-12], np.float32)
    c = np.array([-1.0], np.float32)
    assert apply("math.fma", a, a, c)[0] == np.float32(2**-11 + 2**-24)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_fma_of_narrow_types_rounds_once(dtype: str) -> None:
    # Half of the last bit, and less than float32 can hold beside it.
    narrow = as_dtype(dtype).numpy
    half = float(ml_dtypes.finfo(narrow).eps) / 2
    a, b, c = (np.array([item], narrow) for item in (half, 1 + 2 * half, 1.0))
    tiny = np.array([2.0**-14], narrow)
    assert apply("math.fma", a, b, c)[0] == 1 + 2 * half
    assert apply("math.fma", tiny, tiny, c)[0] == 1
    middle = np.array([-half / 2 * (1 - 2 * half)], narrow)
    assert apply("math.fma", middle, np.array([1], narrow), c)[0] == 1


def test_nan_rules_of_max_and_clamp() -> None:
    nan, one = np.array([np.nan], np.float32), np.array([1.0], np.float32)
    assert np.isnan(apply("arith.maximumf", nan, one))[0]
    assert apply("arith.maxnumf", nan, one)[0] == 1
    assert apply("tt.clampf", nan, one, one * 2)[0] == 1
    assert np.isnan(apply("tt.clampf", nan, one, one * 2, propagate_nan=True))[0]


@pytest.mark.parametrize("bits", INTS)
def test_integers_wrap_and_divide_as_in_c(bits: str) -> None:
    numpy = as_dtype(bits).numpy
    info = np.iinfo(numpy)
    a = RNG.integers(info.min, info.max, 300, dtype=numpy)
    b = RNG.integers(-9, 9, 300).astype(numpy)
    b[b == 0] = 7
    width = 8 * numpy.itemsize

    def wrapped(values: list[int]) -> np.ndarray:
        half = 1 << (width - 1)
        return np.array([(v + half) % (2 * half) - half for v in values]).astype(numpy)

    pairs = [(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    unsigned = [(x % (1 << width), y % (1 << width)) for x, y in pairs]
    expected = {
        "arith.addi": [x + y for x, y in pairs],
        "arith.subi": [x - y for x, y in pairs],
        "arith.muli": [x * y for x, y in pairs],
        "arith.divsi": [abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in pairs],
        "arith.remsi": [abs(x) % abs(y) * (-1 if x < 0 else 1) for x, y in pairs],
        "arith.floordivsi": [x // y for x, y in pairs],
        "arith.ceildivsi": [-((-x) // y) for x, y in pairs],
        "arith.divui": [x // y for x, y in unsigned],
        "arith.remui": [x % y for x, y in unsigned],
        "arith.maxui": [max(p) for p in unsigned],
        "arith.minui": [min(p) for p in unsigned],
        "arith.andi": [x & y for x, y in pairs],
        "arith.ori": [x | y for x, y in pairs],
        "arith.xori": [x ^ y for x, y in pairs],
    }
    for op, values in expected.items():
        np.testing.assert_array_equal(apply(op, a, b), wrapped(values), err_msg=op)
    shift = np.abs(b) % width
    by = [(int(x), int(s)) for x, s in zip(a, shift, strict=True)]
    shifts = {
        "arith.shli": [x << s for x, s in by],
        "arith.shrsi": [x >> s for x, s in by],
        "arith.shrui": [(x % (1 << width)) >> s for x, s in by],
    }
    for op, values in shifts.items():
        np.testing.assert_array_equal(
            apply(op, a, shift.astype(numpy)), wrapped(values), err_msg=op
        )


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_the_high_half_of_a_product(a: int, b: int) -> None:
    def signed(value: int, bits: int) -> np.ndarray:
        return np.array([value % (1 << bits)], f"u{bits // 8}").view(f"i{bits // 8}")

    for bits in (32, 64):
        high = ((a % (1 << bits)) * (b % (1 << bits))) >> bits
        result = apply("tt.mulhiui", signed(a, bits), signed(b, bits))
        assert result[0] == signed(high, bits)[0]


def test_comparisons_of_integers() -> None:
    a, b = np.array([-1, 3, 3], np.int32), np.array([2, 3, -4], np.int32)
    expected = {
        "eq": [0, 1, 0],
        "ne": [1, 0, 1],
        "slt": [1, 0, 0],
        "sle": [1, 1, 0],
        "sgt": [0, 0, 1],
        "sge": [0, 1, 1],
        "ult": [0, 0, 1],
        "ule": [0, 1, 1],
        "ugt": [1, 0, 0],
        "uge": [1, 1, 0],
    }
    for index, (name, values) in enumerate(expected.items()):
        for predicate in (name, index):
            result = apply("arith.cmpi", a, b, dtype="i1", predicate=predicate)
            np.testing.assert_array_equal(result, np.array(values, bool), err_msg=name)


@pytest.mark.parametrize("dtype", FLOATS)
def test_comparisons_of_floats_with_nan(dtype: str) -> None:
    a = np.array([1, 2, 2, np.nan], as_dtype(dtype).numpy)
    b = np.array([2, 2, 1, 1], as_dtype(dtype).numpy)
    ordered = {"eq": [0, 1, 0], "gt": [0, 0, 1], "ge": [0, 1, 1], "lt": [1, 0, 0]}
    ordered |= {"le": [1, 1, 0], "ne": [1, 0, 1]}
    for name, values in ordered.items():
        for prefix, nan in (("o", 0), ("u", 1)):
            result = apply("arith.cmpf", a, b, dtype="i1", predicate=prefix + name)
            np.testing.assert_array_equal(result, np.array([*values, nan], bool), err_msg=name)
    assert apply("arith.cmpf", a, b, dtype="i1", predicate="ord").tolist() == [1, 1, 1, 0]
    assert apply("arith.cmpf", a, b, dtype="i1", predicate="uno").tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("target", FLOATS)
@pytest.mark.parametrize("source", FLOATS)
def test_float_conversions_round_to_nearest_even(source: str, target: str) -> None:
    x = _floats(source)
    op = "arith.extf" if as_dtype(target).itemsize > as_dtype(source).itemsize else "arith.truncf"
    with np.errstate(all="ignore"):
        expected = x.astype(as_dtype(target).numpy)
    np.testing.assert_array_equal(as_f64(apply(op, x, dtype=target)), as_f64(expected))


def test_truncation_breaks_ties_to_even() -> None:
    x = np.array([1 + 2**-11, 1 + 3 * 2**-11, 65519.0, 65520.0, 2**-25], np.float32)
    result = apply("arith.truncf", x, dtype="f16")
    np.testing.assert_array_equal(result, np.array([1, 1 + 2**-9, 65504, np.inf, 0], np.float16))
    y = np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32)
    expected = np.array([1, 1 + 2**-6], ml_dtypes.bfloat16)
    np.testing.assert_array_equal(apply("arith.truncf", y, dtype="bf16"), expected)


def test_integer_conversions() -> None:
    x = np.array([-1, 5, -128], np.int8)
    assert apply("arith.extsi", x, dtype="i32").tolist() == [-1, 5, -128]
    assert apply("arith.extui", x, dtype="i32").tolist() == [255, 5, 128]
    assert apply("arith.sitofp", x, dtype="f32").tolist() == [-1, 5, -128]
    assert apply("arith.uitofp", x, dtype="f32").tolist() == [255, 5, 128]
    assert apply("arith.trunci", np.array([257, -1], np.int32), dtype="i8").tolist() == [1, -1]
    assert apply("arith.trunci", np.array([2, 3], np.int32), dtype="i1").tolist() == [False, True]
    flags = np.array([True, False])
    assert apply("arith.extsi", flags, dtype="i32").tolist() == [-1, 0]
    assert apply("arith.extui", flags, dtype="i32").tolist() == [1, 0]
    y = np.array([1.9, -1.9], np.float16)
    assert apply("arith.fptosi", y, dtype="i32").tolist() == [1, -1]
    big = np.array([3e9], np.float32)
    assert apply("arith.fptoui", big, dtype="i32").view(np.uint32).tolist() == [3_000_000_000]
    one = np.array([1.0], np.float32)
    assert apply("arith.bitcast", one, dtype="i32").tolist() == [0x3F800000]


def test_libdevice_functions_go_by_their_symbol() -> None:
    x = np.array([0.3, 1.5], np.float32)
    for symbol, op in (
        ("__nv_tanhf", "math.tanh"),
        ("__nv_fast_expf", "math.exp"),
        ("__nv_rintf", "math.roundeven"),
        ("__nv_fabsf", "math.absf"),
    ):
        result = apply("tt.extern_elementwise", x, symbol=symbol)
        np.testing.assert_array_equal(result, apply(op, x))
    with pytest.raises(UnsupportedOpError, match="__nv_besselj0"):
        apply("tt.extern_elementwise", x, symbol="__nv_besselj0")


def test_an_unknown_operation_names_its_neighbours() -> None:
    with pytest.raises(UnsupportedOpError, match=r"did you mean .*arith\.addf"):
        apply("arith.adf", np.zeros(3, np.float32))


@pytest.mark.adr("0042-D1")
@pytest.mark.parametrize("dtype", ["fp8e4nv", "fp8e5", "fp8e4b8", "fp8e5b16"])
def test_numbers_too_large_for_8_bits_become_the_largest(dtype: str) -> None:
    numpy = as_dtype(dtype).numpy
    largest = float(ml_dtypes.finfo(numpy).max)
    x = np.array([1e6, -1e6, np.inf, -np.inf, np.nan, 1.0], np.float32)
    f64 = as_f64(apply("tt.fp_to_fp", x, dtype=dtype, rounding="rtne"))
    assert f64[:4].tolist() == [largest, -largest, largest, -largest]
    assert np.isnan(f64[4])
    assert f64[5] == 1


@pytest.mark.adr("0042-D1")
@pytest.mark.parametrize("dtype", ["f16", "bf16", "fp8e4nv", "fp8e5"])
def test_towards_zero_is_the_nearest_number_of_no_larger_magnitude(dtype: str) -> None:
    x = RNG.uniform(-400, 400, 2000).astype(np.float32)
    f64 = as_f64(apply("tt.fp_to_fp", x, dtype=dtype, rounding="rtz"))
    numpy = as_dtype(dtype).numpy
    codes = np.arange(1 << 8 * numpy.itemsize, dtype=f"u{numpy.itemsize}").view(numpy)
    numbers = as_f64(codes)
    numbers = np.unique(np.abs(numbers[np.isfinite(numbers)]))
    below = numbers[np.searchsorted(numbers, np.abs(x), side="right") - 1]
    np.testing.assert_array_equal(f64, np.copysign(below, x))
    huge = np.array([3e38, -3e38, np.inf], np.float32)
    if dtype == "f16":
        kept = apply("tt.fp_to_fp", huge, dtype=dtype, rounding="rtz")
        assert kept.tolist() == [65504, -65504, np.inf]
