"""What a launch with arguments that cannot be says: kernel, argument, and what to do."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import kernbench
from kernbench import errors
from tests.forked import run_forked
from tests.programs import PROGRAMS
from tests.tiers import examples


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


def launched(torch: Any, x: Any, n: Any = 64, grid: Any = (1,), **options: Any) -> None:
    torch.launch("shift", copy_kernel, x, torch.zeros(64), n, grid=grid, **{"BLOCK": 64, **options})


def plainly(torch: Any, x: Any, n: Any = 64, grid: Any = (1,), **options: Any) -> None:
    copy_kernel[grid](x, torch.zeros(64), n, **{"BLOCK": 64, **options})


Launch = Callable[..., None]
BOTH_WAYS = pytest.mark.parametrize("launch", [launched, plainly])


@BOTH_WAYS
@pytest.mark.parametrize(
    ("x", "n", "error", "words"),
    [
        (np.ones(64), 64, TypeError, "argument x_ptr of kernel copy_kernel is a numpy array"),
        ([1.0], 64, TypeError, "argument x_ptr of kernel copy_kernel is a list"),
        (None, "64", TypeError, "argument n of kernel copy_kernel is a str"),
        (None, 2**70, OverflowError, "argument n of kernel copy_kernel is 11805916207174113"),
        (None, np.int32(64), TypeError, "n of kernel copy_kernel is a number of numpy .int32."),
        (None, (1, {}), TypeError, "n of kernel copy_kernel is a tuple with an element that is a"),
    ],
)
def test_an_argument_that_no_kernel_takes_is_named(
    launch: Launch, x: Any, n: Any, error: type[Exception], words: str
) -> None:
    with kernbench.RuntimeContext(machine="ahbm", ranks=1) as torch:
        with pytest.raises(errors.UsageError, match=words) as failure:
            launch(torch, torch.ones(64) if x is None else x, n)
        assert isinstance(failure.value, error)


@BOTH_WAYS
@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ((-1,), r"grid of kernel copy_kernel must not be negative.*\(-1, 1, 1\)"),
        ((1 << 20, 1 << 12), "copy_kernel has 4,294,967,296 programs, but at most 134,217,728"),
        ((1.5,), "grid of kernel copy_kernel must be integers"),
        ((1, 1, 1, 2), r"grid of kernel copy_kernel must have one to three sizes.*\(1, 1, 1, 2\)"),
        ([1, 1, 1, 2], "grid of kernel copy_kernel must have one to three sizes"),
        (lambda meta: (1, 1, 1, meta["BLOCK"]), r"one to three sizes.*\(1, 1, 1, 64\)"),
        (lambda meta: meta["BLOCK"], r"must be a tuple of one to three sizes, but got 64"),
        ((), r"one to three sizes, but got \(\)"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(launch: Launch, grid: Any, words: str) -> None:
    with (
        kernbench.RuntimeContext(machine="ahbm", ranks=1) as torch,
        pytest.raises(errors.UsageError, match=words),
    ):
        launch(torch, torch.ones(64), grid=grid)


def test_a_grid_without_programs_launches_nothing_that_could_be_waited_for() -> None:
    with kernbench.RuntimeContext(machine="ahbm", ranks=1) as torch:
        out = torch.ones(64)
        torch.ahbm.synchronize()
        began_ps = torch.run.simulation.now_ps
        handle = torch.launch("shift", copy_kernel, out, out, 64, grid=(4, 0), BLOCK=64)
        copy_kernel[(0,)](out, out, 64, BLOCK=64)
        torch.wait(handle)
        assert torch.run.simulation.now_ps == began_ps
        assert out.tolist() == [1] * 64


def test_a_grid_that_is_one_number_is_a_tuple_for_launch_only() -> None:
    with kernbench.RuntimeContext(machine="ahbm", ranks=1) as torch:
        launched(torch, torch.ones(64), grid=1)
        with pytest.raises(TypeError, match=r"a single size is written \(1,\)"):
            plainly(torch, torch.ones(64), grid=1)
        plainly(torch, torch.ones(64), grid=[1, 1])


@BOTH_WAYS
def test_an_option_that_does_not_exist_gets_the_nearest(launch: Launch) -> None:
    with kernbench.RuntimeContext(machine="ahbm", ranks=1) as torch:
        for options, words in (
            ({"BLOK": 3}, "copy_kernel has no argument or option BLOK: did you mean BLOCK?"),
            ({"num_wraps": 8}, "no argument or option num_wraps: did you mean num_warps?"),
            ({"num_warps": "8"}, "num_warps must be an integer, but got '8'"),
        ):
            with pytest.raises(errors.UsageError, match=words):
                launch(torch, torch.ones(64), **options)
        with pytest.raises(errors.UsageError, match=r"kernel copy_kernel missing .* 'n'; it has x"):
            copy_kernel[(1,)](torch.ones(64), torch.ones(64), BLOCK=64)


def test_a_tensor_of_a_type_that_triton_lacks_is_named() -> None:
    pytorch = pytest.importorskip("torch")
    with kernbench.RuntimeContext(machine="ahbm", ranks=1) as torch:
        for value, words in (
            (pytorch.zeros(64, dtype=pytorch.complex64), "is a tensor of complex64"),
            (pytorch.zeros(64).to_sparse(), "has no memory that a pointer could name"),
            (pytorch.zeros(64, device="meta"), "lies on device meta"),
        ):
            with pytest.raises(
                errors.KernbenchError, match="x_ptr of kernel copy_kernel.*" + words
            ):
                plainly(torch, value)


def test_triton_is_its_own_again_after_the_run() -> None:
    before = triton.runtime.JITFunction.run
    with kernbench.RuntimeContext(machine="ahbm", ranks=1):
        with kernbench.RuntimeContext(machine="ahbm", ranks=1):
            assert triton.runtime.JITFunction.run is not before
        assert triton.runtime.JITFunction.run is not before
    assert triton.runtime.JITFunction.run is before


@triton.jit
def broken_kernel(x_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, misspelled)  # type: ignore[name-defined]  # noqa: F821


def test_a_kernel_that_does_not_compile_is_named_with_its_line() -> None:
    line = next(
        number
        for number, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if "misspelled)" in text
    )
    with (
        kernbench.RuntimeContext(machine="ahbm", ranks=1) as torch,
        pytest.raises(triton.CompilationError, match="misspelled is not defined") as failure,
    ):
        broken_kernel[(1,)](torch.ones(64), BLOCK=64)
    assert failure.value.__notes__ == [
        f"kernel broken_kernel at {__file__}:{line} does not compile"
    ]


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
        x, out = torch.ones(64), torch.zeros(64)
        stale = Stale(x)
        del x
        with pytest.raises(errors.BadPointerError, match="x_ptr of kernel copy_kernel, a Stale"):
            copy_kernel[(1,)](stale, out, 64, BLOCK=64)


@examples(60, suppress_health_check=[HealthCheck.too_slow])
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
            result = y.numpy()
        except errors.KernbenchError:
            return
        covered = min(max(n, 0), 32 * grid[0]) if all(grid) else 0
        np.testing.assert_array_equal(result, np.arange(size) < covered)


def run_bench(text: str) -> subprocess.CompletedProcess[str]:
    program = str(PROGRAMS / "bad_launches.py")
    return run_forked("kernbench", "run", program, "--param", f"text={text}")


def test_a_numpy_array_in_a_plain_launch_is_told_what_to_do() -> None:
    done = run_bench("array")
    assert done.returncode == 1
    assert "ndarray" in done.stderr
    assert "torch.from_numpy" in done.stderr
    assert "bad_launches.py:23" in done.stderr


def test_a_kernel_that_does_not_compile_shows_its_line_and_no_traceback() -> None:
    done = run_bench("tensor")
    assert done.returncode == 1
    assert "CompilationError" in done.stderr
    assert "def broken(x_ptr" in done.stderr
    assert "misspelled is not defined" in done.stderr
    assert "bad_launches.py:21" in done.stderr
    assert "Traceback" not in done.stderr
    assert "src/kernbench" not in done.stderr
    assert "site-packages" not in done.stderr
