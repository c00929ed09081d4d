"""Integers that are divided by zero, and the one quotient that no integer holds."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.replay.numerics.integers import ceil_div, div_c, floor_div, rem_c

ALL = {"div": div_c, "floor": floor_div, "ceil": ceil_div, "rem": rem_c}


@pytest.mark.adr("0232-D2")
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "u1", "u2", "u4"])
def test_by_zero_all_bits_are_one(name: str, dtype: str) -> None:
    a, b = np.array([3, 7, 100, 1], dtype), np.array([0, 2, 0, 1], dtype)
    with np.errstate(all="ignore"):
        result = ALL[name](a, b)
    assert result.dtype == a.dtype
    assert result.view(f"u{a.itemsize}")[[0, 2]].tolist() == [(1 << 8 * a.itemsize) - 1] * 2
    exact = {"div": [3, 1], "floor": [3, 1], "ceil": [4, 1], "rem": [1, 0]}
    assert result[[1, 3]].tolist() == exact[name]


@pytest.mark.adr("0232-D2")
@pytest.mark.parametrize("name", ["div", "rem"])
def test_of_64_bits_the_low_half_is_one_where_the_dividend_fits_into_32(name: str) -> None:
    # As PyTorch's test_fmod_remainder_by_zero_integral has it of CUDA.
    a = np.array([0, 5, 2**32 - 1, 2**32, -1, -(2**40)])
    with np.errstate(all="ignore"):
        result = ALL[name](a, np.zeros(1, np.int64))
    assert result.tolist() == [0xFFFFFFFF] * 3 + [-1] * 3


@pytest.mark.adr("0232-D2")
@pytest.mark.parametrize("dtype", ["i4", "i8"])
def test_the_smallest_integer_by_minus_one_is_itself(dtype: str) -> None:
    lowest = np.iinfo(dtype).min
    a, b = np.array([lowest, 6], dtype), np.array([-1, -4], dtype)
    with np.errstate(all="ignore"):
        assert div_c(a, b).tolist() == [lowest, -1]
        assert rem_c(a, b).tolist() == [0, 2]
