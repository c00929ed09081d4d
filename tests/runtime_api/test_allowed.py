"""What a run lets pass: reads outside of a tensor, and lanes that are masked off without other=."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import numpy as np
import pytest

import kernbench
from kernbench.errors import OutOfBoundsError, OutOfBoundsWarning, UndefinedValueError
from tests.runtime_api import allowed_kernels as kernels
from tests.sanitizer import buggy_kernels, buggy_live_kernels

N = 40
X = np.arange(1, N + 1, dtype=np.float32)
PADDED = np.concatenate([np.zeros(32, np.float32), X, np.zeros(400, np.float32)])
"""What the kernels see: 32 zeros before the tensor and more behind it."""
ROWS = np.array([0, 3, -1, 4], np.int32)


INDEX = np.array([0, 39, 40, -1, 8, -32, 100, 3], np.int32)
TURNS = np.array([4], np.int32)
WIDE = np.arange(320, dtype=np.float32).reshape(16, 20)


def padded(first: int, *shape: int) -> Any:
    """Return what lies from element ``first`` of x on, with zeros around it."""
    return PADDED[32 + first :][: np.prod(shape)].reshape(shape)


CASES: dict[str, tuple[Any, int, tuple[Any, ...], dict[str, int], Any]] = {
    "behind": (kernels.blocks, 3, ("x", "out", 48, 0), {"BLOCK": 16}, 2 * padded(0, 48)),
    "before": (kernels.blocks, 3, ("x", "out", 48, -5), {"BLOCK": 16}, 2 * padded(-5, 48)),
    "masked": (
        kernels.filled,
        1,
        ("x", "out", 50),
        {"BLOCK": 64},
        np.where(np.arange(64) < 50, padded(0, 64), 7),
    ),
    "rows": (
        kernels.rows,
        1,
        ("x", "out", 12),
        {"ROWS": 4, "BLOCK": 16},
        PADDED[32:][np.arange(4)[:, None] * 12 + np.arange(16)],
    ),
    "gather": (kernels.gathered, 1, (INDEX, "x", "out"), {"BLOCK": 8}, PADDED[32 + INDEX]),
    "gathered rows": (
        kernels.gathered_rows,
        1,
        (ROWS, "x", "out"),
        {"ROWS": 4, "BLOCK": 16},
        PADDED[32 + 16 * ROWS[:, None] + np.arange(16)],
    ),
    "by data": (
        kernels.turns,
        1,
        (TURNS, "x", "out"),
        {"BLOCK": 16},
        padded(0, 4, 16).sum(axis=0),
    ),
    "product": (
        kernels.product,
        1,
        (WIDE, "x", "out", 20),
        {"BLOCK": 16},
        WIDE @ padded(0, 20, 16),
    ),
}
"""Kernel, programs, arguments, constants, and what it makes of x between zeros."""


def run_case(name: str, **settings: Any) -> tuple[Any, int]:
    """Run a case; return what it makes, and the time."""
    kernel, programs, args, meta, expected = CASES[name]
    with kernbench.RuntimeContext(**settings) as torch:
        out = torch.zeros(*expected.shape)
        known = {"x": torch.from_numpy(X), "out": out}
        tensors = [torch.from_numpy(a) if isinstance(a, np.ndarray) else a for a in args]
        tensors = [known.get(a, a) if isinstance(a, str) else a for a in tensors]
        kernel[(programs,)](*tensors, **meta)
        return out.numpy(), torch.run.simulation.now_ps


@pytest.mark.adr("0108-D2")
@pytest.mark.parametrize("name", CASES)
def test_reads_outside_give_zeros_and_a_warning_where_they_are_allowed(name: str) -> None:
    times = []
    for check in (False, True):
        with pytest.raises(OutOfBoundsError, match=r"or read zeros there \(--allow out-of-"):
            run_case(name, check=check)
        with pytest.warns(OutOfBoundsWarning) as warned:
            result, time_ps = run_case(name, check=check, allow="out-of-bounds-reads")
        np.testing.assert_array_equal(result, CASES[name][-1])
        times.append(time_ps)
        assert len(warned) == 1
        assert warned[0].filename == kernels.__file__
        for word in ("tt.load at allowed_kernels.py:", "(40,) float32 is 160 bytes", "zeros there"):
            assert word in str(warned[0].message)
    assert times[0] == times[1]


@pytest.mark.adr("0108-D2")
def test_writes_outside_are_errors_in_any_case() -> None:
    for first in (0, -5):
        with kernbench.RuntimeContext(allow="out-of-bounds-reads") as torch:
            out, x = torch.zeros(40), torch.zeros(100)
            with pytest.raises(OutOfBoundsError, match=r"tt.store at .* mask the store$"):
                kernels.blocks[(3,)](x, out, 48, first + 5, BLOCK=16)
    line = inspect.getsourcelines(kernels.blocks.fn)[1] + 4
    with kernbench.RuntimeContext(allow="out-of-bounds-reads") as torch, warnings.catch_warnings():
        warnings.simplefilter("ignore", OutOfBoundsWarning)
        with pytest.raises(OutOfBoundsError, match=f"tt.store at allowed_kernels.py:{line} "):
            kernels.blocks[(3,)](torch.zeros(40), torch.zeros(40), 48, 0, BLOCK=16)


@pytest.mark.adr("0108-D2")
def test_without_data_a_read_outside_is_a_warning_too() -> None:
    with kernbench.RuntimeContext(data=False, allow="out-of-bounds-reads") as torch:
        with pytest.warns(OutOfBoundsWarning, match="said once per line"):
            kernels.blocks[(3,)](torch.zeros(40), torch.zeros(48), 48, 0, BLOCK=16)
        kernels.blocks[(3,)](torch.zeros(40), torch.zeros(48), 48, 0, BLOCK=16)


def masked_sum(torch: Any) -> Any:
    out = torch.zeros(4)
    buggy_kernels.row_sum[(4,)](torch.ones(4, 50), out, 50, BUG=True, BLOCK=64)
    return out.tolist()


def masked_branch(torch: Any) -> Any:
    out = torch.zeros(64)
    buggy_live_kernels.branch_on_sum[(1,)](torch.ones(50), out, 50, BUG=True, BLOCK=64)
    return out.tolist()


@pytest.mark.adr("0108-D3")
@pytest.mark.parametrize(
    ("launch", "expected"), [(masked_sum, [100] * 4), (masked_branch, list(range(64)))]
)
def test_masked_off_lanes_are_zeros_where_that_is_allowed(launch: Any, expected: Any) -> None:
    def run(**settings: Any) -> Any:
        with kernbench.RuntimeContext(check=True, **settings) as torch:
            return launch(torch)

    # Twice: a plan of the one setting must not be found by the other.
    for _ in range(2):
        with pytest.raises(UndefinedValueError, match=r"as zeros \(--allow masked-lanes\)"):
            run()
        assert run(allow=["masked-lanes"]) == expected
    with pytest.raises(UndefinedValueError):
        run(allow=["out-of-bounds-reads"])


def test_masked_lanes_allow_no_read_outside() -> None:
    with pytest.raises(OutOfBoundsError):
        run_case("behind", check=True, allow=["masked-lanes"])
