"""The softmax of stored scores and its gradient, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernbench import ops
from kernbench.errors import UsageError
from tests.ops.arrays import FLOATS, Array, assert_close, values


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    result: Array = powers / powers.sum(-1, keepdims=True)
    return result


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("causal", [False, True])
def test_masked_softmax_and_its_gradient(torch: Any, dtype: str, causal: bool) -> None:
    x, grad = values((2, 3, 20, 30), dtype), values((2, 3, 20, 30), dtype, 1)
    wide = x.astype(np.float64) * 0.5
    if causal:
        wide = np.where(np.arange(30)[None, :] <= np.arange(20)[:, None] + 10, wide, -np.inf)
    y = softmax(wide)
    tensor = ops.masked_softmax(torch.from_numpy(x), 0.5, causal)
    assert_close(tensor, y, dtype)
    slope = y * (grad - (grad * y).sum(-1, keepdims=True)) * 0.5
    rounded = torch.from_numpy(y.astype(np.float32))
    back = ops.softmax_backward(torch.from_numpy(grad.astype(np.float32)), rounded, 0.5)
    assert_close(back, slope, "float32", scale=16)


def test_padding_has_no_weight(torch: Any) -> None:
    x = values((2, 3, 20, 30), "float32")
    lengths = np.array([7, 30], dtype=np.int32)
    inside = np.arange(30) < lengths[:, None, None, None]
    tensor = ops.masked_softmax(torch.from_numpy(x), lengths_B=torch.from_numpy(lengths))
    assert_close(tensor, softmax(np.where(inside, x.astype(np.float64), -np.inf)), "float32")
    with pytest.raises(UsageError, match="one for each of 2 sequences"):
        ops.masked_softmax(torch.from_numpy(x), lengths_B=torch.from_numpy(lengths)[:1])


def test_what_does_not_fit_is_refused(torch: Any) -> None:
    with pytest.raises(UsageError, match="the first of 4 queries attend to none of 3 keys"):
        ops.masked_softmax(torch.zeros(4, 3), causal=True)
    with pytest.raises(UsageError, match="at least 2 dims"):
        ops.masked_softmax(torch.zeros(3))
    with pytest.raises(UsageError, match="the gradient has shape"):
        ops.softmax_backward(torch.zeros(4, 3), torch.zeros(3, 3))
