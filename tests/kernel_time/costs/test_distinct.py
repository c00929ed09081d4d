"""Different numbers of an array are those that numpy finds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernbench.kernel_time.costs.distinct import distinct, distinct_values

_LARGE = 2**62


@given(st.lists(st.integers(-_LARGE, _LARGE) | st.integers(0, 3), max_size=20), st.booleans())
def test_different_numbers_are_numpys(numbers: list[int], in_order: bool) -> None:
    values = np.array(sorted(numbers) if in_order else numbers, dtype=np.int64)
    expected = np.unique(values, return_index=True, return_inverse=True)
    for found, wanted in zip(distinct(values), expected, strict=True):
        assert np.array_equal(found, wanted)
    assert np.array_equal(distinct_values(values), expected[0])
