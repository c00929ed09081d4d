"""fp8e4b15, the 8-bit format that only Triton has, and the ones that only AMD's GPUs have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl

from kernbench.triton_backend import activate
from tests.replay.executing import ExecutingLauncher, Tensor


@pytest.fixture
def device() -> Iterator[ExecutingLauncher]:
    launcher = ExecutingLauncher()
    with activate(launcher):
        yield launcher


class AsFloat8(Tensor):
    """Bytes that Triton takes for an 8-bit float."""

    def __init__(self, tensor: Tensor, name: str) -> None:
        self.dtype, self.shape, self.buffer = name, tensor.shape, tensor.buffer


@triton.jit
def convert_kernel(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(x + at).to(out.dtype.element_ty))


def e4b15(codes: np.ndarray) -> np.ndarray:
    """Return what codes of the format mean: as e4m3 with a bias of 15, and no NaN."""
    exponent, mantissa = (codes.astype(int) >> 3) & 15, codes.astype(int) & 7
    number = np.where(
        exponent > 0, (1 + mantissa / 8) * 2.0 ** (exponent - 15), mantissa * 2.0**-17
    )
    return np.where(codes & 0x80, -number, number)


CODES = np.arange(256, dtype=np.uint8)


@pytest.mark.adr("0042-D6")
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_every_code_of_e4b15_is_its_number(device: ExecutingLauncher, dtype: type) -> None:
    out = device.tensor(np.zeros(256, dtype))
    convert_kernel[(1,)](AsFloat8(device.tensor(CODES), "fp8e4b15"), out, 256)
    np.testing.assert_array_equal(out.numpy(), e4b15(CODES))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_numbers_round_to_the_nearest_code_of_e4b15(device: ExecutingLauncher, dtype: type) -> None:
    x: Any = np.random.default_rng(1).uniform(-2.5, 2.5, 1024).astype(np.float16).astype(dtype)
    out = device.tensor(np.zeros(1024, np.uint8))
    convert_kernel[(1,)](device.tensor(x), AsFloat8(out, "fp8e4b15"), 1024)
    nearest = np.abs(x[:, None].astype(float) - e4b15(CODES)).min(axis=1)
    result = e4b15(out.numpy())
    # What is too large becomes the largest number.
    np.testing.assert_allclose(np.abs(x - result), nearest, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "numpy"),
    [("fp8e4b8", ml_dtypes.float8_e4m3fnuz), ("fp8e5b16", ml_dtypes.float8_e5m2fnuz)],
)
def test_formats_without_a_negative_zero(device: ExecutingLauncher, name: str, numpy: type) -> None:
    out = device.tensor(np.zeros(256, np.float32))
    convert_kernel[(1,)](AsFloat8(device.tensor(CODES), name), out, 256)
    np.testing.assert_array_equal(out.numpy(), CODES.view(numpy).astype(np.float32))
    back = device.tensor(np.zeros(256, np.uint8))
    convert_kernel[(1,)](out, AsFloat8(back, name), 256)
    np.testing.assert_array_equal(back.numpy(), CODES)
