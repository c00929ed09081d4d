"""The gradients of norms against differences of their values in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernbench import ops
from kernbench.errors import UsageError
from tests.ops.arrays import Array

EPS = 1e-5


def norm(x: Array, weight: Array, shift: Array, centred: bool) -> Array:
    if centred:
        x = x - x.mean(-1, keepdims=True)
    result: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight + shift
    return result


def gradient(function: Any, x: Array) -> Array:
    """Return the gradient of a sum, by differences along every element."""
    result = np.zeros_like(x)
    for index in np.ndindex(*x.shape):
        step = np.zeros_like(x)
        step[index] = 1e-6
        result[index] = (function(x + step) - function(x - step)) / 2e-6
    return result


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("shape", [(3, 20), (2, 5, 7)], ids=str)
def test_gradients_of_norms(torch: Any, centred: bool, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x, grad, residual = (rng.standard_normal(shape) for _ in range(3))
    weight, shift = (rng.standard_normal(shape[-1]) for _ in range(2))

    def loss(x: Array, weight: Array, shift: Array) -> float:
        return float((grad * norm(x, weight, shift, centred)).sum())

    expected = [
        gradient(lambda x: loss(x, weight, shift), x) + residual,
        gradient(lambda weight: loss(x, weight, shift), weight),
        gradient(lambda shift: loss(x, weight, shift), shift),
    ]
    t = [torch.from_numpy(item.astype(np.float32)) for item in (grad, x, weight, residual)]
    tensor = ops.norm_backward(*t[:3], residual_TF=t[3], eps=EPS, centred=centred)
    assert (tensor[2] is None) == (not centred)
    for actual, wanted in zip(tensor, expected, strict=True):
        if actual is not None:
            np.testing.assert_allclose(actual.numpy(), wanted, rtol=2e-4, atol=2e-4)


def test_many_rows_are_summed_by_few_programs(torch: Any) -> None:
    rng = np.random.default_rng(0)
    x, grad = (rng.standard_normal((3000, 2048)).astype(np.float32) for _ in range(2))
    tensor = ops.norm_backward(torch.from_numpy(grad), torch.from_numpy(x), centred=False)
    normal = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + EPS)
    np.testing.assert_allclose(tensor[1].numpy(), (grad * normal).sum(0), rtol=1e-3, atol=2e-3)
    inner = (grad * normal).mean(-1, keepdims=True)
    wanted = (grad - normal * inner) / np.sqrt((x**2).mean(-1, keepdims=True) + EPS)
    np.testing.assert_allclose(tensor[0].numpy(), wanted, rtol=1e-3, atol=1e-4)


def test_what_does_not_fit_is_refused(torch: Any) -> None:
    x = torch.zeros(4, 6)
    with pytest.raises(UsageError, match="the gradient has shape"):
        ops.norm_backward(x[1:], x)
    with pytest.raises(UsageError, match="the residual has shape"):
        ops.norm_backward(x, x, residual_TF=x[1:])
    with pytest.raises(UsageError, match=r"weight must have shape \(6,\)"):
        ops.norm_backward(x, x, torch.zeros(4))
