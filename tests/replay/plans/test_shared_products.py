"""Products of all programs together, in kernels that as a whole cannot be merged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from kernbench.commands import KernelTrace
from kernbench.replay import PointerArg
from kernbench.replay.plans.composite import composite_groups
from kernbench.replay.plans.plan import Plan
from kernbench.triton_backend import activate
from tests.replay.executing import ExecutingLauncher
from tests.tiers import examples

RNG = np.random.default_rng(7)


@pytest.fixture
def device() -> Iterator[ExecutingLauncher]:
    launcher = ExecutingLauncher()
    with activate(launcher):
        yield launcher


def integers(*shape: int, dtype: Any = np.float16) -> np.ndarray:
    return RNG.integers(-3, 4, shape).astype(dtype)


def num_shared(trace: KernelTrace) -> int:
    """Return how many loops are computed for all programs; no group is merged as a whole."""
    assert all(composite_groups(group) == [group] for group in trace.groups)
    return sum(len(group._shared) for group in Plan(trace).groups)


@triton.jit
def stored_in_halves(
    a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    tile_m, tile_n = tl.program_id(0), tl.program_id(1)
    rows = tile_m * BM + tl.arange(0, BM)
    cols = (tile_n * BN + tl.arange(0, BN)) % N
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        inner = k * BK + tl.arange(0, BK)
        a_mask = (rows[:, None] < M) & (inner[None, :] < K)
        a = tl.load(a_ptr + rows[:, None] * K + inner[None, :], mask=a_mask, other=0)
        b = tl.load(b_ptr + inner[:, None] * N + cols[None, :], mask=inner[:, None] < K, other=0)
        acc = tl.dot(a, b, acc)
    halves = tl.permute(tl.reshape(acc, (BM, 2, BN // 2)), (0, 2, 1))
    left, right = tl.split(halves)
    for half in tl.static_range(2):
        at = tile_n * BN + half * (BN // 2) + tl.arange(0, BN // 2)
        c_at = c_ptr + rows[:, None] * N + at[None, :]
        tl.store(c_at, left if half == 0 else right, (rows[:, None] < M) & (at[None, :] < N))


def run_in_halves(device: ExecutingLauncher, m: int, n: int, k: int) -> Any:
    a, b = integers(m, k), integers(k, n)
    c = device.tensor(np.full((m, n), 7, np.float32))
    grid = (triton.cdiv(m, 32), triton.cdiv(n, 16))
    stored_in_halves[grid](device.tensor(a), device.tensor(b), c, m, n, k, BM=32, BN=16, BK=16)
    return c.numpy(), a.astype(np.float32) @ b.astype(np.float32)


def test_a_tile_that_is_split_in_two_is_part_of_one_product(device: ExecutingLauncher) -> None:
    result, expected = run_in_halves(device, 96, 64, 40)
    np.testing.assert_array_equal(result, expected)
    assert num_shared(device.last) == 1


@examples(15)
@given(m=st.integers(2, 100), n=st.integers(2, 80), k=st.integers(2, 50))
def test_a_shared_product_is_right_for_any_size(m: int, n: int, k: int) -> None:
    device = ExecutingLauncher()
    with activate(device):
        result, expected = run_in_halves(device, m, n, k)
    np.testing.assert_array_equal(result, expected)


@triton.jit
def split_k(a_ptr, b_ptr, c_ptr, M, N, K, S: tl.constexpr, B: tl.constexpr):
    rows = tl.program_id(0) * B + tl.arange(0, B)
    cols = tl.program_id(1) * B + tl.arange(0, B)
    part = tl.program_id(2)
    acc = tl.zeros((B, B), dtype=tl.float32)
    for k in range(part * (K // S), (part + 1) * (K // S), B):
        inner = k + tl.arange(0, B)
        a = tl.load(a_ptr + rows[:, None] * K + inner[None, :])
        b = tl.load(b_ptr + inner[:, None] * N + cols[None, :])
        acc = tl.dot(a, b, acc)
    tl.atomic_add(c_ptr + rows[:, None] * N + cols[None, :], acc)


def test_every_part_of_split_k_is_a_product(device: ExecutingLauncher) -> None:
    a, b = integers(64, 96), integers(96, 48)
    c = device.tensor(np.ones((64, 48), np.float32))
    split_k[(4, 3, 3)](device.tensor(a), device.tensor(b), c, 64, 48, 96, S=3, B=16)
    np.testing.assert_array_equal(c.numpy(), 1 + a.astype(np.float32) @ b.astype(np.float32))
    assert num_shared(device.last) == 1


@triton.jit
def largest_of_rows(a_ptr, b_ptr, out_ptr, N, K, B: tl.constexpr):
    """Two products in one loop, reduced along the rows of a tile."""
    rows = tl.program_id(0) * B + tl.arange(0, B)
    cols = tl.program_id(1) * B + tl.arange(0, B)
    plain = tl.zeros((B, B), dtype=tl.float32)
    doubled = tl.zeros((B, B), dtype=tl.float32)
    for k in range(0, K, B):
        inner = k + tl.arange(0, B)
        a = tl.load(a_ptr + rows[:, None] * K + inner[None, :])
        b = tl.load(b_ptr + inner[:, None] * N + cols[None, :])
        plain = tl.dot(a, b, plain)
        doubled = tl.dot(a, b + b, doubled)
    tl.store(out_ptr + rows * tl.num_programs(1) + tl.program_id(1), tl.max(plain + doubled, 1))


def test_a_reduction_follows_two_products(device: ExecutingLauncher) -> None:
    a, b = integers(64, 32), integers(32, 48)
    out = device.tensor(np.zeros((64, 3), np.float32))
    largest_of_rows[(4, 3)](device.tensor(a), device.tensor(b), out, 48, 32, B=16)
    product = 3 * (a.astype(np.float32) @ b.astype(np.float32))
    np.testing.assert_array_equal(out.numpy(), product.reshape(64, 3, 16).max(axis=2))
    assert num_shared(device.last) == 1


@triton.jit
def weighted(a_ptr, b_ptr, weight_ptr, factor, out_ptr, N, K, B: tl.constexpr, OUTER: tl.constexpr):
    """The loop computes with what was there before it, so it does not stand alone."""
    rows = tl.program_id(0) * B + tl.arange(0, B)
    cols = tl.program_id(1) * B + tl.arange(0, B)
    weight = tl.load(weight_ptr + rows)
    acc = tl.zeros((B, B), dtype=tl.float32)
    for k in range(0, K, B):
        inner = k + tl.arange(0, B)
        a = tl.load(a_ptr + rows[:, None] * K + inner[None, :])
        a = a * (weight[:, None] if OUTER else factor)
        b = tl.load(b_ptr + inner[:, None] * N + cols[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(out_ptr + rows * tl.num_programs(1) + tl.program_id(1), tl.sum(acc, 1))


@pytest.mark.parametrize("outer", [False, True])
def test_a_loop_that_needs_more_than_it_loads_is_left_alone(
    device: ExecutingLauncher, outer: bool
) -> None:
    a, b = integers(64, 32, dtype=np.float32), integers(32, 48, dtype=np.float32)
    weight = integers(64, dtype=np.float32)
    out = device.tensor(np.zeros((64, 3), np.float32))
    weighted[(4, 3)](
        device.tensor(a), device.tensor(b), device.tensor(weight), 2.5, out, 48, 32,
        B=16, OUTER=outer,
    )  # fmt: skip
    product = (a * (weight[:, None] if outer else np.float32(2.5))) @ b
    np.testing.assert_array_equal(out.numpy(), product.reshape(64, 3, 16).sum(axis=2))
    assert num_shared(device.last) == 0


def test_without_merging_the_loop_runs_tile_by_tile(device: ExecutingLauncher) -> None:
    a, b = integers(64, 32), integers(32, 48)
    out = device.tensor(np.zeros((64, 3), np.float32))
    args = [device.tensor(a), device.tensor(b), out]
    largest_of_rows[(4, 3)](*args, 48, 32, B=16)
    merged = out.numpy().copy()
    plan = Plan(device.last, composite=False)
    assert not any(group._shared for group in plan.groups)
    out.numpy()[...] = 0
    plan.run([PointerArg(tensor.buffer) for tensor in args])
    np.testing.assert_array_equal(out.numpy(), merged)
