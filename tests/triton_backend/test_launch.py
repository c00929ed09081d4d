from __future__ import annotations

import copy
import gc
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl
from triton import knobs

from kernbench import KernbenchError
from kernbench.dtypes import ALL
from kernbench.errors import OutOfMemoryError, UsageError
from kernbench.triton_backend import TcmExhaustedError, activate
from tests.triton_backend.recording import RecordingLauncher, Tensor


@triton.jit
def scale(x_ptr, out_ptr, n, factor, alpha, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, (x * factor + alpha).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def touch(x_ptr):
    tl.store(x_ptr, tl.load(x_ptr))


@triton.jit
def constants_only(N: tl.constexpr):
    tl.static_assert(N > 0)


@triton.jit
def add_tuple(pointers, sizes, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < sizes[0]
    tl.store(pointers[1] + offsets, tl.load(pointers[0] + offsets, mask=mask), mask=mask)


@triton.jit
def copy_described(source, out_ptr, M, N, BLOCK: tl.constexpr):
    out = tl.make_tensor_descriptor(out_ptr, [M, N], [N, 1], [BLOCK, BLOCK])
    out.store([0, 0], source.load([0, 0]))


@triton.jit
def multiply(a_ptr, b_ptr, c_ptr, K, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    rows = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        inner = k + tl.arange(0, BLOCK_K)
        a = tl.load(a_ptr + rows[:, None] * K + inner[None, :])
        b = tl.load(b_ptr + inner[:, None] * BLOCK + rows[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rows[:, None] * BLOCK + rows[None, :], acc)


def x() -> Tensor:
    return Tensor("f32")


def launch_scale(n: int = 1000, grid: Any = (4,), **options: Any) -> None:
    scale[grid](x(), x(), n, 7, 0.5, BLOCK=256, **options)


def test_the_run_gets_what_is_left_of_the_arguments_in_ttir(launcher: RecordingLauncher) -> None:
    source, out = Tensor("f16"), Tensor("f32")
    scale[(4, 2)](source, out, 1000, 7, 0.5, BLOCK=256)
    [(binary, grid, args)] = launcher.launches
    assert binary.name == "scale"
    assert binary.signature == ("*fp16", "*fp32", "i32", "i32", "fp32")
    assert [param.name for param in binary.module.kernel.params] == [
        "x_ptr", "out_ptr", "n", "factor", "alpha",
    ]  # fmt: skip
    assert grid == (4, 2, 1)
    assert args == (source, out, 1000, 7, 0.5)


def test_an_argument_that_is_one_is_gone_from_kernel_and_arguments(
    launcher: RecordingLauncher,
) -> None:
    source, out = x(), x()
    scale[(4,)](source, out, 1000, 1, 0.5, BLOCK=256)
    [(binary, _, args)] = launcher.launches
    assert binary.signature == ("*fp32", "*fp32", "i32", "fp32")
    assert args == (source, out, 1000, 0.5)


def test_a_single_argument_and_none_at_all(launcher: RecordingLauncher) -> None:
    tensor = x()
    touch[(1,)](tensor)
    constants_only[(1,)](N=3)
    assert [args for _, _, args in launcher.launches] == [(tensor,), ()]


def test_tuples_are_flattened(launcher: RecordingLauncher) -> None:
    source, out = x(), x()
    add_tuple[(1,)]((source, out), (100, 1), BLOCK=128)
    [(binary, _, args)] = launcher.launches
    assert binary.signature == ("*fp32", "*fp32", "i32")
    assert args == (source, out, 100)


def test_tensor_descriptors_become_pointers(launcher: RecordingLauncher) -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    source, out = Tensor("f16"), Tensor("f16")
    described = TensorDescriptor(source, [64, 32], [32, 1], [16, 16])
    copy_described[(1,)](described, out, 64, 32, BLOCK=16)
    [(binary, _, args)] = launcher.launches
    assert len(binary.signature) == len(args)
    for type_name, arg in zip(binary.signature, args, strict=True):
        assert type_name.startswith("*") == isinstance(arg, Tensor), (type_name, arg)
        assert (type_name == "i1") == isinstance(arg, bool), (type_name, arg)


def test_a_compiled_kernel_takes_its_arguments_without_the_constants_behind_them(
    launcher: RecordingLauncher,
) -> None:
    # As libraries launch that keep what Triton compiled; constants are in the kernel.
    from triton.tools.tensor_descriptor import TensorDescriptor

    source, out = Tensor("f16"), Tensor("f16")
    described = TensorDescriptor(source, [64, 32], [32, 1], [16, 16])
    compiled = copy_described[(1,)](described, out, 64, 32, BLOCK=16)
    compiled[(1, 1, 1)](described, out, 64, 32)
    compiled[(1, 1, 1)](described, out, 64, 32, 16)
    [(_, _, first), (_, _, second), (_, _, third)] = launcher.launches
    assert first == second == third
    plain = scale[(1,)](source, out, 1000, 7, 0.5, BLOCK=256)
    plain[(1, 1, 1)](source, out, 1000, 7, 0.5)
    assert launcher.launches[-1][2] == launcher.launches[-2][2]
    for kernel, value in ((compiled, (described, out, 64)), (plain, (source, out))):
        with pytest.raises(UsageError, match=rf"launched with {len(value)} arguments, but its"):
            kernel[(1, 1, 1)](*value)


@pytest.mark.parametrize("dtype", [d for d in ALL if d.name != "float8_e4m3fnuz"], ids=str)
def test_every_dtype_is_known_to_triton(launcher: RecordingLauncher, dtype: Any) -> None:
    touch[(1,)](Tensor(dtype))
    [(binary, _, _)] = launcher.launches
    # TTIR integers have no sign.
    assert binary.signature == (f"*{dtype.triton.replace('u', 'i')}",)


@pytest.mark.adr("0001-D3")
def test_launches_of_one_specialisation_share_a_binary_and_equal_texts_a_module(
    launcher: RecordingLauncher,
) -> None:
    launch_scale(1000)
    launch_scale(1008)
    launch_scale(2000)
    launch_scale(2000, num_warps=8)
    first, other_alignment, third, other_warps = (binary for binary, _, _ in launcher.launches)
    assert first is not other_alignment
    assert first.module is not other_alignment.module
    assert third is other_alignment
    assert other_warps is not third
    assert other_warps.module is third.module
    assert (third.num_warps, other_warps.num_warps) == (4, 8)


def test_heuristics_and_a_callable_grid(launcher: RecordingLauncher) -> None:
    tuned = triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"])})(scale)
    tuned[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]), 3)](x(), x(), 100, 7, 0.5)
    [(_, grid, _)] = launcher.launches
    assert grid == (1, 3, 1)


def autotuned(**options: Any) -> Any:
    configs = [
        triton.Config({"BLOCK": 64, "BLOCK_K": block_k}, num_stages=2, num_warps=num_warps)
        for block_k, num_warps in ((16, 1), (32, 2), (512, 8))
    ]
    return triton.autotune(configs, key=["K"], **options)(multiply)


@pytest.mark.adr("0001-D4")
def test_autotune_chooses_by_modeled_time(launcher: RecordingLauncher) -> None:
    kernel = autotuned()
    kernel[(1,)](x(), x(), x(), 512)
    assert [binary.num_warps for binary in launcher.benchmarked] == [1, 2, 8]
    [(binary, _, _)] = launcher.launches
    assert binary.num_warps == 8
    kernel[(1,)](x(), x(), x(), 512)
    assert len(launcher.benchmarked) == 3


@pytest.mark.adr("0001-D4")
def test_autotune_prunes_a_config_that_does_not_fit_in_tcm(empty_cache: Path) -> None:
    launcher = RecordingLauncher(tcm_bytes=200_000)
    with activate(launcher):
        autotuned()[(1,)](x(), x(), x(), 512)
    [(binary, _, _)] = launcher.launches
    assert binary.num_warps == 2


def test_an_autotuner_that_was_used_in_a_run_asks_the_driver_of_the_day(
    launcher: RecordingLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = autotuned()
    kernel[(1,)](x(), x(), x(), 512)

    class Gpu:
        @staticmethod
        def get_benchmarker() -> Any:
            return lambda fn, quantiles: ("on the GPU", fn, quantiles)

    monkeypatch.setattr(triton.runtime.driver, "_active", Gpu())
    assert kernel.do_bench(launch_scale, quantiles=(0.5,)) == ("on the GPU", launch_scale, (0.5,))


def test_tcm_overflow_is_tritons_and_ours_and_names_the_tiles(empty_cache: Path) -> None:
    with activate(RecordingLauncher(tcm_bytes=10_000)), pytest.raises(TcmExhaustedError) as caught:
        multiply[(1,)](x(), x(), x(), 512, BLOCK=64, BLOCK_K=32, num_stages=3)
    error = caught.value
    assert isinstance(error, (KernbenchError, OutOfMemoryError))
    assert isinstance(error, triton.OutOfResources)
    assert error.limit == 10_000
    # Two operands of 64 x 32 floats, three times each, are only part of what it holds.
    assert error.required >= 2 * 3 * 64 * 32 * 4
    text = str(error)
    assert "kernel multiply needs" in text
    assert "num_stages=3" in text
    assert "10,000 of 10,000 are free" in text
    assert 1 <= len(error.largest) <= 5
    assert "test_launch.py:" in text
    for twin in (copy.deepcopy(error), pickle.loads(pickle.dumps(error)), type(error)(*error.args)):
        assert str(twin) == text


def test_a_kernel_meets_the_tcm_of_the_run_it_is_launched_in(empty_cache: Path) -> None:
    large, small = RecordingLauncher(), RecordingLauncher(tcm_bytes=16)
    with activate(large):
        launch_scale()
    with activate(small), pytest.raises(TcmExhaustedError):
        launch_scale()
    with activate(large):
        launch_scale()
    assert len(large.launches) == 2
    assert not small.launches


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ((-1, 0), r"grid of kernel scale must not be negative in any dimension, .* \(-1, 0, 1\)"),
        ((4, -1), r"must not be negative in any dimension, but got \(4, -1, 1\)"),
        ((2.0,), r"must be integers, but got \(2.0, 1, 1\) \(float, int, int\)"),
        ((None,), "must be integers"),
        ((2**16, 2**16), "has 4,294,967,296 programs, but at most 134,217,728"),
    ],
)
def test_an_impossible_grid_is_refused_by_name(
    launcher: RecordingLauncher, grid: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        launch_scale(grid=grid)
    assert not launcher.launches


@pytest.mark.parametrize("grid", [(0,), (4, 0), (np.int64(0), 3, 2)])
def test_a_grid_without_programs_is_skipped_as_triton_skips_it(
    launcher: RecordingLauncher, grid: Any
) -> None:
    launch_scale(grid=grid)
    assert not launcher.launches


def test_a_grid_of_numpy_integers_is_a_grid(launcher: RecordingLauncher) -> None:
    launch_scale(grid=(np.int64(4), np.int32(2)))
    [(_, grid, _)] = launcher.launches
    assert grid == (4, 2, 1)
    assert {type(size) for size in grid} == {int}


def test_an_unknown_launch_option_is_also_tritons_error(launcher: RecordingLauncher) -> None:
    with pytest.raises(KeyError, match="no argument or option num_wraps: did you mean num_warps"):
        launch_scale(num_wraps=4)


@pytest.mark.parametrize(
    "options",
    [
        {"num_warps": 8, "num_stages": 4, "num_ctas": 1},
        {"maxnreg": 64},
        {"enable_fp_fusion": False, "launch_pdl": True, "launch_cooperative_grid": True},
        {"debug": True},
    ],
    ids=str,
)
def test_options_of_a_gpu_launch_are_taken(
    launcher: RecordingLauncher, options: dict[str, Any]
) -> None:
    launch_scale(**options)
    [(binary, _, _)] = launcher.launches
    assert binary.num_stages == options.get("num_stages", 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_warps": 3}, "num_warps must be a power of 2, but got 3"),
        ({"num_warps": 0}, "num_warps must be a power of 2, but got 0"),
        ({"num_stages": -1}, "num_stages must not be negative, but got -1"),
        ({"num_ctas": 2}, "num_ctas must be 1, but got 2"),
    ],
)
def test_an_impossible_launch_option_is_refused(
    launcher: RecordingLauncher, options: dict[str, int], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        launch_scale(**options)


def test_a_compile_error_is_tritons_own(launcher: RecordingLauncher) -> None:
    with pytest.raises(triton.CompilationError):
        constants_only[(1,)](N=-1)


def test_launch_hooks_are_called(
    launcher: RecordingLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(
        knobs.runtime, "launch_enter_hook", lambda md: seen.append(md.get()["name"])
    )
    monkeypatch.setattr(knobs.runtime, "launch_exit_hook", lambda md: seen.append("left"))
    launch_scale()
    assert seen == ["scale", "left"]


def test_host_code_reads_the_machine_as_device_properties(launcher: RecordingLauncher) -> None:
    driver = triton.runtime.driver.active
    properties = driver.utils.get_device_properties(driver.get_current_device())
    assert properties["multiprocessor_count"] == launcher.num_pes()
    assert properties["max_shared_mem"] == launcher.tcm_capacity_bytes()
    assert {"max_num_regs", "warpSize", "max_threads_per_sm"} <= set(properties)
    rates = launcher.device_rates()
    assert triton.testing.get_dram_gbps() == pytest.approx(rates.hbm_bytes_per_ns, rel=1e-5)


def test_a_compiled_kernel_outside_its_run_says_so(
    launcher: RecordingLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = scale.warmup(x(), x(), 1000, 7, 0.5, BLOCK=256, grid=(1,))
    compiled[(1, 1, 1)](x(), x(), 1000, 7, 0.5, 256)
    assert len(launcher.launches) == 1
    monkeypatch.setattr(triton.runtime.driver, "_active", object())
    with pytest.raises(UsageError, match="is active; launch it inside"):
        compiled.run(1, 1, 1, 0, compiled.function, (), None, None, None, *range(6))


@pytest.mark.usefixtures("collects_own")
def test_a_kernel_that_outlives_its_run_dies_in_peace(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel: Any = triton.jit(touch.fn)
    launcher = RecordingLauncher()
    for _ in range(2):
        with activate(launcher):
            kernel[(1,)](x())
            kernel[(1,)](x())
    first, *others = (binary for binary, _, _ in launcher.launches)
    assert all(other is first for other in others)

    class Gpu:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"asked the GPU driver for {name}")

    monkeypatch.setattr(triton.runtime.driver, "_active", Gpu())
    # An error in Triton's __del__ would be a warning, which the test suite makes an error.
    kernel.device_caches.clear()
    gc.collect()
