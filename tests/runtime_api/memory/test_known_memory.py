"""Kernels that decide by what the program itself has put into memory run without data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

import kernbench
from kernbench.errors import NoDataError

LENGTHS = [100, 1000, 0, 37]


@triton.jit
def sum_rows(x, lengths, y, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    n = tl.load(lengths + row)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + row * stride + at, mask=at < n, other=0)
    tl.store(y + row, tl.sum(total))


@triton.jit
def gather_pages(x, pages, counts, y, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    done = 0
    while done < tl.load(counts + row):
        page = tl.load(pages + row * WIDTH + done)
        if page >= 0:
            total += tl.load(x + page * BLOCK + at)
        done += 1
    tl.store(y + row * BLOCK + at, total)


@triton.jit
def double_each(table, n, BLOCK: tl.constexpr):
    x = tl.load(table + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    at = tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@triton.jit
def find_offsets(lengths, offsets, n):
    total = 0
    i = 0
    while i < n:
        tl.store(offsets + i, total)
        total += tl.load(lengths + i)
        if total > 1 << 20:
            i = n
        i += 1


def rows(torch: Any, lengths: Any) -> None:
    sum_rows[(4,)](torch.rand(4, 1000), lengths, torch.empty(4), 1000, BLOCK=128)


def time_ps(data: bool, program: Callable[[Any], None]) -> tuple[int, int]:
    """Return how long a program's kernels take, and what they move."""
    with kernbench.RuntimeContext("h100-sxm", ranks=1, data=data) as torch:
        program(torch)
        torch.ahbm.synchronize()
        instances = [instance for instance in torch.op_log.instances if instance.addresses]
    kernel = instances[-1]
    return kernel.ends_ps[0] - kernel.starts_ps[0], kernel.template.hbm_bytes


def by_lengths(torch: Any) -> None:
    rows(torch, torch.tensor(LENGTHS, dtype=torch.int32))


def by_pages(torch: Any) -> None:
    pages = torch.from_numpy(np.arange(32).reshape(4, 8).astype(np.int32) % 5 - 1)
    counts = torch.tensor([8, 0, 3, 5], dtype=torch.int32)
    gather_pages[(4,)](torch.rand(5, 64), pages, counts, torch.empty(4, 64), WIDTH=8, BLOCK=64)


def by_table(torch: Any) -> None:
    xs = [torch.rand(64) for _ in range(8)]
    double_each[(8,)](torch.tensor([x.data_ptr() for x in xs]), 64, BLOCK=64)


def by_what_a_kernel_found(torch: Any) -> None:
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    offsets = torch.zeros(4, dtype=torch.int32)
    find_offsets[(1,)](lengths, offsets, 4)
    sum_rows[(4,)](torch.rand(8000), offsets, torch.empty(4), 1000, BLOCK=128)


def by_what_the_host_has_written(torch: Any) -> None:
    lengths = torch.full((4,), 7, dtype=torch.int32)
    lengths[1:3].copy_(torch.tensor([1000, 500], dtype=torch.int32))
    lengths[0] = 3
    rows(torch, lengths.clone())


@pytest.mark.adr("0098-D6")
@pytest.mark.parametrize(
    "program",
    [by_lengths, by_pages, by_table, by_what_a_kernel_found, by_what_the_host_has_written],
)
def test_a_kernel_takes_the_time_that_it_takes_with_data(program: Callable[[Any], None]) -> None:
    assert time_ps(False, program) == time_ps(True, program)


def unknown_lengths(torch: Any) -> None:
    rows(torch, torch.empty(4, dtype=torch.int32))


def drawn_lengths(torch: Any) -> None:
    rows(torch, torch.randint(0, 1000, (4,), dtype=torch.int32))


def computed_lengths(torch: Any) -> None:
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    triton_add = torch.tensor([1, 1, 1, 1], dtype=torch.int32)
    lengths.copy_(lengths + triton_add)
    rows(torch, lengths)


def half_known(torch: Any) -> None:
    lengths = torch.empty(4, dtype=torch.int32)
    lengths[:2].copy_(torch.tensor([1, 2], dtype=torch.int32))
    rows(torch, lengths)


def unknown_beside_known(torch: Any) -> None:
    known = torch.tensor(LENGTHS, dtype=torch.int32)
    gather_pages[(4,)](
        torch.empty(5, 64), torch.empty(4, 8, dtype=torch.int32), known, torch.empty(4, 64),
        WIDTH=8, BLOCK=64,
    )  # fmt: skip


@pytest.mark.adr("0098-D6")
@pytest.mark.parametrize(
    "program",
    [unknown_lengths, drawn_lengths, computed_lengths, half_known, unknown_beside_known],
)
def test_what_nobody_knows_stays_an_error_of_the_launch(program: Callable[[Any], None]) -> None:
    with (
        kernbench.RuntimeContext("h100-sxm", ranks=1, data=False) as torch,
        pytest.raises(NoDataError, match=r"test_known_memory.py:\d+ needs data: .*has none"),
    ):
        program(torch)


@pytest.mark.adr("0098-D7")
def test_a_large_tensor_is_not_kept() -> None:
    with kernbench.RuntimeContext(ranks=1, data=False) as torch:
        assert torch.zeros(1 << 14).buffer.known is not None
        assert torch.zeros((1 << 14) + 1).buffer.known is None
        assert torch.rand(4).buffer.known is None
        assert torch.empty(4).buffer.known is None


def test_a_benchmark_leaves_no_trace_without_data() -> None:
    with kernbench.RuntimeContext("h100-sxm", ranks=1, data=False) as torch:
        lengths = torch.tensor(LENGTHS, dtype=torch.int32)
        offsets = torch.zeros(4, dtype=torch.int32)
        assert triton.testing.do_bench(lambda: find_offsets[(1,)](lengths, offsets, 4)) > 0
        assert offsets.buffer.known is not None
        assert not offsets.buffer.known.any()
        find_offsets[(1,)](lengths, offsets, 4)
        assert offsets.buffer.known.view(np.int32).tolist() == [0, 100, 1100, 1100]
