"""Operations of GPUs that change nothing here run; others are refused in one short line."""

from __future__ import annotations

import numpy as np
import pytest
import triton
import triton.language as tl

import kernbench
from kernbench.errors import UnsupportedOpError
from kernbench.kernel_ir import evaluate, parse_module

TEXT = """module {
  tt.func public @kernel(%x: !tt.ptr<f32>) {
    OPERATION
    tt.return
  }
}"""


@triton.jit
def dependent(x, N: tl.constexpr):
    tl.extra.cuda.gdc_wait()
    at = x + tl.arange(0, N)
    tl.store(at, tl.load(at) + 1)
    tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def quotients(x, y, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y + at, tl.math.fdiv(tl.load(x + at), 3.0, approx=True))


@pytest.mark.parametrize("machine", ["h100-sxm", "b200", "ahbm"])
@pytest.mark.parametrize("check", [False, True])
def test_dependent_launches_run_one_after_the_other(machine: str, check: bool) -> None:
    with kernbench.RuntimeContext(machine=machine, check=check) as torch:
        x = torch.zeros(32)
        for _ in range(3):
            dependent[(1,)](x, N=32, launch_pdl=True)
        assert x.tolist() == [3.0] * 32


def test_an_approximate_division_is_one() -> None:
    with kernbench.RuntimeContext(machine="h100-sxm") as torch:
        x, y = torch.arange(32, dtype="f32"), torch.zeros(32)
        quotients[(1,)](x, y, N=32)
        np.testing.assert_allclose(y.numpy(), np.arange(32) / 3, rtol=2**-22)


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        ("ttng.cluster_barrier", "is for NVIDIA's GPUs alone"),
        ("amdg.cond_barrier", "is for AMD's GPUs alone"),
        ("tt.from_the_future", "is not simulated; write it with others of triton.language"),
    ],
)
def test_an_unknown_operation_is_refused_without_a_list_of_known_ones(
    operation: str, words: str
) -> None:
    module = parse_module(TEXT.replace("OPERATION", operation))
    with pytest.raises(UnsupportedOpError, match=words) as failure:
        evaluate(module, (1, 1, 1), {}, num_warps=4, num_stages=1)
    assert operation in str(failure.value)
    assert len(str(failure.value)) < 200
