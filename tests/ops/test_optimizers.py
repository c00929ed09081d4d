from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernbench import ops
from kernbench.errors import UsageError
from tests.ops.arrays import values


@pytest.mark.parametrize("size", [1, 1000, 5000])
def test_adamw_follows_its_paper(torch: Any, size: int) -> None:
    lr, (beta1, beta2), eps, decay = 0.01, (0.9, 0.95), 1e-8, 0.1
    p = values((size,), "float32").astype(np.float64)
    m = v = np.zeros(size)
    tensors = [torch.from_numpy(item.astype(np.float32)) for item in (p, m, v)]
    for step in range(1, 4):
        grad = values((size,), "float32", step)
        m = beta1 * m + (1 - beta1) * grad
        v = beta2 * v + (1 - beta2) * grad.astype(np.float64) ** 2
        m_hat, v_hat = m / (1 - beta1**step), v / (1 - beta2**step)
        p = p - lr * decay * p - lr * m_hat / (np.sqrt(v_hat) + eps)
        ops.adamw_(
            tensors[0], torch.from_numpy(grad), tensors[1], tensors[2],
            step=step, lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay,
        )  # fmt: skip
    for tensor, expected in zip(tensors, (p, m, v), strict=True):
        np.testing.assert_allclose(tensor.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_what_does_not_fit_is_refused(torch: Any) -> None:
    x, y = torch.zeros(4, 3), torch.zeros(3)
    with pytest.raises(UsageError, match=r"grad has shape \(3,\), but param \(4, 3\)"):
        ops.adamw_(x, y, x, x, step=1)
    with pytest.raises(UsageError, match="step must be at least 1, but got 0"):
        ops.adamw_(x, x, x, x, step=0)
    with pytest.raises(UsageError, match="betas"):
        ops.adamw_(x, x, x, x, step=1, betas=(0.9, 1.0))
    with pytest.raises(UsageError, match="param must be contiguous"):
        ops.adamw_(x.T, x.T, x.T, x.T, step=1)
