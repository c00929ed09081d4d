"""Kernels that real Triton compiled, evaluated and replayed, against numpy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

from kernbench.replay.plans.composite import composite_groups
from kernbench.triton_backend import activate
from tests.replay.executing import ExecutingLauncher

RNG = np.random.default_rng(5)


@pytest.fixture
def device() -> Iterator[ExecutingLauncher]:
    launcher = ExecutingLauncher()
    with activate(launcher):
        yield launcher


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask) + tl.load(y_ptr + at, mask), mask)


def test_vector_add(device: ExecutingLauncher) -> None:
    x, y = normal(1000), normal(1000)
    out = device.tensor(np.zeros(1000, np.float32))
    add_kernel[(8,)](device.tensor(x), device.tensor(y), out, 1000, BLOCK=128)
    np.testing.assert_array_equal(out.numpy(), x + y)


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, G: tl.constexpr, ACT: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    num_m, num_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    per_group = G * num_n
    first = pid // per_group * G
    size = min(num_m - first, G)
    pid_m = first + (pid % per_group) % size
    pid_n = (pid % per_group) // size
    rows = (pid_m * BM + tl.arange(0, BM)) % M
    cols = (pid_n * BN + tl.arange(0, BN)) % N
    inner = tl.arange(0, BK)
    a_at = a_ptr + rows[:, None] * stride_am + inner[None, :] * stride_ak
    b_at = b_ptr + inner[:, None] * stride_bk + cols[None, :] * stride_bn
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        a = tl.load(a_at, mask=inner[None, :] < K - k * BK, other=0.0)
        b = tl.load(b_at, mask=inner[:, None] < K - k * BK, other=0.0)
        acc = tl.dot(a, b, acc)
        a_at += BK * stride_ak
        b_at += BK * stride_bk
    if ACT == "leaky":
        acc = tl.where(acc >= 0, acc, 0.01 * acc)
    c = acc.to(c_ptr.dtype.element_ty)
    out_m = pid_m * BM + tl.arange(0, BM)
    out_n = pid_n * BN + tl.arange(0, BN)
    c_at = c_ptr + stride_cm * out_m[:, None] + stride_cn * out_n[None, :]
    tl.store(c_at, c, mask=(out_m[:, None] < M) & (out_n[None, :] < N))


@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 64), (100, 90, 70), (1, 33, 257), (200, 8, 16)])
@pytest.mark.parametrize("act", ["none", "leaky"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.adr("0005-D1")
def test_tutorial_matmul_is_one_product(
    device: ExecutingLauncher, m: int, n: int, k: int, act: str, transposed: bool
) -> None:
    a, b = normal(m, k, dtype=np.float16), normal(k, n, dtype=np.float16)
    c = device.tensor(np.zeros((m, n), np.float16))
    b_strides = (1, k) if transposed else (n, 1)
    matmul_kernel[(triton.cdiv(m, 32) * triton.cdiv(n, 32),)](
        device.tensor(a), device.tensor(b.T if transposed else b), c, m, n, k, k, 1, *b_strides,
        n, 1, BM=32, BN=32, BK=32, G=4, ACT=act,
    )  # fmt: skip
    product = a.astype(np.float32) @ b.astype(np.float32)
    if act == "leaky":
        product = np.where(product >= 0, product, np.float32(0.01) * product)
    np.testing.assert_allclose(
        c.numpy().astype(np.float32),
        product.astype(np.float16).astype(np.float32),
        rtol=2e-3,
        atol=2e-3,
    )
    groups = [part for group in device.last.groups for part in composite_groups(group)]
    assert [len(group.program_ids) for group in groups] == [1]


@triton.jit
def softmax_kernel(out_ptr, in_ptr, in_stride, out_stride, rows, cols, BLOCK: tl.constexpr):
    start, step = tl.program_id(0), tl.num_programs(0)
    for row in tl.range(start, rows, step, num_stages=3):
        at = tl.arange(0, BLOCK)
        mask = at < cols
        x = tl.load(in_ptr + row * in_stride + at, mask=mask, other=-float("inf"))
        e = tl.exp(x - tl.max(x, axis=0))
        tl.store(out_ptr + row * out_stride + at, e / tl.sum(e, axis=0), mask=mask)


@pytest.mark.parametrize("grid", [1, 7, 64])
def test_persistent_softmax(device: ExecutingLauncher, grid: int) -> None:
    x = normal(64, 100)
    out = device.tensor(np.zeros_like(x))
    softmax_kernel[(grid,)](out, device.tensor(x), 100, 100, 64, 100, BLOCK=128)
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(out.numpy(), e / e.sum(1, keepdims=True), rtol=2e-6)


@triton.jit
def layer_norm_kernel(x_ptr, w_ptr, b_ptr, out_ptr, stride, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x_ptr += row * stride
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / N
    square = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)
        x = tl.where(cols < N, x - mean, 0.0)
        square += x * x
    rstd = 1 / tl.sqrt(tl.sum(square, axis=0) / N + eps)
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < N
        w = tl.load(w_ptr + cols, mask=mask)
        b = tl.load(b_ptr + cols, mask=mask)
        x = tl.load(x_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(out_ptr + row * stride + cols, (x - mean) * rstd * w + b, mask=mask)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_layer_norm(device: ExecutingLauncher, dtype: Any) -> None:
    x, w, b = normal(33, 300, dtype=dtype), normal(300), normal(300)
    out = device.tensor(np.zeros_like(x))
    layer_norm_kernel[(33,)](
        device.tensor(x), device.tensor(w), device.tensor(b), out, 300, 300, 1e-5, BLOCK=64
    )
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    tolerance = 2e-3 if dtype == np.float16 else 1e-5
    np.testing.assert_allclose(out.numpy(), expected * w + b, rtol=tolerance, atol=tolerance)


@triton.jit
def embedding_kernel(table_ptr, index_ptr, out_ptr, width, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    row = tl.load(index_ptr + pid)
    cols = tl.arange(0, BLOCK)
    x = tl.load(table_ptr + row * width + cols, mask=cols < width)
    tl.store(out_ptr + pid * width + cols, x, mask=cols < width)


def test_embedding(device: ExecutingLauncher) -> None:
    table, index = normal(50, 100), RNG.integers(0, 50, 77)
    out = device.tensor(np.zeros((77, 100), np.float32))
    embedding_kernel[(77,)](device.tensor(table), device.tensor(index), out, 100, BLOCK=128)
    np.testing.assert_array_equal(out.numpy(), table[index])


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, T, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    head = tl.program_id(1)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    base = head * T * D
    q = tl.load(q_ptr + base + rows[:, None] * D + d[None, :], mask=rows[:, None] < T, other=0.0)
    top = tl.full([BM], -float("inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for start in range(0, T, BN):
        cols = start + tl.arange(0, BN)
        inside = cols[:, None] < T
        k = tl.load(k_ptr + base + cols[:, None] * D + d[None, :], mask=inside, other=0.0)
        v = tl.load(v_ptr + base + cols[:, None] * D + d[None, :], mask=inside, other=0.0)
        s = tl.dot(q, tl.trans(k)) * scale
        s = tl.where((cols[None, :] < T) & (cols[None, :] <= rows[:, None]), s, -float("inf"))
        new_top = tl.maximum(top, tl.max(s, 1))
        p = tl.exp(s - new_top[:, None])
        fade = tl.exp(top - new_top)
        total = total * fade + tl.sum(p, 1)
        acc = acc * fade[:, None] + tl.dot(p.to(v.dtype), v)
        top = new_top
    out = acc / total[:, None]
    at = out_ptr + base + rows[:, None] * D + d[None, :]
    tl.store(at, out.to(out_ptr.dtype.element_ty), mask=rows[:, None] < T)


@pytest.mark.parametrize("length", [32, 50])
def test_causal_flash_attention(device: ExecutingLauncher, length: int) -> None:
    q, k, v = (normal(3, length, 16) for _ in range(3))
    out = device.tensor(np.zeros_like(q))
    attention_kernel[(triton.cdiv(length, 16), 3)](
        device.tensor(q), device.tensor(k), device.tensor(v), out, length, 0.25, D=16, BM=16, BN=16
    )
    s = q @ k.transpose(0, 2, 1) * 0.25
    s = np.where(np.tril(np.ones((length, length), bool)), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    expected = p / p.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(out.numpy(), expected, rtol=2e-5, atol=2e-6)


@triton.jit
def argmax_kernel(x_ptr, out_ptr, value_ptr, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * N + cols, mask=cols < N, other=-float("inf"))
    value, index = tl.max(x, axis=0, return_indices=True)
    tl.store(out_ptr + row, index)
    tl.store(value_ptr + row, value)


def test_argmax(device: ExecutingLauncher) -> None:
    x = RNG.integers(0, 9, (20, 30)).astype(np.float32)
    index, value = device.tensor(np.zeros(20, np.int32)), device.tensor(np.zeros(20, np.float32))
    argmax_kernel[(20,)](device.tensor(x), index, value, 30, BLOCK=32)
    np.testing.assert_array_equal(index.numpy(), x.argmax(1))
    np.testing.assert_array_equal(value.numpy(), x.max(1))


@triton.jit
def transpose_kernel(x_ptr, out_ptr, M, N, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    x = tl.load(x_ptr + rows[:, None] * N + cols[None, :], mask=mask)
    tl.store(out_ptr + cols[:, None] * M + rows[None, :], tl.trans(x), mask=tl.trans(mask))


def test_transpose(device: ExecutingLauncher) -> None:
    x = normal(70, 45)
    out = device.tensor(np.zeros((45, 70), np.float32))
    transpose_kernel[(5, 3)](device.tensor(x), out, 70, 45, BLOCK=16)
    np.testing.assert_array_equal(out.numpy(), x.T)


@triton.jit
def dropout_kernel(x_ptr, out_ptr, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + at, mask=mask)
    keep = tl.rand(seed, at) > p
    tl.store(out_ptr + at, tl.where(keep, x / (1 - p), 0.0), mask=mask)


def _philox(seed: int, offset: int) -> float:
    """The first uniform number of Philox 4x32-10. Source: Salmon et al., SC 2011."""
    word = 0xFFFFFFFF
    c0, c1, c2, c3 = offset, 0, 0, 0
    k0, k1 = seed & word, seed >> 32
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & word, (a >> 32) ^ c3 ^ k1, a & word
        k0, k1 = (k0 + 0x9E3779B9) & word, (k1 + 0xBB67AE85) & word
    signed = c0 - (1 << 32) if c0 >> 31 else c0
    return abs(signed if signed >= 0 else -signed - 1) * 4.6566127342e-10


def test_dropout_draws_the_numbers_of_philox(device: ExecutingLauncher) -> None:
    x = normal(300)
    out = device.tensor(np.zeros_like(x))
    dropout_kernel[(3,)](device.tensor(x), out, 300, 0.4, 123, BLOCK=128)
    kept = np.array([_philox(123, i) > 0.4 for i in range(300)])
    np.testing.assert_allclose(out.numpy(), np.where(kept, x / np.float32(0.6), 0), rtol=1e-6)


@triton.jit
def gelu_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + at, mask=mask).to(tl.float32)
    y = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), mask=mask)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_gelu(device: ExecutingLauncher, dtype: Any) -> None:
    x = normal(500, dtype=dtype)
    out = device.tensor(np.zeros_like(x))
    gelu_kernel[(4,)](device.tensor(x), out, 500, BLOCK=128)
    expected = [0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x.astype(float)]
    np.testing.assert_allclose(
        out.numpy().astype(float), expected, rtol=2e-3 if dtype == np.float16 else 1e-5, atol=1e-6
    )


@triton.jit
def row_sum_kernel(x_ptr, out_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    row = tl.program_id(0) * BM
    x = tl.make_tensor_descriptor(x_ptr, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    total = tl.zeros([BM], tl.float32)
    for start in range(0, N, BN):
        total += tl.sum(x.load([row, start]), axis=1)
    rows = row + tl.arange(0, BM)
    tl.store(out_ptr + rows, total, mask=rows < M)


def test_tensor_descriptors_read_zero_outside(device: ExecutingLauncher) -> None:
    x = RNG.integers(-3, 4, (37, 52)).astype(np.float32)
    out = device.tensor(np.zeros(37, np.float32))
    row_sum_kernel[(3,)](device.tensor(x), out, 37, 52, BM=16, BN=16)
    np.testing.assert_array_equal(out.numpy(), x.sum(1))


@triton.jit
def int_dot_kernel(a_ptr, b_ptr, c_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = i[:, None] * BLOCK + i[None, :]
    c = tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at), out_dtype=tl.int32)
    tl.store(c_ptr + at, c)


def test_an_int8_product_is_exact(device: ExecutingLauncher) -> None:
    a, b = (RNG.integers(-128, 128, (32, 32)).astype(np.int8) for _ in range(2))
    c = device.tensor(np.zeros((32, 32), np.int32))
    int_dot_kernel[(1,)](device.tensor(a), device.tensor(b), c, BLOCK=32)
    np.testing.assert_array_equal(c.numpy(), a.astype(np.int32) @ b.astype(np.int32))


@triton.jit
def swiglu_kernel(
    x_ptr, gate_ptr, up_ptr, scale_ptr, out_ptr, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    gate = tl.zeros((BM, BN), dtype=tl.float32)
    up = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        inner = start + tl.arange(0, BK)
        x_mask = (rows[:, None] < M) & (inner[None, :] < K)
        w_mask = (inner[:, None] < K) & (cols[None, :] < N)
        w_at = inner[:, None] * N + cols[None, :]
        x = tl.load(x_ptr + rows[:, None] * K + inner[None, :], mask=x_mask, other=0.0)
        gate += tl.dot(x, tl.load(gate_ptr + w_at, mask=w_mask, other=0.0))
        # The second weight is stored in 8 bits.
        up += tl.dot(x, tl.load(up_ptr + w_at, mask=w_mask, other=0).to(tl.float16))
    up = up * tl.load(scale_ptr + cols, mask=cols < N, other=0.0)[None, :]
    out = gate * tl.sigmoid(gate) * up
    out_mask = (rows[:, None] < M) & (cols[None, :] < N)
    tl.store(out_ptr + rows[:, None] * N + cols[None, :], out, mask=out_mask)


def test_two_products_of_one_matrix_with_an_8_bit_weight(device: ExecutingLauncher) -> None:
    m, n, k = 50, 40, 70
    x, gate = normal(m, k, dtype=np.float16), normal(k, n, dtype=np.float16)
    up, scale = RNG.integers(-9, 9, (k, n)).astype(np.int8), normal(n)
    out = device.tensor(np.zeros((m, n), np.float32))
    swiglu_kernel[(4, 3)](
        device.tensor(x), device.tensor(gate), device.tensor(up), device.tensor(scale), out,
        m, n, k, BM=16, BN=16, BK=32,
    )  # fmt: skip
    wide = x.astype(np.float32)
    g = wide @ gate.astype(np.float32)
    expected = g / (1 + np.exp(-g)) * (wide @ up.astype(np.float32) * scale)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-4, atol=1e-4)
    assert [len(g.program_ids) for g in composite_groups(device.last.groups[0])] == [1]


@triton.jit
def batched_kernel(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr,
                   BK: tl.constexpr):  # fmt: skip
    z = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        inner = start + tl.arange(0, BK)
        a_at = a_ptr + z * M * K + rows[:, None] * K + inner[None, :]
        b_at = b_ptr + z * K * N + inner[:, None] * N + cols[None, :]
        a = tl.load(a_at, mask=(rows[:, None] < M) & (inner[None, :] < K), other=0.0)
        b = tl.load(b_at, mask=(inner[:, None] < K) & (cols[None, :] < N), other=0.0)
        acc = tl.dot(a, b, acc)
    c_at = c_ptr + z * M * N + rows[:, None] * N + cols[None, :]
    tl.store(c_at, acc, mask=(rows[:, None] < M) & (cols[None, :] < N))


def test_a_batch_on_the_third_grid_axis(device: ExecutingLauncher) -> None:
    a = RNG.integers(-3, 4, (5, 40, 33)).astype(np.float32)
    b = RNG.integers(-3, 4, (5, 33, 50)).astype(np.float32)
    c = device.tensor(np.zeros((5, 40, 50), np.float32))
    batched_kernel[(3, 4, 5)](
        device.tensor(a), device.tensor(b), c, 40, 50, 33, BM=16, BN=16, BK=16
    )
    np.testing.assert_array_equal(c.numpy(), a @ b)
    assert len(composite_groups(device.last.groups[0])) == 5


@triton.jit
def persistent_matmul_kernel(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr,
                             BK: tl.constexpr):  # fmt: skip
    num_n = tl.cdiv(N, BN)
    tiles = tl.cdiv(M, BM) * num_n
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        rows = tile // num_n * BM + tl.arange(0, BM)
        cols = tile % num_n * BN + tl.arange(0, BN)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for start in range(0, K, BK):
            inner = start + tl.arange(0, BK)
            a_at = a_ptr + rows[:, None] * K + inner[None, :]
            b_at = b_ptr + inner[:, None] * N + cols[None, :]
            a = tl.load(a_at, mask=(rows[:, None] < M) & (inner[None, :] < K), other=0.0)
            b = tl.load(b_at, mask=(inner[:, None] < K) & (cols[None, :] < N), other=0.0)
            acc = tl.dot(a, b, acc)
        c_at = c_ptr + rows[:, None] * N + cols[None, :]
        tl.store(c_at, acc, mask=(rows[:, None] < M) & (cols[None, :] < N))


@pytest.mark.parametrize("grid", [1, 4, 5, 12])
def test_persistent_matmul(device: ExecutingLauncher, grid: int) -> None:
    a = RNG.integers(-3, 4, (40, 33)).astype(np.float32)
    b = RNG.integers(-3, 4, (33, 50)).astype(np.float32)
    c = device.tensor(np.zeros((40, 50), np.float32))
    persistent_matmul_kernel[(grid,)](
        device.tensor(a), device.tensor(b), c, 40, 50, 33, BM=16, BN=16, BK=16
    )
    np.testing.assert_array_equal(c.numpy(), a @ b)


@triton.jit
def in_place_kernel(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + at, mask)
    tl.store(x_ptr + at, x * 2, mask)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask) + x, mask)


def test_in_place_updates(device: ExecutingLauncher) -> None:
    x = normal(1000)
    on_device = device.tensor(x)
    in_place_kernel[(8,)](on_device, 1000, BLOCK=128)
    np.testing.assert_array_equal(on_device.numpy(), x * 2 + x)


@triton.jit
def constant_dot_kernel(out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    a = tl.full((M, K), 1.0, tl.float32)
    b = tl.full((K, N), 2.0, tl.float32)
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + at, tl.dot(a, b))


def test_a_product_of_constants_counts_the_whole_inner_axis(device: ExecutingLauncher) -> None:
    out = device.tensor(np.zeros((16, 32), np.float32))
    constant_dot_kernel[(1,)](out, 16, 32, 64)
    assert (out.numpy() == 128).all()


@triton.jit
def products_kernel(
    a_ptr, b_ptr, c_ptr, d_ptr, out_ptr, N, K, BEFORE: tl.constexpr, AFTER: tl.constexpr,
    BLOCK: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A product over K in pieces, with one over BLOCK before the loop, after it, or both."""
    inner = tl.arange(0, BLOCK)
    rows = tl.program_id(0) * BLOCK + inner
    cols = tl.program_id(1) * BLOCK + inner
    a = tl.load(a_ptr + rows[:, None] * BLOCK + inner[None, :])
    b = tl.load(b_ptr + inner[:, None] * N + cols[None, :])
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    if BEFORE:
        total = tl.dot(a, b, total)
    for start in range(0, K, BK):
        at = start + tl.arange(0, BK)
        c = tl.load(c_ptr + rows[:, None] * K + at[None, :])
        d = tl.load(d_ptr + at[:, None] * N + cols[None, :])
        total = tl.dot(c, d, total)
    if AFTER:
        total = tl.dot(a, b, total)
    tl.store(out_ptr + rows[:, None] * N + cols[None, :], total)


@pytest.mark.parametrize("grid", [1, 2])
@pytest.mark.parametrize("block_k", [16, 32, 64])
@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True), (True, True)])
def test_a_product_beside_the_loop_is_added_once(
    device: ExecutingLauncher, grid: int, block_k: int, before: bool, after: bool
) -> None:
    n, k, block = 16 * grid, 64, 16
    a, b, c, d = (
        RNG.integers(-3, 4, shape).astype(np.float32)
        for shape in ((n, block), (block, n), (n, k), (k, n))
    )
    out = device.tensor(np.zeros((n, n), np.float32))
    tensors = [device.tensor(item) for item in (a, b, c, d)]
    products_kernel[(grid, grid)](
        *tensors, out, n, k, BEFORE=before, AFTER=after, BLOCK=block, BK=block_k
    )
    np.testing.assert_array_equal(out.numpy(), c @ d + (before + after) * (a @ b))


@triton.jit
def same_product_kernel(a_ptr, b_ptr, out_ptr, BLOCK: tl.constexpr):
    inner = tl.arange(0, BLOCK)
    at = inner[:, None] * BLOCK + inner[None, :]
    product = tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at))
    tl.store(out_ptr + tl.program_id(0) * BLOCK * BLOCK + at, product)


@pytest.mark.parametrize("grid", [1, 2, 5])
def test_a_product_that_is_the_same_in_every_program_is_everywhere(
    device: ExecutingLauncher, grid: int
) -> None:
    a, b = (RNG.integers(-3, 4, (16, 16)).astype(np.float32) for _ in range(2))
    out = device.tensor(np.zeros((grid, 16, 16), np.float32))
    same_product_kernel[(grid,)](device.tensor(a), device.tensor(b), out, BLOCK=16)
    np.testing.assert_array_equal(out.numpy(), np.broadcast_to(a @ b, (grid, 16, 16)))
