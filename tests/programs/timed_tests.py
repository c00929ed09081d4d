"""Tests as a user of the plug-in's fixtures writes them."""

import os

import pytest

SIZE = int(os.environ.get("SIZE", "4096"))


def double(torch, n: int) -> None:
    torch.ones(n) * 2.0


def test_kept(kernbench_run, assert_time_within) -> None:
    run = kernbench_run(double, machine="h100-sxm", n=SIZE)
    assert run.report["machine"] == "h100-sxm"
    assert run.kernels_us["mul"] < run.time_us
    assert_time_within(run, name="once")
    assert_time_within(run, 1000)
    assert_time_within(run, tolerance=0.01)


@pytest.mark.parametrize("n", [64])
def test_bench_and_script(kernbench_run, assert_time_within, tmp_path, n) -> None:
    assert_time_within(kernbench_run("gemm", m=n, n=n, k=n, data=False))
    program = tmp_path / "program.py"
    program.write_text("import sys\nassert sys.argv[1:] == ['--steps', '3']\n")
    assert kernbench_run(program, args=["--steps", "3"]).time_us == 0
    with pytest.raises(AssertionError, match="AssertionError"):
        kernbench_run(program)
    with pytest.raises(pytest.fail.Exception, match=r"at most 0[.]001 us are allowed"):
        assert_time_within(kernbench_run(double, n=4), 0.001)
    with pytest.raises(ValueError, match="takes what kernbench_run returns"):
        assert_time_within(3.0)
    with pytest.raises(ValueError, match=r"4000 for 4 ms.*not '4 ms'"):
        assert_time_within(kernbench_run(double, n=4), "4 ms")
