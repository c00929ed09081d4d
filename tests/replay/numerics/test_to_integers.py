"""Floats as integers against Python's integers and the rules of PTX's ``cvt``."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.dtypes import as_dtype
from kernbench.replay.numerics.conversions import out_of_range, to_integers
from tests.replay.numerics.test_elementwise import apply

FLOATS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
INTEGERS = ("i8", "i16", "i32", "i64")


def by_ptx(number: float, source: str, bits: int, *, is_signed: bool) -> int:
    """Return the bits, as a signed integer, that ``cvt.rzi`` by 16, 32 or 64 bits gives."""
    wide = max(bits, 16)
    low, high = (-(1 << (wide - 1)), (1 << (wide - 1)) - 1) if is_signed else (0, (1 << wide) - 1)
    if math.isnan(number):
        result = 1 << (wide - 1) if source == "f64" or wide == 64 else 0
    elif math.isinf(number):
        result = high if number > 0 else low
    else:
        result = min(max(math.trunc(number), low), high)
    result &= (1 << bits) - 1
    return result - (1 << bits) if result >> (bits - 1) else result


def edges(bits: int) -> list[float]:
    result = [0.0, -0.0, 0.5, -0.5, 1.9, -1.9, math.inf, -math.inf, math.nan, 1e30, -1e30]
    for power in (bits - 1, bits, 7, 8, 15, 16):
        for sign in (1.0, -1.0):
            edge = sign * 2.0**power
            result += [edge, edge + 1, edge - 1, edge + 0.5, edge - 0.5]
            for direction in (math.inf, -math.inf):
                result += [math.nextafter(edge, direction)]
                result += [float(np.nextafter(np.float32(edge), np.float32(direction)))]
    return result


@pytest.mark.adr("0042-D13")
@pytest.mark.parametrize("op", ["arith.fptosi", "arith.fptoui"])
@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("target", INTEGERS)
def test_a_conversion_gives_what_ptx_gives_at_every_edge(op: str, source: str, target: str) -> None:
    bits = as_dtype(target).bits
    with np.errstate(all="ignore"):
        numbers = np.array(edges(bits)).astype(FLOATS[source])
    is_signed = op == "arith.fptosi"
    exact = numbers.astype(np.float64).tolist()
    expected = [by_ptx(item, source, bits, is_signed=is_signed) for item in exact]
    assert apply(op, numbers, dtype=target).tolist() == expected
    for position, item in enumerate(expected):
        # Alone, what is in range is converted in another way.
        assert apply(op, numbers[position : position + 1], dtype=target).tolist() == [item]


@pytest.mark.adr("0042-D13")
@given(st.floats(width=64), st.sampled_from(INTEGERS), st.booleans())
def test_any_float_becomes_what_ptx_makes_of_it(number: float, name: str, is_signed: bool) -> None:
    dtype = as_dtype(name).numpy
    integers = to_integers(np.array([number, 1.0]), dtype, is_signed=is_signed)
    bits = 8 * dtype.itemsize
    assert integers.tolist() == [by_ptx(number, "f64", bits, is_signed=is_signed), 1]


@given(st.floats(width=64), st.sampled_from(INTEGERS), st.booleans())
def test_a_float_is_out_of_range_if_no_integer_holds_it(
    number: float, name: str, is_signed: bool
) -> None:
    dtype: Any = as_dtype(name).numpy
    limits = np.iinfo(dtype if is_signed else f"u{dtype.itemsize}")
    holds = math.isfinite(number) and int(limits.min) <= math.trunc(number) <= int(limits.max)
    assert (out_of_range(np.array([number]), dtype, is_signed=is_signed) is None) == holds
