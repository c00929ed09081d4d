"""float16 conversions are numpy's, to the bit, for every half and around every rounding edge."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.replay.numerics.conversions import convert_into, narrow, widen

ALL_HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.dtype.itemsize}")


@pytest.fixture(autouse=True)
def no_warnings() -> object:
    with np.errstate(all="ignore"):
        yield


def test_every_half_widens_to_numpys_bits() -> None:
    np.testing.assert_array_equal(bits(widen(ALL_HALVES)), bits(ALL_HALVES.astype(np.float32)))


@pytest.mark.parametrize("step", [-1, 0, 1, 0xFFF, 0x1000, 0x1001])
def test_floats_around_every_half_narrow_to_numpys_bits(step: int) -> None:
    near = (bits(ALL_HALVES.astype(np.float32)).astype(np.int64) + step) & 0xFFFFFFFF
    singles = near.astype(np.uint32).view(np.float32)
    expected = bits(singles.astype(np.float16))
    np.testing.assert_array_equal(bits(narrow(singles, np.dtype(np.float16))), expected)
    out = np.zeros(len(singles), np.float16)
    convert_into(singles, out)
    np.testing.assert_array_equal(bits(out), expected)


def test_random_floats_narrow_to_numpys_bits() -> None:
    singles = np.random.default_rng(0).integers(0, 1 << 32, 1 << 18, dtype=np.uint32)
    singles = singles.view(np.float32)
    result = narrow(singles, np.dtype(np.float16))
    np.testing.assert_array_equal(bits(result), bits(singles.astype(np.float16)))


@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 300), st.integers(1, 300)),
    order=st.permutations([0, 1, 2]),
    cut=st.integers(1, 3),
)
def test_any_layout_converts_and_keeps_its_order(
    shape: tuple[int, int, int], order: list[int], cut: int
) -> None:
    count = int(np.prod(shape))
    array = np.resize(ALL_HALVES[15000:16000], count).reshape(shape).transpose(order)[:, ::cut]
    result = widen(array)
    np.testing.assert_array_equal(result, array.astype(np.float32))
    np.testing.assert_array_equal(narrow(result, np.dtype(np.float16)), array)


def test_a_transposed_matrix_stays_transposed_for_blas() -> None:
    matrix = np.ones((300, 200), np.float16).T
    assert widen(matrix).flags.f_contiguous
