"""Which lanes stay undefined where an operation chooses, counts or moves them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import triton
import triton.language as tl

import kernbench
from kernbench.errors import UndefinedValueError

N = 5
"""Lanes that a load loads, of 16."""


@triton.jit
def counted(x, out, n, BUG: tl.constexpr):
    at = tl.arange(0, 16)
    values = tl.load(x + at, mask=at < n)
    # One more than was loaded.
    value = tl.histogram(values, 16, mask=at < (n + 1 if BUG else n))
    tl.store(out + at, value)


@triton.jit
def counted_by_an_undefined_mask(x, out, n, BUG: tl.constexpr):
    at = tl.arange(0, 16)
    values = tl.load(x + at, mask=at < n)
    mask = values >= 0
    tl.store(out + at, tl.histogram(values, 16, mask=mask if BUG else (at < n) & mask))


@triton.jit
def chosen(x, out, n, BUG: tl.constexpr):
    at = tl.arange(0, 16)
    values = tl.load(x + at, mask=at < n)
    tl.store(out + at, tl.gather(values, at % (n + 1 if BUG else n), 0))


@triton.jit
def chosen_by_an_undefined_index(x, out, n, BUG: tl.constexpr):
    at = tl.arange(0, 16)
    index = tl.load(x + at, mask=at < n)
    tl.store(out + at, tl.gather(tl.load(x + at), index, 0), mask=at < (16 if BUG else n))


@triton.jit
def turned_around(x, out, n, BUG: tl.constexpr):
    at = tl.arange(0, 16)
    values = tl.load(x + at, mask=at < n)
    tl.store(out + at, tl.flip(values, 0), mask=at >= (15 - n if BUG else 16 - n))


@triton.jit
def rows_turned_around(x, out, n, BUG: tl.constexpr):
    rows, columns = tl.arange(0, 4), tl.arange(0, 4)
    at = rows[:, None] * 4 + columns[None, :]
    mask = columns[None, :] < n - 3
    values = tl.load(x + at, mask=mask)
    tl.store(out + at, tl.flip(values, 0 if BUG else 1), mask=columns[None, :] >= 7 - n)


@triton.jit
def put_together(x, out, n, BUG: tl.constexpr):
    at = tl.arange(0, 16)
    both = tl.join(tl.load(x + at), tl.load(x + at, mask=at < n))
    whole, part = tl.split(both)
    tl.store(out + at, part if BUG else whole)


@triton.jit
def updated(x, out, n, BUG: tl.constexpr):
    at = tl.arange(0, 16)
    old = tl.atomic_add(x + at, 1, mask=at < n)
    tl.store(out + at, tl.where(at < (n + 1 if BUG else n), old, 0))


@triton.jit
def multiplied(x, out, n, BUG: tl.constexpr):
    rows, columns = tl.arange(0, 4), tl.arange(0, 4)
    at = rows[:, None] * 4 + columns[None, :]
    some = tl.load(x + at, mask=rows[:, None] < n - 3).to(tl.float32)
    product = tl.dot(some, tl.load(x + at).to(tl.float32))
    tl.store(out + at, product.to(tl.int32), mask=rows[:, None] < (n if BUG else n - 3))


KERNELS = [
    *(counted, counted_by_an_undefined_mask, chosen, chosen_by_an_undefined_index),
    *(turned_around, rows_turned_around, put_together, updated, multiplied),
]


def run(kernel: Any, bug: bool) -> list[int]:
    with kernbench.RuntimeContext(machine="h100-sxm", check=True) as torch:
        out = torch.zeros(16, dtype="i32")
        kernel[(1,)](torch.arange(16, dtype="i32"), out, N, bug)
        return [int(item) for item in out.tolist()]


EXPECTED: dict[Any, Callable[[], list[int]]] = {
    counted: lambda: [1] * N + [0] * 11,
    chosen: lambda: [at % N for at in range(16)],
    turned_around: lambda: [0] * 11 + list(range(N))[::-1],
    updated: lambda: list(range(N)) + [0] * 11,
}


@pytest.mark.adr("0020-D4")
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.fn.__name__)
def test_a_lane_is_undefined_where_one_is_used_that_was_masked_off(kernel: Any) -> None:
    result = run(kernel, bug=False)
    if kernel in EXPECTED:
        assert result == EXPECTED[kernel]()
    name = "tt.atomic_rmw" if kernel is updated else "tt.load"
    with pytest.raises(UndefinedValueError, match=f"masked-off lanes of {name} at"):
        run(kernel, bug=True)


@triton.jit
def scaled(x, out, rows_loaded, rows_stored, SCALES: tl.constexpr):
    rows, columns = tl.arange(0, 32), tl.arange(0, 32)
    at = rows[:, None] * 32 + columns[None, :]
    four = tl.full((32, 1), 129, tl.uint8)
    if SCALES:
        four = tl.load(x + rows[:, None], mask=rows[:, None] < rows_loaded).to(tl.uint8)
        some = tl.load(x + at).to(tl.float32).to(tl.float8e4nv)
    else:
        some = tl.load(x + at, mask=rows[:, None] < rows_loaded).to(tl.float32).to(tl.float8e4nv)
    other = tl.full((32, 32), 1.0, tl.float8e4nv)
    one = tl.full((32, 1), 127, tl.uint8)
    product = tl.dot_scaled(some, four, "e4m3", other, one, "e4m3")
    tl.store(out + at, product, mask=rows[:, None] < rows_stored)


@pytest.mark.adr("0020-D4")
@pytest.mark.parametrize("scales", [False, True])
def test_a_row_of_a_scaled_product_is_undefined_by_its_own_elements_and_scales(
    scales: bool,
) -> None:
    def run(stored: int) -> None:
        with kernbench.RuntimeContext(machine="b200", check=True) as torch:
            out = torch.zeros(32, 32)
            scaled[(1,)](torch.full((32, 32), 127, dtype="i32"), out, 9, stored, scales)
            out.numpy()

    run(9)
    with pytest.raises(UndefinedValueError, match=r"masked-off lanes of tt.load at .* tt.dot"):
        run(10)
