from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernbench import ops
from kernbench.errors import UsageError
from tests.ops.arrays import FLOATS, values


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(9,), (2, 40), ()])
def test_rows_are_gathered_and_foreign_indices_give_zeros(
    torch: Any, dtype: str, shape: tuple[int, ...]
) -> None:
    table = values((11, 37), dtype)
    indices = np.random.default_rng(0).integers(0, 30, shape)
    result = ops.embedding(torch.from_numpy(table), torch.from_numpy(np.asarray(indices)), start=8)
    here = (indices >= 8) & (indices < 19)
    expected = np.where(here[..., None], table[np.where(here, indices - 8, 0)], 0)
    np.testing.assert_array_equal(result.numpy(), expected)


def test_a_table_may_be_a_view(torch: Any) -> None:
    table = values((6, 10), "float32")
    result = ops.embedding(torch.from_numpy(table).T, torch.tensor([3, 0, 9], dtype="i32"))
    np.testing.assert_array_equal(result.numpy(), table.T[[3, 0, 9]])


def test_the_gradient_adds_up_per_row(torch: Any) -> None:
    grad = values((2, 40, 20), "float32")
    indices = np.random.default_rng(1).integers(0, 30, (2, 40))
    expected = np.zeros((12, 20))
    for index, row in zip(indices.ravel(), grad.reshape(-1, 20), strict=True):
        if 8 <= index < 20:
            expected[index - 8] += row
    result = ops.embedding_backward(torch.from_numpy(grad), torch.from_numpy(indices), 12, start=8)
    np.testing.assert_array_equal(result.numpy(), expected)


def test_what_does_not_fit_is_refused(torch: Any) -> None:
    with pytest.raises(UsageError, match="table has 2 dims"):
        ops.embedding(torch.zeros(3), torch.tensor([0]))
    with pytest.raises(UsageError, match="indices must be integers"):
        ops.embedding(torch.zeros(3, 4), torch.zeros(2))
    with pytest.raises(UsageError, match="one more dim"):
        ops.embedding_backward(torch.zeros(3, 4), torch.tensor([0]), 5)
