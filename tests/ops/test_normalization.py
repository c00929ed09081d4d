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
@pytest.mark.parametrize("shape", [(1,), (7, 1), (33, 100), (2, 3, 5), (2, 3000)])
def test_softmax(torch: Any, dtype: str, shape: tuple[int, ...]) -> None:
    a = values(shape, dtype)
    assert_close(ops.softmax(torch.from_numpy(a)), softmax(a.astype(np.float64)), dtype)


def test_softmax_of_views(torch: Any) -> None:
    a = values((6, 5, 4), "float32")
    x = torch.from_numpy(a)
    wide = a.astype(np.float64)
    assert_close(ops.softmax(x.transpose(0, 2)), softmax(wide.swapaxes(0, 2)), "float32")
    assert_close(ops.softmax(x[::2, 1:, ::3]), softmax(wide[::2, 1:, ::3]), "float32")


@pytest.mark.parametrize("dtype", FLOATS)
def test_layer_norm(torch: Any, dtype: str) -> None:
    x, weight, bias = (values(s, dtype, i) for i, s in enumerate([(4, 3, 50), (50,), (50,)]))
    wide, w, b = (item.astype(np.float64) for item in (x, weight, bias))
    normal = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    t = [torch.from_numpy(item) for item in (x, weight, bias)]
    assert_close(ops.layer_norm(*t), normal * w + b, dtype, scale=16)
    assert_close(ops.layer_norm(t[0]), normal, dtype, scale=4)


def test_what_does_not_fit_is_refused(torch: Any) -> None:
    with pytest.raises(UsageError, match="last dim, but got dim 0"):
        ops.softmax(torch.zeros(2, 3), 0)
    with pytest.raises(UsageError, match="at least 1 dims"):
        ops.softmax(torch.tensor(1.0))
    with pytest.raises(UsageError, match=r"weight of layer_norm must have shape \(3,\)"):
        ops.layer_norm(torch.zeros(2, 3), torch.zeros(2))
