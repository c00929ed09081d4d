"""Tests that a session with the plug-in runs: some race, some read outside."""

import subprocess
import sys

import pytest
import triton
import triton.language as tl

import kernbench


@triton.jit
def first(x_ptr):
    tl.store(x_ptr, tl.program_id(0))


def race():
    with kernbench.RuntimeContext(ranks=1) as torch:
        first[(2,)](torch.zeros(1))


def test_checked():
    with pytest.raises(kernbench.KernbenchError, match=r"test_it\.py:15"):
        race()


def test_in_a_process():
    source = "import os; print(os.environ['KERNBENCH_CHECK'])"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.stdout.strip() == "1"


@pytest.fixture(scope="module")
def module_run():
    race()


@pytest.mark.unchecked("races on purpose")
def test_unchecked(module_run):
    race()


@triton.jit
def move(x_ptr, out_ptr, n):
    at = tl.arange(0, 16)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n))


def copy_masked():
    with kernbench.RuntimeContext(ranks=1) as torch:
        out = torch.ones(16)
        move[(1,)](torch.ones(16), out, 15)
        assert out.tolist() == [1] * 15 + [0]


@pytest.mark.kernbench_allow("masked-lanes")
def test_allowed():
    copy_masked()


def test_not_allowed():
    with pytest.raises(kernbench.KernbenchError, match="--allow masked-lanes"):
        copy_masked()


def test_checked_again():
    with pytest.raises(kernbench.KernbenchError):
        race()
