"""Kernels with mistakes that the sanitizer finds, and their twins without.

python checked_kernels.py CASE [ARGUMENTS]
"""

import sys

import torch
import triton
import triton.language as tl


@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def add(x, y, SHARE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * SHARE + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) + tl.program_id(0))


@triton.jit
def logarithm(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.log(tl.load(x + at)))


@triton.jit
def gather(x, index, y, BLOCK: tl.constexpr):
    at = tl.load(index + tl.program_id(0))
    columns = tl.arange(0, BLOCK)
    while at >= 0:
        tl.store(y + tl.program_id(0) * BLOCK + columns, tl.load(x + at * BLOCK + columns))
        at -= 1000


@triton.jit
def scatter(index, x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + tl.load(index + at), at)


@triton.jit
def branch(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    if tl.sum(tl.load(x + at, mask=at < n)) > 3:
        tl.store(y + at, at)


x = torch.empty(256, device="cuda")
y = torch.empty(256, device="cuda")
index = torch.tensor([1, 0], device="cuda")


def unwritten() -> None:
    copy[(2,)](x, y, 256, BLOCK=128)


def unwritten_beyond_what_a_kernel_wrote() -> None:
    copy[(1,)](torch.ones(256, device="cuda"), x, 100, BLOCK=128)
    copy[(1,)](x, y, 101, BLOCK=128)


def unwritten_for_a_kernel_that_decides_by_data() -> None:
    gather[(2,)](x, index, y, BLOCK=128)


def unwritten_in_a_view() -> None:
    copy[(1,)](x[128:], y, 128, BLOCK=128)


def written_by_an_operation() -> None:
    x.normal_()
    copy[(2,)](x, y, 256, BLOCK=128)
    assert torch.equal(x, y)


def written_through_data() -> None:
    x.data.fill_(3.0)
    copy[(2,)](x, y, 256, BLOCK=128)
    assert y.tolist() == [3] * 256


def written_in_parts() -> None:
    x[:] = 1
    x[3] = 2
    copy[(2,)](x, y, 256, BLOCK=128)
    assert y.sum().item() == 257


def written_by_a_kernel() -> None:
    copy[(1,)](torch.ones(256, device="cuda"), x, 100, BLOCK=128)
    copy[(1,)](x, y, 100, BLOCK=128)
    assert y[:100].sum().item() == 100


def written_by_a_kernel_that_decides_by_data() -> None:
    gather[(2,)](torch.ones(256, device="cuda"), index, x, BLOCK=128)
    copy[(2,)](x, y, 256, BLOCK=128)
    assert y.sum().item() == 256


def programs_that_share(elements: str) -> None:
    x.zero_()
    add[(2,)](x, y, SHARE=128 - int(elements), BLOCK=128)
    if elements == "0":
        assert y.tolist() == [0] * 128 + [1] * 128


def logarithms_of(number: str) -> None:
    x.fill_(float(number))
    logarithm[(1,)](x, y, BLOCK=256)
    if number == "1":
        assert y.tolist() == [0] * 256


def lanes_that_share(lanes: str) -> None:
    scatter[(1,)](torch.arange(8, device="cuda") // int(lanes), y, BLOCK=8)
    if lanes == "1":
        assert y[:8].tolist() == list(range(8))


def a_branch_by_some_lanes(count: str) -> None:
    x.fill_(1)
    branch[(1,)](x, y, int(count), BLOCK=256)
    assert y[:4].tolist() == [0, 1, 2, 3]


def a_read_outside_of_a_storage() -> None:
    x.fill_(1)
    copy[(1,)](x[200:], y, 100, BLOCK=128)
    assert y[:100].sum().item() == 56


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
