"""Persistent kernels: spread out where that changes nothing, and left alone where it would."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from kernbench.commands import Gemm, KernelTrace, Loop, walk
from kernbench.replay import PointerArg
from kernbench.replay.plans.persistent import iterations_as_programs
from kernbench.replay.plans.plan import Plan
from kernbench.triton_backend import activate
from tests.replay.executing import ExecutingLauncher
from tests.tiers import examples

RNG = np.random.default_rng(44)


@pytest.fixture
def device() -> Iterator[ExecutingLauncher]:
    launcher = ExecutingLauncher()
    with activate(launcher):
        yield launcher


@triton.jit
def persistent_product(
    a_ptr, b_ptr, c_ptr, scale_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    G: tl.constexpr,
):  # fmt: skip
    num_m, num_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    per_group = G * num_n
    scale = tl.load(scale_ptr)
    for tile in tl.range(tl.program_id(0), num_m * num_n, tl.num_programs(0), flatten=True):
        first = tile // per_group * G
        size = min(num_m - first, G)
        tile_m = first + (tile % per_group) % size
        tile_n = (tile % per_group) // size
        rows = tile_m * BM + tl.arange(0, BM)
        cols = tile_n * BN + tl.arange(0, BN)
        a_rows = tl.where(rows < M, rows, 0)
        b_cols = tl.where(cols < N, cols, 0)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(tl.cdiv(K, BK)):
            inner = k * BK + tl.arange(0, BK)
            a = tl.load(a_ptr + a_rows[:, None] * K + inner[None, :], inner[None, :] < K, other=0)
            b = tl.load(b_ptr + inner[:, None] * N + b_cols[None, :], inner[:, None] < K, other=0)
            acc = tl.dot(a, b, acc)
        mask = (rows[:, None] < M) & (cols[None, :] < N)
        tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc * scale, mask=mask)


def run_product(device: ExecutingLauncher, m: int, n: int, k: int, programs: int) -> Any:
    a = RNG.integers(-3, 4, (m, k)).astype(np.float16)
    b = RNG.integers(-3, 4, (k, n)).astype(np.float16)
    c = device.tensor(np.full((m, n), 7, np.float32))
    scale = device.tensor(np.array([0.5], np.float32))
    persistent_product[(programs,)](
        device.tensor(a), device.tensor(b), c, scale, m, n, k, BM=32, BN=16, BK=16, G=2
    )
    return c.numpy(), a.astype(np.float32) @ b.astype(np.float32) * np.float32(0.5)


@pytest.mark.parametrize("programs", [1, 4, 5, 12, 50])
def test_a_persistent_product_is_one_product(device: ExecutingLauncher, programs: int) -> None:
    result, expected = run_product(device, 96, 64, 40, programs)
    np.testing.assert_array_equal(result, expected)
    plan = Plan(device.last)
    assert [len(group.chunks.program_ids) for group in plan.groups] == [1]


@examples(15)
@given(
    m=st.integers(2, 100), n=st.integers(2, 80), k=st.integers(2, 50), programs=st.integers(1, 20)
)
def test_a_persistent_product_is_right_for_any_size(m: int, n: int, k: int, programs: int) -> None:
    device = ExecutingLauncher()
    with activate(device):
        result, expected = run_product(device, m, n, k, programs)
    np.testing.assert_array_equal(result, expected)


@triton.jit
def persistent_rows(x_ptr, out_ptr, rows, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        x = tl.load(x_ptr + row * columns + at, mask=at < columns, other=-float("inf"))
        powers = tl.exp(x - tl.max(x, axis=0))
        tl.store(out_ptr + row * columns + at, powers / tl.sum(powers), mask=at < columns)


def bits_of(trace: KernelTrace, composite: bool, *arrays: Any) -> bytes:
    device = ExecutingLauncher()
    tensors = [device.tensor(array) for array in arrays]
    Plan(trace, composite=composite).run([PointerArg(tensor.buffer) for tensor in tensors])
    return tensors[-1].numpy().tobytes()


@pytest.mark.parametrize("programs", [1, 3, 8, 100])
def test_rows_have_the_bits_of_the_loop_as_it_is_written(
    device: ExecutingLauncher, programs: int
) -> None:
    x = RNG.standard_normal((37, 50)).astype(np.float32)
    out = device.tensor(np.zeros_like(x))
    persistent_rows[(programs,)](device.tensor(x), out, 37, 50, BLOCK=64)
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    expected = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6)
    spread = iterations_as_programs(device.last.groups)
    assert spread is not None
    # Of 3 programs one has a tile more; together they are 37 programs.
    assert [len(group.program_ids) for group in spread] == [37]
    assert not any(isinstance(command, Loop) for command in walk(spread[0].body))
    zeros = np.zeros_like(x)
    assert bits_of(device.last, True, x, zeros) == bits_of(device.last, False, x, zeros)


@triton.jit
def running_maximum(x_ptr, out_ptr, n):
    """Right only if an iteration sees what the one before it stored."""
    for i in range(1, n):
        before, here = tl.load(x_ptr + i - 1), tl.load(x_ptr + i)
        tl.store(out_ptr + i, tl.maximum(before, here))


def test_a_loop_that_works_in_place_keeps_its_order(device: ExecutingLauncher) -> None:
    x = RNG.permutation(64).astype(np.int32)
    apart, source = device.tensor(np.zeros(64, np.int32)), device.tensor(x)
    running_maximum[(1,)](source, apart, 64)
    assert iterations_as_programs(device.last.groups) is not None
    np.testing.assert_array_equal(apart.numpy()[1:], np.maximum(x[:-1], x[1:]))
    running_maximum[(1,)](source, source, 64)
    np.testing.assert_array_equal(source.numpy(), np.maximum.accumulate(x))


@triton.jit
def two_stores(x_ptr, out_ptr, n):
    """The second store of an iteration is overwritten by the first one of the next."""
    for i in range(n):
        x = tl.load(x_ptr + i)
        tl.store(out_ptr + i, x)
        tl.store(out_ptr + i + 1, -x)


@triton.jit
def two_stores_apart(x_ptr, out_ptr, n):
    """Two stores of an iteration, each to a byte of its own."""
    for i in range(n):
        x = tl.load(x_ptr + i)
        tl.store(out_ptr + 2 * i, x)
        tl.store(out_ptr + 2 * i + 1, -x)


def test_stores_to_other_bytes_have_no_order(device: ExecutingLauncher) -> None:
    x = RNG.integers(1, 100, 12).astype(np.int32)
    out = device.tensor(np.zeros(24, np.int32))
    two_stores_apart[(1,)](device.tensor(x), out, 12)
    spread = iterations_as_programs(device.last.groups)
    assert spread is not None
    assert [len(group.program_ids) for group in spread] == [12]
    np.testing.assert_array_equal(out.numpy().reshape(12, 2), np.stack([x, -x], axis=1))


@triton.jit
def store_in_a_loop(x_ptr, out_ptr, n):
    for i in range(n):
        for j in range(3):
            tl.store(out_ptr + i + j, tl.load(x_ptr + 3 * i + j))


@triton.jit
def carries(x_ptr, out_ptr, n):
    total = 0
    for i in range(n):
        total += tl.load(x_ptr + i)
        tl.store(out_ptr + i, total)


@triton.jit
def reads_what_it_stores(x_ptr, out_ptr, n):
    for i in range(n):
        tl.store(out_ptr + i + 1, tl.load(out_ptr + i) + tl.load(x_ptr + i))


@triton.jit
def counts(x_ptr, out_ptr, n):
    for i in range(n):
        tl.atomic_add(out_ptr + i % 3, tl.load(x_ptr + i))


def test_loops_with_an_order_are_left_alone(device: ExecutingLauncher) -> None:
    x = RNG.integers(1, 100, 36).astype(np.int32)
    chosen = [x[3 * (i - j) + j] for i in range(14) for j in [max(0, i - 11)]]
    expected: dict[Any, Any] = {
        two_stores: [*x[:12], -x[11]],
        store_in_a_loop: chosen,
        carries: np.cumsum(x[:12]),
        reads_what_it_stores: [0, *np.cumsum(x[:12])],
        counts: [x[:12][i::3].sum() for i in range(3)],
    }
    for kernel, values in expected.items():
        out = device.tensor(np.zeros(40, np.int32))
        kernel[(1,)](device.tensor(x), out, 12)
        assert iterations_as_programs(device.last.groups) is None, kernel
        assert out.numpy()[: len(values)].tolist() == list(values), kernel


@triton.jit
def two_shapes(x_ptr, out_ptr, n, ODD: tl.constexpr):
    """Programs with another number of tiles also compute something else."""
    factor = 2 if tl.program_id(0) == 0 else 3
    if tl.program_id(0) == 0:
        for i in range(n):
            tl.store(out_ptr + i, tl.load(x_ptr + i) * 2)
    else:
        for i in range(n, n + ODD):
            tl.store(out_ptr + i, tl.load(x_ptr + i) * factor)


def test_groups_that_differ_in_more_than_addresses_stay_apart(device: ExecutingLauncher) -> None:
    x = RNG.integers(1, 100, 20).astype(np.int32)
    out = device.tensor(np.zeros(20, np.int32))
    two_shapes[(2,)](device.tensor(x), out, 12, ODD=5)
    spread = iterations_as_programs(device.last.groups)
    assert spread is not None
    assert [len(group.program_ids) for group in spread] == [12, 5]
    assert out.numpy().tolist() == [*(2 * x[:12]), *(3 * x[12:17]), 0, 0, 0]


def test_a_buffer_that_a_persistent_loop_fills_is_not_cleared_first(
    device: ExecutingLauncher,
) -> None:
    x = RNG.standard_normal((16, 64)).astype(np.float32)
    persistent_rows[(3,)](device.tensor(x), device.tensor(x), 16, 64, BLOCK=64)
    plan = Plan(device.last)
    memory = ExecutingLauncher()
    source, target = memory.tensor(x), memory.memory.allocate(x.nbytes, "out")
    assert target.is_unwritten
    plan.run([PointerArg(source.buffer), PointerArg(target)])
    (stored,) = (plan._stored or {}).values()
    assert stored == (0, x.nbytes)
    products = [c for group in device.last.groups for c in walk(group.body) if isinstance(c, Gemm)]
    assert not products
