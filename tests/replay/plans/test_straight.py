"""Launches without a frame, against the same plan's steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

from kernbench.errors import OutOfBoundsError
from kernbench.memory import Buffer, DeviceMemory
from kernbench.replay import PointerArg
from kernbench.replay.plans.plan import Plan
from kernbench.triton_backend import activate
from tests.replay.executing import ExecutingLauncher


@triton.jit
def twice(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(y_ptr + at, x + x, mask=at < n)


@triton.jit
def product(a_ptr, b_ptr, c_ptr, K: tl.constexpr, B: tl.constexpr):
    rows = tl.program_id(0) * B + tl.arange(0, B)
    cols = tl.program_id(1) * B + tl.arange(0, B)
    inner = tl.arange(0, B)
    acc = tl.zeros((B, B), dtype=tl.float32)
    for k in range(0, K, B):
        a = tl.load(a_ptr + rows[:, None] * K + k + inner[None, :])
        b = tl.load(b_ptr + (k + inner[:, None]) * (2 * B) + cols[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rows[:, None] * (2 * B) + cols[None, :], acc)


def plan_of(kernel: Any, grid: tuple[int, ...], *args: Any, **options: int) -> Plan:
    launcher = ExecutingLauncher()
    with activate(launcher):
        tensors = [launcher.tensor(x) if isinstance(x, np.ndarray) else x for x in args]
        kernel[grid](*tensors, **options)
    return Plan(launcher.last)


def buffers(memory: DeviceMemory, *arrays: np.ndarray | int) -> list[Buffer]:
    """Return a buffer for each array, and one that nothing has used yet for each size."""
    result = []
    for array in arrays:
        if isinstance(array, int):
            result.append(memory.allocate(array, "result"))
            continue
        result.append(memory.allocate(array.nbytes, "operand"))
        result[-1].bytes[:] = array.reshape(-1).view(np.uint8)
    return result


def both(plan: Plan, params: Sequence[Any], result: Buffer) -> tuple[bytes, bytes]:
    """Return what the short way leaves in a buffer, and what the steps leave."""
    straight, before = plan._straight, None if result.is_unwritten else result.bytes.copy()
    assert straight is not None
    assert straight.run(params)
    short = result.bytes.tobytes()
    # Steps find what the short way found.
    result.bytes[:] = 0 if before is None else before
    plan._straight = None
    plan.run(params)
    plan._straight = straight
    return short, result.bytes.tobytes()


@pytest.mark.parametrize("unwritten", [True, False])
def test_an_elementwise_operation_gives_the_bits_of_its_steps(unwritten: bool) -> None:
    x = np.random.default_rng(0).standard_normal(256, dtype=np.float32)
    x[3], x[5] = np.inf, np.nan
    plan = plan_of(twice, (4,), x, x, 256, BLOCK=64)
    value, result = buffers(DeviceMemory(0, 1 << 20, True), x, 1024 if unwritten else x)
    short, long = both(plan, [PointerArg(value), PointerArg(result), 256], result)
    assert short == long == (x + x).tobytes()


def test_a_product_of_a_whole_grid_gives_the_bits_of_its_steps() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((32, 64), dtype=np.float32)
    b = rng.standard_normal((64, 32), dtype=np.float32)
    plan = plan_of(product, (2, 2), a, b, np.empty((32, 32), np.float32), K=64, B=16)
    *value, result = buffers(DeviceMemory(0, 1 << 20, True), a, b, 4096)
    short, long = both(plan, [*map(PointerArg, value), PointerArg(result)], result)
    assert short == long
    np.testing.assert_allclose(
        np.frombuffer(short, np.float32).reshape(32, 32), a @ b, rtol=1e-4, atol=1e-4
    )


def test_a_part_of_a_larger_tensor_keeps_the_rest() -> None:
    x = np.arange(256, dtype=np.float32)
    plan = plan_of(twice, (4,), x, x, 256, BLOCK=64)
    value, result = buffers(DeviceMemory(0, 1 << 20, True), x, 2048)
    short, long = both(plan, [PointerArg(value), PointerArg(result, 512), 256], result)
    assert short == long
    whole = np.frombuffer(short, np.float32)
    assert whole.tolist() == [0] * 128 + (x + x).tolist() + [0] * 128


def test_a_result_in_the_memory_of_its_operand_is_left_to_the_steps() -> None:
    x = np.arange(256, dtype=np.float32)
    plan = plan_of(twice, (4,), x, x, 256, BLOCK=64)
    (both_of_them,) = buffers(DeviceMemory(0, 1 << 20, True), x)
    params: list[Any] = [PointerArg(both_of_them), PointerArg(both_of_them), 256]
    assert plan._straight is not None
    assert not plan._straight.run(params)
    assert both_of_them.bytes.tobytes() == x.tobytes()
    plan.run(params)
    assert both_of_them.bytes.view(np.float32).tolist() == (x + x).tolist()


def test_what_lies_outside_is_named_by_the_steps() -> None:
    x = np.arange(256, dtype=np.float32)
    plan = plan_of(twice, (4,), x, x, 256, BLOCK=64)
    value, result = buffers(DeviceMemory(0, 1 << 20, True), x[:128], 1024)
    with pytest.raises(OutOfBoundsError, match=r"reads 4 bytes at operand\+512"):
        plan.run([PointerArg(value), PointerArg(result), 256])


def test_masked_lanes_are_left_to_the_steps() -> None:
    x = np.arange(200, dtype=np.float32)
    assert plan_of(twice, (4,), x, x, 200, BLOCK=64)._straight is None
