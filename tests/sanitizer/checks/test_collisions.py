"""Two lanes of one store on one element are an error, unless they store the same value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernbench
from kernbench import errors
from tests.sanitizer import buggy_kernels, buggy_live_kernels
from tests.sanitizer.test_live_kernels import line_of as live_line_of
from tests.sanitizer.test_sanitizer import line_of, torch, twins

__all__ = ["torch"]


@pytest.mark.adr("0107-D1")
def test_two_lanes_on_one_element_name_both_values_and_lanes(torch: Any) -> None:
    def run(bug: bool) -> None:
        out = torch.empty(32, name="out")
        buggy_kernels.in_pairs[(1,)](out, 60, BUG=bug, BLOCK=64)
        assert out.numpy()[:30].tolist() == list(range(0, 120, 4))

    where = line_of(buggy_kernels.in_pairs, "at * 1.0")
    twins(
        run,
        errors.DataRaceError,
        f"tt.store at {where} (kernel in_pairs, rank 0, program (0, 0, 0))",
        "writes 0.0 and 1.0 to out (32,) float32+0 (element 0)",
        "lanes (0,) and (1,)",
    )


def test_rows_that_overlap_name_lanes_of_the_tile(torch: Any) -> None:
    def run(bug: bool) -> None:
        out = torch.zeros(16, dtype="i32")
        buggy_kernels.overlapping_rows[(1,)](out, 6 if bug else 8, BLOCK=8)
        assert out.tolist() == list(range(16))

    twins(run, errors.DataRaceError, "writes 6 and 8", "element 6", "lanes (0, 6) and (1, 0)")


def test_words_that_overlap_by_half_collide(torch: Any) -> None:
    def run(bug: bool) -> None:
        out = torch.zeros(8, dtype="i32")
        buggy_kernels.halves_of_words[(1,)](out, STEP=2 if bug else 4, BLOCK=8)
        assert out.tolist() == list(range(1, 9))

    twins(run, errors.DataRaceError, "lanes (0,) and (1,)")


INDICES = {False: [3, 1, 2, 0, 7, 6, 4, 5], True: [3, 1, 2, 0, 7, 6, 4, 6]}


def test_two_lanes_that_data_sends_to_one_element_collide(torch: Any) -> None:
    x = torch.arange(8, dtype="f32")

    def run(bug: bool) -> None:
        out, index = torch.zeros(8, name="out"), torch.tensor(INDICES[bug], dtype="i32")
        buggy_kernels.scatter[(1,)](index, x, out, BLOCK=8)
        expected = np.zeros(8, np.float32)
        expected[INDICES[bug]] = np.arange(8)
        np.testing.assert_array_equal(out.numpy(), expected)

    twins(run, errors.DataRaceError, "writes 5.0 and 7.0", "out (8,) float32+24", "(5,) and (7,)")


@pytest.mark.adr("0107-D1")
def test_lanes_that_data_sends_to_one_element_may_store_the_same(torch: Any) -> None:
    out, index = torch.zeros(8), torch.tensor(INDICES[True], dtype="i32")
    buggy_kernels.scatter[(1,)](index, torch.full((8,), float("nan")), out, BLOCK=8)
    assert np.isnan(out.numpy()).sum() == 7


def test_lanes_of_a_kernel_that_decides_by_data_collide_in_their_program(torch: Any) -> None:
    x, counts = torch.arange(8, dtype="f32"), torch.tensor([1, 2], dtype="i32")

    def run(bug: bool) -> None:
        out = torch.zeros(16, name="out")
        index = torch.tensor(INDICES[False] + INDICES[bug], dtype="i32")
        buggy_live_kernels.scatters[(2,)](counts, index, x, out, BLOCK=8)
        assert out.numpy()[:8].tolist() == [3, 1, 2, 0, 6, 7, 5, 4]

    where = live_line_of(buggy_live_kernels.scatters, "tl.store(")
    words = (where, "program (1, 0, 0)", "writes 5.0 and 7.0", "out (16,) float32+56")
    twins(run, errors.DataRaceError, *words)


def test_without_the_sanitizer_the_last_lane_stays() -> None:
    with kernbench.RuntimeContext(machine="ahbm", check=False) as torch:
        out = torch.zeros(32)
        buggy_kernels.in_pairs[(1,)](out, 64, BUG=True, BLOCK=64)
        assert out.tolist() == list(range(1, 64, 2))
