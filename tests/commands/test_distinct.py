"""Different numbers of an array are those that numpy finds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernbench.commands import distinct, distinct_values

_LARGE = 2**62


@given(
    different=st.integers(1, 5000),
    rare=st.integers(0, 3000),
    seed=st.integers(0, 99),
    size=st.integers(1 << 15, 1 << 16),
)
def test_few_or_many_different_numbers_among_many_are_numpys(
    different: int, rare: int, seed: int, size: int
) -> None:
    drawn = np.random.default_rng(seed)
    numbers = drawn.integers(-_LARGE, _LARGE, different)
    values = numbers[drawn.integers(0, different, size)]
    values[drawn.integers(0, size, rare)] = drawn.integers(-_LARGE, _LARGE, rare)
    expected = np.unique(values, return_index=True, return_inverse=True)
    for result, wanted in zip(distinct(values), expected, strict=True):
        assert np.array_equal(result, wanted)


@given(st.lists(st.integers(-_LARGE, _LARGE) | st.integers(0, 3), max_size=20), st.booleans())
def test_different_numbers_are_numpys(numbers: list[int], in_order: bool) -> None:
    values = np.array(sorted(numbers) if in_order else numbers, dtype=np.int64)
    expected = np.unique(values, return_index=True, return_inverse=True)
    for result, wanted in zip(distinct(values), expected, strict=True):
        assert np.array_equal(result, wanted)
    assert np.array_equal(distinct_values(values), expected[0])
