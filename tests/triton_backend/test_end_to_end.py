"""Kernels written for a GPU, launched as on a GPU, inside a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

from kernbench.runtime_api import RuntimeContext


@triton.jit
def add_kernel(x_ptr, y_ptr, output_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    """Tutorial 01."""
    pid = tl.program_id(axis=0)
    offsets = pid * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(output_ptr + offsets, x + y, mask=mask)


@triton.jit
def softmax_kernel(
    output_ptr, input_ptr, input_row_stride, output_row_stride, n_rows, n_cols,
    BLOCK_SIZE: tl.constexpr, num_stages: tl.constexpr,
):  # fmt: skip
    """Tutorial 02: persistent, with as many programs as the device has places for."""
    row_start = tl.program_id(0)
    row_step = tl.num_programs(0)
    for row_idx in tl.range(row_start, n_rows, row_step, num_stages=num_stages):
        row_start_ptr = input_ptr + row_idx * input_row_stride
        col_offsets = tl.arange(0, BLOCK_SIZE)
        mask = col_offsets < n_cols
        row = tl.load(row_start_ptr + col_offsets, mask=mask, other=-float("inf"))
        numerator = tl.exp(row - tl.max(row, axis=0))
        denominator = tl.sum(numerator, axis=0)
        output_row_start_ptr = output_ptr + row_idx * output_row_stride
        tl.store(output_row_start_ptr + col_offsets, numerator / denominator, mask=mask)


CONFIGS = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": 32, "GROUP_M": 8}, num_stages=s)
    for m, n, s in ((16, 16, 2), (64, 64, 3), (64, 128, 4), (512, 512, 4))
]


@triton.autotune(configs=CONFIGS, key=["M", "N", "K"])
@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Tutorial 03."""
    pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BLOCK_M)
    num_pid_n = tl.cdiv(N, BLOCK_N)
    num_pid_in_group = GROUP_M * num_pid_n
    group_id = pid // num_pid_in_group
    first_pid_m = group_id * GROUP_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_M)
    pid_m = first_pid_m + ((pid % num_pid_in_group) % group_size_m)
    pid_n = (pid % num_pid_in_group) // group_size_m
    offs_am = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    offs_bn = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + (offs_am[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = b_ptr + (offs_k[:, None] * stride_bk + offs_bn[None, :] * stride_bn)
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):  # noqa: PIE808 - as in the tutorial
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_K, other=0.0)
        accumulator = tl.dot(a, b, accumulator)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    c = accumulator.to(c_ptr.dtype.element_ty)
    offs_cm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_cn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + stride_cm * offs_cm[:, None] + stride_cn * offs_cn[None, :]
    tl.store(c_ptrs, c, mask=(offs_cm[:, None] < M) & (offs_cn[None, :] < N))


@triton.jit
def descriptor_kernel(x_ptr, out_ptr, M, N, BLOCK: tl.constexpr):
    """Copies the transpose, tile by tile, through tensor descriptors."""
    source = tl.make_tensor_descriptor(x_ptr, [M, N], [N, 1], [BLOCK, BLOCK])
    target = tl.make_tensor_descriptor(out_ptr, [N, M], [M, 1], [BLOCK, BLOCK])
    m, n = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    target.store([n, m], source.load([m, n]).T)


@triton.jit
def host_descriptor_kernel(source, out_ptr, N, BLOCK: tl.constexpr):
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.arange(0, BLOCK)
    tile = source.load([tl.program_id(0) * BLOCK, 0])
    tl.store(out_ptr + m[:, None] * N + n[None, :], tile, mask=n[None, :] < N)


@pytest.fixture
def torch(empty_cache: Path) -> Any:
    with RuntimeContext(machine="ahbm", ranks=1, seed=0) as run:
        yield run


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_tutorial_add(torch: Any, dtype: str) -> None:
    x, y = torch.randn(1000, dtype=dtype), torch.randn(1000, dtype=dtype)
    out = torch.empty_like(x)
    add_kernel[lambda meta: (triton.cdiv(1000, meta["BLOCK_SIZE"]),)](
        x, y, out, 1000, BLOCK_SIZE=256
    )
    a, b = x.numpy(), y.numpy()
    expected = (a.astype(np.float32) + b.astype(np.float32)).astype(a.dtype)
    np.testing.assert_array_equal(out.numpy(), expected)


def test_tutorial_softmax_sizes_itself_by_device_properties(torch: Any) -> None:
    x = torch.randn(97, 781)
    y = torch.empty_like(x)
    driver = triton.runtime.driver.active
    properties = driver.utils.get_device_properties(driver.get_current_device())
    compiled = softmax_kernel.warmup(
        y, x, 781, 781, 97, 781, BLOCK_SIZE=1024, num_stages=2, grid=(1,)
    )
    compiled._init_handles()
    softmax_kernel[(min(properties["multiprocessor_count"], 97),)](
        y, x, x.stride(0), y.stride(0), 97, 781, BLOCK_SIZE=1024, num_stages=2
    )
    a = x.numpy().astype(np.float64)
    powers = np.exp(a - a.max(1, keepdims=True))
    np.testing.assert_allclose(y.numpy(), powers / powers.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.adr("0001-D4")
def test_tutorial_matmul_is_tuned_in_modeled_time_off_the_timeline(torch: Any) -> None:
    a = torch.randn(200, 96, dtype="float16")
    b = torch.randn(96, 144, dtype="float16")
    c = torch.empty(200, 144, dtype="float16")
    args = (a, b, c, 200, 144, 96, *a.stride(), *b.stride(), *c.stride())
    matmul_kernel[lambda m: (triton.cdiv(200, m["BLOCK_M"]) * triton.cdiv(144, m["BLOCK_N"]),)](
        *args
    )
    timings = matmul_kernel.configs_timings
    # The last config needs more TCM than a PE has.
    assert [timing[0] < float("inf") for timing in timings.values()] == [True, True, True, False]
    assert len({timing[0] for timing in timings.values()}) > 1
    assert matmul_kernel.best_config is min(timings, key=lambda config: timings[config][0])
    [record] = [k for k in torch.report()["kernels"] if k["name"] == "matmul_kernel"]
    assert record["launches"] == 1
    expected = (a.numpy().astype(np.float32) @ b.numpy().astype(np.float32)).astype(np.float16)
    np.testing.assert_allclose(c.numpy(), expected, rtol=2**-9, atol=2**-10)


def test_tensor_descriptors_made_in_the_kernel(torch: Any) -> None:
    x = torch.randn(52, 40)
    out = torch.zeros(40, 52)
    descriptor_kernel[(4, 3)](x, out, 52, 40, BLOCK=16)
    np.testing.assert_array_equal(out.numpy(), x.numpy().T)


def test_tensor_descriptors_made_on_the_host(torch: Any) -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    x = torch.randn(64, 16)
    out = torch.zeros(64, 16)
    host_descriptor_kernel[(4,)](TensorDescriptor.from_tensor(x, [16, 16]), out, 16, BLOCK=16)
    np.testing.assert_array_equal(out.numpy(), x.numpy())


def test_launch_and_subscript_are_the_same_thing(torch: Any) -> None:
    x = torch.randn(300)
    outs = [torch.empty(300), torch.empty(300)]
    torch.launch("add", add_kernel, x, x, outs[0], 300, grid=(2,), BLOCK_SIZE=256)
    add_kernel[(2,)](x, x, outs[1], 300, BLOCK_SIZE=256)
    np.testing.assert_array_equal(outs[0].numpy(), outs[1].numpy())


@triton.jit
def scalars_kernel(y_ptr, n, VALUE: tl.constexpr):
    """Scalars that a loop carries, as the running maximum of an online softmax is."""
    largest = VALUE
    for _ in range(n):
        largest = tl.where(n > 100, 0.0, largest)
    tl.store(y_ptr, largest)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("value", [float("-inf"), float("inf"), float("nan"), -0.0, 1e-3, 1e300])
def test_scalar_constants_are_the_numbers_that_they_are(
    torch: Any, dtype: str, value: float
) -> None:
    y = torch.zeros(1, dtype=dtype)
    scalars_kernel[(1,)](y, 3, VALUE=value)
    with np.errstate(over="ignore"):
        # What Triton holds a constant in: float32 unless it does not fit.
        held = np.float64(value) if abs(value) == 1e300 else np.float32(value)
        expected = held.astype(y.numpy().dtype)
    result = float(y.numpy()[0])
    np.testing.assert_array_equal(result, float(expected))
    # Before 3.9 Triton itself writes 0.0 for any value that equals it.
    loses_sign = value == 0 and triton.__version__.startswith(("3.6.", "3.7.", "3.8."))
    assert np.isnan(value) or loses_sign or np.signbit(result) == np.signbit(float(expected))
