from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import triton
import triton.language as tl
import triton.testing as testing

from kernbench.errors import UsageError
from kernbench.triton_backend import TcmExhaustedError, activate
from kernbench.triton_backend.benchmarking import NothingToTimeWarning
from tests.triton_backend.recording import RecordingLauncher, Tensor

OWN = {name: getattr(testing, name) for name in ("do_bench", "do_bench_cudagraph", "Mark")}


@triton.jit
def double(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + offsets, mask=offsets < n)
    tl.store(out + offsets, value * 2, mask=offsets < n)


def launch() -> None:
    double[(4,)](Tensor("float32"), Tensor("float32", 8192), 1000, BLOCK=256, num_warps=4)


@pytest.mark.adr("0050-D1")
@pytest.mark.parametrize("name", ["do_bench", "do_bench_cudagraph"])
def test_do_bench_is_the_modeled_time_of_one_call(launcher: RecordingLauncher, name: str) -> None:
    do_bench = getattr(testing, name)
    assert do_bench(launch) == 0.25
    assert len(launcher.benchmarked) == 1
    assert not launcher.launches, "a launch that is only timed must not reach a stream"


def test_do_bench_answers_in_the_form_that_was_asked_for(launcher: RecordingLauncher) -> None:
    assert testing.do_bench(launch, quantiles=[0.5, 0.2, 0.8]) == [0.25, 0.25, 0.25]
    assert testing.do_bench(launch, quantiles=[0.5]) == 0.25
    assert testing.do_bench(launch, return_mode="all") == [0.25]
    assert testing.do_bench(launch, warmup=1, rep=1, return_mode="min") == 0.25
    with pytest.raises(UsageError, match="return_mode must be one of min, max"):
        testing.do_bench(launch, return_mode="fastest")


def test_do_bench_clears_gradients_first(launcher: RecordingLauncher) -> None:
    weight = SimpleNamespace(grad="of the run before")

    def check() -> None:
        assert weight.grad is None
        launch()

    testing.do_bench(check, grad_to_none=[weight])


@pytest.mark.adr("0050-D1")
def test_do_bench_of_no_kernel_is_not_a_number_and_says_why(
    launcher: RecordingLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "benchmark_ms", lambda fn: fn() or 0.0)
    with pytest.warns(NothingToTimeWarning, match="launches no kernel"):
        assert math.isnan(testing.do_bench(lambda: None))


@pytest.mark.adr("0050-D2")
def test_triton_testing_is_its_own_again_after_the_last_run(empty_cache: Path) -> None:
    with activate(RecordingLauncher()):
        ours = testing.do_bench
        with activate(RecordingLauncher()):
            assert testing.do_bench is ours is not OWN["do_bench"]
        assert testing.do_bench is ours
    assert {name: getattr(testing, name) for name in OWN} == OWN


def test_what_a_program_put_in_place_of_do_bench_stays(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(testing, "do_bench", testing.do_bench)  # put back afterwards
    with activate(RecordingLauncher()):
        testing.do_bench = len
    assert testing.do_bench is len


def test_do_bench_kept_from_a_run_is_tritons_outside_of_it(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with activate(RecordingLauncher()):
        kept = testing.do_bench, testing.do_bench_cudagraph

    class Gpu:
        def get_device_interface(self) -> Any:
            raise LookupError("asked the GPU")

    monkeypatch.setattr(triton.runtime.driver, "_active", Gpu())
    with pytest.raises(LookupError, match="asked the GPU"):
        kept[0](launch)


def test_do_bench_from_before_the_run_is_refused_with_the_way_out(
    launcher: RecordingLauncher,
) -> None:
    with pytest.raises(UsageError, match=r"call triton\.testing\.do_bench by that name"):
        OWN["do_bench"](launch)


@pytest.mark.adr("0050-D3")
def test_a_report_without_plotting_libraries_is_a_table(
    launcher: RecordingLauncher,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    @testing.perf_report(
        testing.Benchmark(
            x_names=["n"],
            x_vals=[128, 4096],
            line_arg="provider",
            line_vals=["ours", "theirs"],
            line_names=["Ours", "Theirs"],
            ylabel="GB/s",
            plot_name="doubling",
            args={"scale": 2},
        )
    )
    def bench(n: int, provider: str, scale: int) -> Any:
        ms = testing.do_bench(launch, quantiles=[0.5, 0.2, 0.8])
        return tuple(n * scale / item for item in ms) if provider == "ours" else n / 7

    result = bench.run(print_data=True, save_path=str(tmp_path), return_df=True)
    assert result[1] == {"n": 4096, "Ours (GB/s)": 4096 * 2 / 0.25, "Theirs (GB/s)": 4096 / 7}
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "doubling:"
    assert lines[3].split() == ["4096", "32768.000000", "585.142857"]
    assert (tmp_path / "doubling.csv").read_text().splitlines()[0] == "n,Ours (GB/s),Theirs (GB/s)"
    assert (tmp_path / "results.html").exists()


def test_host_code_sizes_a_grid_by_what_a_program_takes_of_a_pe(
    launcher: RecordingLauncher,
) -> None:
    arguments = Tensor("float32"), Tensor("float32", 8192), 1000, 256
    kernel = double.warmup(*arguments, num_warps=8, grid=(1,))
    kernel._init_handles()
    properties = triton.runtime.driver.active.utils.get_device_properties(None)
    by_registers = properties["max_num_regs"] // (kernel.n_regs * properties["warpSize"] * 8)
    assert by_registers >= 1
    assert kernel.metadata.shared == 256 * 4, "one tile of float32"
    kernel[(by_registers, 1, 1)](*arguments)
    assert launcher.launches[0][1] == (by_registers, 1, 1)


def test_a_kernel_that_fits_no_pe_is_refused_when_it_is_loaded(
    launcher: RecordingLauncher,
) -> None:
    kernel = double.warmup(Tensor("float32"), Tensor("float32", 8192), 1000, 256, grid=(1,))
    launcher.tcm_bytes = 1000
    for _ in range(2):
        with pytest.raises(TcmExhaustedError, match=r"needs 1,024 bytes.*\n.*256xf32 at"):
            kernel._init_handles()
    launcher.tcm_bytes = 1024
    kernel._init_handles()


def test_the_device_of_torch_is_the_cpu_where_torch_was_imported(
    launcher: RecordingLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = triton.runtime.driver.active
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert driver.get_active_torch_device() is None
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(device=lambda name: ("device", name)))
    assert driver.get_active_torch_device() == ("device", "cpu")
