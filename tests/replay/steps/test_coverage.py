from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.commands import KernelTrace
from kernbench.memory import BytePool, DeviceMemory
from kernbench.replay import PointerArg, run_kernel
from kernbench.replay.plans.plan import Plan
from tests.replay.handmade import buffers, contents, matmul, vector_add
from tests.tiers import examples

GARBAGE = 0x5A


class DirtyPool(BytePool):
    """Hands out garbage to whoever does not ask for zeros."""

    def take(self, size_bytes: int, *, zero: bool = True) -> np.ndarray:
        return np.full(size_bytes, 0 if zero else GARBAGE, np.uint8)


def unwritten(size_bytes: int) -> PointerArg:
    memory = DeviceMemory(0, 1 << 30, has_data=True, pool=DirtyPool())
    return PointerArg(memory.allocate(size_bytes, "out"))


def takes_garbage(trace: KernelTrace, params: list[PointerArg], param: int) -> bool:
    """Return whether the kernel is given an output that was not cleared."""
    plan = Plan(trace)
    taken = plan._overwrites(param, params[param], params)
    plan.run(params)
    return taken


@given(st.integers(1, 70), st.integers(0, 3), st.sampled_from([8, 16, 32]))
@examples(40)
def test_an_output_that_is_not_cleared_ends_as_a_cleared_one(
    length: int, spare: int, block: int
) -> None:
    x, y = (np.arange(length, dtype=np.float32) + shift for shift in (1, 5))
    out = unwritten(4 * (length + spare))
    run_kernel(vector_add(length, block), [*buffers(x, y), out])
    expected = np.concatenate([x + y, np.zeros(spare, np.float32)])
    np.testing.assert_array_equal(contents(out, expected), expected)


def test_an_output_that_a_kernel_fills_is_not_cleared_first() -> None:
    x = np.ones(100, np.float32)
    assert takes_garbage(vector_add(100, 16), [*buffers(x, x), unwritten(400)], 2)


@pytest.mark.parametrize(("m", "n"), [(64, 64), (50, 70)])
def test_the_result_of_a_composite_gemm_is_not_cleared_first(m: int, n: int) -> None:
    a, b = np.ones((m, 32), np.float32), np.ones((32, n), np.float32)
    out = unwritten(4 * m * n)
    trace = matmul(m, n, 32, (32, 32, 16), dtype="f32")
    assert takes_garbage(trace, [*buffers(a, b), out], 2)
    np.testing.assert_array_equal(contents(out, np.empty((m, n), np.float32)), a @ b)


def test_a_larger_output_is_cleared_first() -> None:
    x = np.ones(100, np.float32)
    assert not takes_garbage(vector_add(100, 16), [*buffers(x, x), unwritten(404)], 2)


def test_an_output_behind_an_offset_is_cleared_first() -> None:
    x = np.ones(100, np.float32)
    out = PointerArg(unwritten(440).buffer, 40)
    assert not takes_garbage(vector_add(100, 16), [*buffers(x, x), out], 2)


def test_an_output_that_is_also_an_input_is_cleared_first() -> None:
    out = unwritten(400)
    params = [*buffers(np.ones(100, np.float32)), out, out]
    assert not takes_garbage(vector_add(100, 16), params, 2)
    np.testing.assert_array_equal(contents(out, np.empty(100, np.float32)), 1)
