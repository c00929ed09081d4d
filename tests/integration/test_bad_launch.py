"""What a launch with arguments that cannot be says: kernel, argument, and what to do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kernbench
from kernbench import errors


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


def launched(torch: Any, x: Any, n: Any = 64, grid: Any = (1,)) -> None:
    torch.launch("shift", copy_kernel, x, torch.zeros(64), n, grid=grid, BLOCK=64)


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        (lambda t: launched(t, np.ones(64)), ("argument 0 of launch shift", "from_numpy")),
        (lambda t: launched(t, [1.0]), ("argument 0 of launch shift", "list")),
        (lambda t: launched(t, t.ones(64), "64"), ("argument 2 of launch shift", "str")),
        (lambda t: launched(t, t.ones(64), grid=(0,)), ("copy_kernel", "positive", "(0, 1, 1)")),
        (lambda t: launched(t, t.ones(64), grid=(-1,)), ("copy_kernel", "(-1, 1, 1)")),
        (
            lambda t: launched(t, t.ones(64), grid=(1 << 20, 1 << 12)),
            ("copy_kernel", "4,294,967,296", "2,147,483,648"),
        ),
        (lambda t: launched(t, t.ones(64), grid=(1.5,)), ("copy_kernel", "integers")),
    ],
)
def test_a_launch_that_cannot_be_names_kernel_and_argument(
    launch: Callable[[Any], None], words: tuple[str, ...]
) -> None:
    with kernbench.RuntimeContext(machine="ahbm", ranks=1) as torch:
        with pytest.raises(errors.UsageError) as failure:
            launch(torch)
        for word in words:
            assert word in str(failure.value)


def test_a_tensor_of_another_run_is_refused_by_name() -> None:
    with kernbench.RuntimeContext(machine="ahbm", ranks=1) as other:
        x = other.ones(64, name="foreign")
    with (
        kernbench.RuntimeContext(machine="ahbm", ranks=1) as torch,
        pytest.raises(errors.BadPointerError, match=r"x_ptr of kernel copy_kernel.*foreign"),
    ):
        launched(torch, x)


def test_a_pointer_to_a_freed_tensor_is_refused() -> None:
    class Stale:
        def __init__(self, tensor: Any) -> None:
            self.address, self.dtype = tensor.data_ptr(), tensor.dtype

        def data_ptr(self) -> int:
            return int(self.address)

    with kernbench.RuntimeContext(machine="ahbm", ranks=1) as torch:
        stale = Stale(torch.ones(64))
        with pytest.raises(errors.BadPointerError, match="x_ptr of kernel copy_kernel"):
            launched(torch, stale)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    grid=st.lists(st.integers(-1, 3), min_size=1, max_size=3).map(tuple),
    n=st.one_of(st.integers(-70, 200), st.sampled_from([2**31 - 1, 2**31, -(2**31), 2**63])),
    size=st.integers(1, 100),
    dtype=st.sampled_from(["f32", "f16", "i8", "u8", "i64", "bool"]),
)
def test_any_launch_works_or_raises_an_error_of_ours(
    grid: tuple[int, ...], n: int, size: int, dtype: str
) -> None:
    with kernbench.RuntimeContext(machine="ahbm", ranks=1) as torch:
        x, y = torch.ones(size, dtype=dtype), torch.zeros(size, dtype=dtype)
        try:
            torch.launch("copy", copy_kernel, x, y, n, grid=grid, BLOCK=32)
            found = y.numpy()
        except errors.KernbenchError:
            return
        covered = min(max(n, 0), 32 * grid[0])
        np.testing.assert_array_equal(found, np.arange(size) < covered)


BENCH = """
import triton
import triton.language as tl

@triton.jit
def broken(x_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, misspelled)

def run(torch):
    broken[(1,)](torch.ones(64), BLOCK=64)
"""


def test_a_numpy_array_in_a_plain_launch_is_told_what_to_do(tmp_path: Path) -> None:
    plain = BENCH.replace("misspelled", "1.0")
    plain = plain.replace("torch.ones(64)", "__import__('numpy').ones(64)")
    (tmp_path / "bench.py").write_text(plain)
    done = subprocess.run(
        [sys.executable, "-m", "kernbench", "run", "bench.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "ndarray" in done.stderr
    assert "torch.from_numpy" in done.stderr
    assert "bench.py:11" in done.stderr


def test_a_kernel_that_does_not_compile_shows_its_line_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "bench.py").write_text(BENCH)
    done = subprocess.run(
        [sys.executable, "-m", "kernbench", "run", "bench.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "CompilationError" in done.stderr
    assert "def broken(x_ptr" in done.stderr
    assert "misspelled is not defined" in done.stderr
    assert "bench.py:11" in done.stderr
    assert "Traceback" not in done.stderr
    assert "src/kernbench" not in done.stderr
    assert "site-packages" not in done.stderr
