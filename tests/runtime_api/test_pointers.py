"""Pointer arguments that are no tensors: what lies at their address counts, as in Triton."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

import kernbench
from kernbench.errors import BadPointerError, OutOfBoundsError
from tests.runtime_api.memory.test_host_tensor import Foreign


class At:
    """As FlagGems' and others' pointers: an address into a tensor, and its element type."""

    def __init__(self, tensor: Any, offset: int = 0) -> None:
        self.dtype = tensor.dtype
        self.at = tensor.data_ptr() + offset * tensor.element_size()

    def data_ptr(self) -> int:
        return self.at


class WithBase(At):
    """Names the tensor ``base`` as triton.reinterpret does, but points elsewhere."""

    def __init__(self, tensor: Any, offset: int = 0) -> None:
        super().__init__(tensor, offset)
        self.base = tensor


class WithBytes(At):
    """Says how many bytes it has, as arrays of the host do."""

    nbytes = 8


KINDS = pytest.mark.parametrize("kind", [At, WithBase, WithBytes])


@triton.jit
def double_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@triton.jit
def count_up(x, count, BLOCK: tl.constexpr):
    for _ in range(tl.load(count)):
        tl.store(x + tl.arange(0, BLOCK), tl.load(x + tl.arange(0, BLOCK)) + 1)


@triton.jit
def double_each(table, n, BLOCK: tl.constexpr):
    x = tl.load(table + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    at = tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@KINDS
def test_an_object_with_an_address_points_there(kind: Callable[..., Any]) -> None:
    with kernbench.RuntimeContext(ranks=1, check=True) as torch:
        x, y = torch.arange(4, dtype=torch.float32), torch.zeros(4)
        double_kernel[(1,)](kind(x, 2), kind(y, 1), 2, BLOCK=2)
        assert y.tolist() == [0, 4, 6, 0]
        double_kernel[(1,)](kind(x[1:], 1), kind(y[2:], 1), 1, BLOCK=2)
        assert y.tolist() == [0, 4, 6, 4]
        count_up[(1,)](kind(x, 2), torch.tensor([3], dtype=torch.int32), BLOCK=2)
        assert x.tolist() == [0, 1, 5, 6]


@KINDS
def test_an_address_of_no_live_tensor_is_refused_by_name(kind: Callable[..., Any]) -> None:
    with kernbench.RuntimeContext("ahbm:2", ranks=2) as torch:
        y = torch.zeros(2)
        gone = At(torch.zeros(2))
        beyond = kind(y, 1 << 20)
        lost = rf"argument x of kernel double_kernel, a {kind.__name__}, .* no live tensor"
        if kind is WithBytes:
            # What says how many bytes it has may be an array of the host.
            beyond = At(y, 1 << 20)
            lost = "a At, .* no live tensor"
        with pytest.raises(BadPointerError, match=lost):
            double_kernel[(1,)](beyond, y, 2, BLOCK=2)
        with pytest.raises(BadPointerError, match="was the tensor freed"):
            double_kernel[(1,)](gone, y, 2, BLOCK=2)
        other = At(torch.zeros(2).to("ahbm:1"))
        with pytest.raises(BadPointerError, match="argument x of kernel double_kernel, a At"):
            double_kernel[(1,)](other, y, 2, BLOCK=2)
        with pytest.raises(
            OutOfBoundsError, match=r"reads 4 bytes at (x|tensor1)\+8 .*tensor1 \(2,\) float32 is 8"
        ):
            double_kernel[(1,)](kind(y, 0), torch.zeros(8), 4, BLOCK=4)


def test_an_address_in_lent_memory_of_the_host_is_read_and_written_there() -> None:
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    with kernbench.RuntimeContext(ranks=1) as torch:
        value, out = Foreign(x), Foreign(y)
        value.element_size = out.element_size = lambda: 4  # type: ignore[attr-defined]
        torch.run.lent.lend(value)
        torch.run.lent.lend(out)
        double_kernel[(1,)](At(value, 2), At(out, 1), 2, BLOCK=2)
        np.testing.assert_array_equal(y, [0, 4, 6, 0])


def test_a_table_holds_addresses_of_live_tensors() -> None:
    with kernbench.RuntimeContext(ranks=1) as torch:
        xs = [torch.full((2,), float(i)) for i in range(64)]
        table = torch.tensor([x.data_ptr() for x in xs], dtype=torch.int64)
        double_each[(64,)](table, 2, BLOCK=2)
        assert [x.tolist() for x in xs] == [[2 * i] * 2 for i in range(64)]
        xs.clear()
        double_each[(1,)](table, 2, BLOCK=2)
        with pytest.raises(BadPointerError, match="was the tensor freed"):
            torch.ahbm.synchronize()
