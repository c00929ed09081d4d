"""A branch, a loop or an access of a live kernel that masked-off lanes decide is an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernbench
from kernbench import errors
from tests.sanitizer import buggy_live_kernels as kernels
from tests.sanitizer.test_live_kernels import line_of, torch, twins

__all__ = ["torch"]


@pytest.mark.adr("0107-D2")
def test_a_branch_on_masked_off_lanes_names_load_sum_and_branch(torch: Any) -> None:
    def run(bug: bool) -> None:
        out = torch.zeros(64)
        kernels.branch_on_sum[(1,)](torch.ones(50), out, 50, BUG=bug, BLOCK=64)
        assert out.tolist() == list(range(64))

    kernel = kernels.branch_on_sum
    twins(
        run,
        errors.UndefinedValueError,
        f"the branch at {line_of(kernel, 'if tl.sum')} (kernel branch_on_sum, rank 0, program",
        f"the masked-off lanes of tt.load at {line_of(kernel, 'mask=at < n)')}",
        f"through tt.reduce at {line_of(kernel, 'if tl.sum')}",
        "other=",
    )


@pytest.mark.adr("0107-D3")
def test_a_branch_on_what_nothing_wrote_names_the_place(torch: Any) -> None:
    def run(bug: bool) -> None:
        x = torch.empty(64, name="x")
        x[: 40 if bug else 64].fill_(1)
        out = torch.zeros(64)
        kernels.branch_on_sum[(1,)](x, out, 64, BUG=False, BLOCK=64)
        assert out.tolist() == list(range(64))

    twins(
        run,
        errors.UninitializedReadError,
        "x (64,) float32+160 (element 40), which nothing has written",
        f"the branch at {line_of(kernels.branch_on_sum, 'if tl.sum')}",
    )


FINE = {"inside": [1, 3], "and": [5, 5], "select": [5, 5]}
TURNS = ("for", "while", "inside")


@pytest.mark.adr("0107-D2")
@pytest.mark.parametrize("how", ["for", "while", "derived", "call", *FINE])
def test_what_a_masked_off_scalar_decides(torch: Any, how: str) -> None:
    kernel = kernels.turns_of_row if how in TURNS else kernels.branch_of_row

    def run(num_programs: int) -> None:
        out, counts = torch.zeros(5, dtype="i32"), torch.tensor([2, 3], dtype="i32")
        kernel[(num_programs,)](counts, out, 2, HOW=how)
        result = out.tolist()
        assert how not in FINE or result == [*FINE[how], 0, 0, 0]

    run(2)
    if how in FINE:
        run(5)
        return
    with pytest.raises(errors.UndefinedValueError) as failure:
        run(5)
    load = line_of(kernel, "count = tl.load")
    for word in ("program (2, 0, 0)", f"tt.load at {load}", "is decided by an undefined value"):
        assert word in str(failure.value)


WRONG = {
    "address": "uses an undefined address",
    "mask": "is masked by an undefined value",
    "value": "stores an undefined value",
}


@pytest.mark.adr("0107-D2")
@pytest.mark.parametrize("how", [*WRONG, "fine"])
def test_an_access_by_a_masked_off_scalar(torch: Any, how: str) -> None:
    x = torch.from_numpy(np.arange(32, dtype=np.float32))

    def run(num_programs: int) -> None:
        out, experts = torch.zeros(5, 8), torch.tensor([2, 3], dtype="i32")
        kernels.rows_of_experts[(num_programs,)](experts, x, out, 2, HOW=how, BLOCK=8)
        result = out.numpy()
        if how == "fine":
            expected = np.zeros((5, 8), np.float32)
            expected[0], expected[1] = 2 * np.arange(16, 24), 3 * np.arange(24, 32)
            np.testing.assert_array_equal(result, expected)

    run(2)
    if how == "fine":
        run(5)
        return
    with pytest.raises(errors.UndefinedValueError, match=WRONG[how]) as failure:
        run(5)
    load = line_of(kernels.rows_of_experts, "expert = tl.load")
    assert f"program (2, 0, 0)) {WRONG[how]}" in str(failure.value)
    assert f"tt.load at {load}" in str(failure.value)


@pytest.mark.adr("0020-D7")
def test_a_check_of_masked_off_scalars_changes_neither_numbers_nor_time() -> None:
    result = []
    for check in (False, True):
        with kernbench.RuntimeContext(machine="ahbm", check=check) as torch:
            x, experts = torch.randn(32), torch.tensor([2, 3], dtype="i32")
            out, again = torch.zeros(5, 8), torch.zeros(5, dtype="i32")
            kernels.rows_of_experts[(5,)](experts, x, out, 2, HOW="fine", BLOCK=8)
            kernels.turns_of_row[(5,)](experts, again, 2, HOW="inside")
            result.append((out.numpy().tobytes(), again.tolist(), torch.run.simulation.now_ps))
    assert result[0] == result[1]
