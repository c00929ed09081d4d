"""Rows read in passes have the values that numpy gives."""

import numpy as np
import pytest
import triton.language as tl

from kernbench.ops.rows_in_passes import layer_norm_in_passes, softmax_in_passes
from kernbench.runtime_api import RuntimeContext

SHAPE, BLOCKS = (5, 37), {"COMPUTE": tl.float32, "BLOCK_M": 2, "BLOCK_N": 64}


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)


def test_softmax(x: np.ndarray) -> None:
    with RuntimeContext("ahbm", ranks=1) as torch:
        given, out = torch.from_numpy(x), torch.empty(*SHAPE, dtype=torch.float32)
        softmax_in_passes[(3,)](out, given, given, given, *SHAPE, 37, 1, 37, 1, **BLOCKS)
        found = out.numpy()
    powers = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(found, powers / powers.sum(axis=1, keepdims=True), rtol=1e-5)


def test_layer_norm(x: np.ndarray) -> None:
    weight, bias = np.linspace(1, 2, 37, dtype=np.float32), np.linspace(-1, 1, 37, dtype=np.float32)
    with RuntimeContext("ahbm", ranks=1) as torch:
        given, out = torch.from_numpy(x), torch.empty(*SHAPE, dtype=torch.float32)
        layer_norm_in_passes[(3,)](
            out, given, given, torch.from_numpy(weight), torch.from_numpy(bias), 1e-5,
            *SHAPE, 37, 1, 37, 1, **BLOCKS,
        )  # fmt: skip
        found = out.numpy()
    exact = x.astype(np.float64)
    exact = (exact - exact.mean(axis=1, keepdims=True)) / np.sqrt(
        exact.var(axis=1, keepdims=True) + 1e-5
    )
    np.testing.assert_allclose(found, exact * weight + bias, rtol=1e-4, atol=1e-5)
