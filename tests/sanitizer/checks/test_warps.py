"""What other warps of a program have stored is read behind a barrier only."""

from __future__ import annotations

from typing import Any

import pytest

from kernbench import errors
from tests.sanitizer import buggy_kernels
from tests.sanitizer.test_sanitizer import line_of, torch, twins

__all__ = ["torch"]


@pytest.mark.adr("0274-D1")
def test_what_another_warp_has_stored_is_read_behind_a_barrier(torch: Any) -> None:
    def run(bug: bool) -> None:
        x, out = torch.zeros(512, name="x"), torch.zeros(512)
        buggy_kernels.turned[(2,)](x, out, 256, BUG=bug, BY=64, BLOCK=256, num_warps=4)
        assert out.numpy()[:3].tolist() == [65, 66, 67]

    where = line_of(buggy_kernels.turned, "taken = tl.load")
    stored = line_of(buggy_kernels.turned, "tl.store(x_ptr")
    twins(
        run,
        errors.DataRaceError,
        f"tt.load at {where} (kernel turned, rank 0, program (0, 0, 0)) reads x (512,)",
        "(element 64) by lane 0, which lane 64 of the same program has written",
        f"tt.store at {stored}, in another of its 4 warps",
        "put tl.debug_barrier() between",
    )


@pytest.mark.adr("0274-D1")
@pytest.mark.parametrize(("by", "num_warps"), [(0, 4), (128, 4), (64, 1), (64, 8)])
def test_lanes_that_may_be_of_one_warp_are_none(torch: Any, by: int, num_warps: int) -> None:
    x, out = torch.zeros(256), torch.zeros(256)
    # Of 8 warps, 128 lanes have no place of their own.
    block = 128 if num_warps == 8 else 256
    kernel = buggy_kernels.turned[(1,)]
    kernel(x, out, block, BUG=True, BY=by, BLOCK=block, num_warps=num_warps)
    assert out.numpy()[0] == by + 1


@pytest.mark.adr("0274-D1")
def test_an_exchange_between_threads_is_a_barrier(torch: Any) -> None:
    x, out = torch.zeros(256), torch.zeros(256)
    buggy_kernels.summed_between[(1,)](x, out, BLOCK=256, num_warps=4)
    assert out.numpy()[0] == 64 + 255 * 128
