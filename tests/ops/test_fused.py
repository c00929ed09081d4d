"""Kernels that do several steps, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernbench import ops
from kernbench.errors import UsageError
from tests.ops.arrays import FLOATS, Array, assert_close, values


def gelu(x: Array) -> Array:
    result: Array = x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
    return result


def silu(x: Array) -> Array:
    result: Array = x / (1 + np.exp(-x))
    return result


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("activation", [None, "gelu", "relu", "silu"])
def test_bias_and_activation(torch: Any, dtype: str, activation: str | None) -> None:
    x, bias = values((5, 3, 40), dtype), values((40,), dtype, 1)
    wide = x.astype(np.float64) + bias.astype(np.float64)
    known = {"gelu": gelu, "silu": silu, "relu": lambda x: np.maximum(x, 0)}
    expected = wide if activation is None else known[activation](wide)
    tensor = ops.bias_activation(torch.from_numpy(x), torch.from_numpy(bias), activation)
    assert_close(tensor, expected, dtype, scale=8)
    alone = ops.bias_activation(torch.from_numpy(x), None, activation)
    wide = x.astype(np.float64)
    assert_close(alone, wide if activation is None else known[activation](wide), dtype, scale=8)


@pytest.mark.parametrize("dtype", FLOATS)
def test_residual_and_norms(torch: Any, dtype: str) -> None:
    x, residual = values((6, 7, 50), dtype), values((6, 7, 50), dtype, 1)
    bias, weight, shift = (values((50,), dtype, 2 + index) for index in range(3))
    wide, rest, b, w, s = (e.astype(np.float64) for e in (x, residual, bias, weight, shift))
    t = [torch.from_numpy(item) for item in (x, residual, bias, weight, shift)]
    assert_close(ops.bias_residual(t[0], t[2], t[1]), wide + b + rest, dtype)
    assert_close(ops.bias_residual(t[0], None, t[1]), wide + rest, dtype)
    total = wide + b + rest
    normal = (total - total.mean(-1, keepdims=True)) / np.sqrt(total.var(-1, keepdims=True) + 1e-5)
    tensor = ops.residual_norm(*t)
    assert_close(tensor[0], total, dtype)
    assert_close(tensor[1], normal * w + s, dtype, scale=16)
    square = np.sqrt((total**2).mean(-1, keepdims=True) + 1e-5)
    tensor = ops.residual_norm(t[0], t[1], t[2], t[3], centred=False)
    assert_close(tensor[1], total / square * w, dtype, scale=16)
    square = np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5)
    assert_close(ops.rms_norm(t[0], t[3]), wide / square * w, dtype, scale=16)


def test_gated(torch: Any) -> None:
    x = values((9, 64), "float32")
    expected = silu(x[:, :32].astype(np.float64)) * x[:, 32:]
    assert_close(ops.gated(torch.from_numpy(x)), expected, "float32", scale=16)


def test_what_does_not_fit_is_refused(torch: Any) -> None:
    x = torch.zeros(4, 6)
    with pytest.raises(UsageError, match="activation must be one of None, 'gelu'"):
        ops.bias_activation(x, None, "tanh")
    with pytest.raises(UsageError, match="even size, but got"):
        ops.gated(x[:, 1:])
    with pytest.raises(UsageError, match=r"weight of rms_norm must have shape \(6,\)"):
        ops.rms_norm(x, torch.zeros(4))
    with pytest.raises(UsageError, match="the shapes must be the same"):
        ops.residual_norm(x, x[1:])


def slope_of(function: Any, x: Array) -> Array:
    """Return the derivative, from both sides in float64."""
    result: Array = (function(x + 1e-5) - function(x - 1e-5)) / 2e-5
    return result


def test_gradients_of_activations(torch: Any) -> None:
    x, grad, bias = (
        values((9, 32), "float32"),
        values((9, 32), "float32", 1),
        values((32,), "float32"),
    )
    t = [torch.from_numpy(item) for item in (grad, x, bias)]
    tensor = ops.bias_gelu_backward(*t)
    assert_close(tensor, grad * slope_of(gelu, (x + bias).astype(np.float64)), "float32", scale=64)
    tensor = ops.bias_gelu_backward(t[0], t[1], None)
    assert_close(tensor, grad * slope_of(gelu, x.astype(np.float64)), "float32", scale=64)
    gate, up = x[:, :16].astype(np.float64), x[:, 16:].astype(np.float64)
    half = grad[:, :16]
    expected = np.concatenate([half * up * slope_of(silu, gate), half * silu(gate)], 1)
    tensor = ops.gated_backward(torch.from_numpy(half), t[1])
    assert_close(tensor, expected, "float32", scale=64)
    with pytest.raises(UsageError, match="has no gradient of shape"):
        ops.gated_backward(t[0], t[1])
