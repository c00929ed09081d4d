from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench import ops
from kernbench.errors import UsageError
from tests.ops.arrays import DTYPES, FLOATS, assert_close, laid_out, layouts, numpy_dtype, values
from tests.tiers import examples

few = examples(15)


@few
@given(data=st.data())
def test_sums_of_any_view_over_any_dims(torch: Any, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple))
    dims = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1).map(tuple))
    keepdim = data.draw(st.booleans())
    a = values(shape, "float32")
    x = laid_out(torch, a, data.draw(layouts(shape)))
    expected = a.sum(dims, keepdims=keepdim)
    result = ops.sum(x, dims, keepdim)
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(3000,), (40, 300), (300, 40)])
def test_halves_are_summed_in_float32(torch: Any, dtype: str, shape: tuple[int, ...]) -> None:
    a = values(shape, dtype)
    result = ops.sum(torch.from_numpy(a), -1)
    # Every partial sum is exact in float32; only the store rounds.
    expected = a.astype(np.float64).sum(-1).astype(numpy_dtype(dtype))
    np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize("dtype", ["int32", "bool"])
def test_sums_of_integers_are_int64(torch: Any, dtype: str) -> None:
    a = values((6, 50), "int32").astype(dtype)
    result = ops.sum(torch.from_numpy(a))
    assert result.dtype.name == "int64"
    assert result.item() == a.sum(dtype=np.int64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1, None])
def test_maxima(torch: Any, dtype: str, dim: int | None) -> None:
    a = values((9, 37), dtype)
    np.testing.assert_array_equal(ops.amax(torch.from_numpy(a), dim).numpy(), a.max(dim))
    low = np.full((3, 2), -1000, numpy_dtype(dtype))
    assert ops.amax(torch.from_numpy(low)).item() == -1000


def test_means(torch: Any) -> None:
    a = values((5, 12), "float32")
    assert_close(ops.mean(torch.from_numpy(a), 0), a.mean(0, dtype=np.float64), "float32")
    assert_close(ops.mean(torch.from_numpy(a)), np.asarray(a.mean(dtype=np.float64)), "float32")


def test_a_sum_over_no_elements_is_zero(torch: Any) -> None:
    assert ops.sum(torch.zeros(0)).item() == 0
    assert ops.sum(torch.zeros(2, 0), 1).tolist() == [0, 0]


def test_what_cannot_be_reduced_is_refused(torch: Any) -> None:
    with pytest.raises(UsageError, match="without elements"):
        ops.amax(torch.zeros(0, 3))
    with pytest.raises(UsageError, match="sum: dim 2 does not exist"):
        ops.sum(torch.zeros(2, 3), 2)
    with pytest.raises(UsageError, match="mean needs a floating-point"):
        ops.mean(torch.zeros(3, dtype="i32"))
