"""Inf that a launch is given is not made by it, whether its programs decide by data or not."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import triton
import triton.language as tl

import kernbench
from kernbench.errors import NonFiniteWarning
from tests.sanitizer.test_sanitizer import torch

__all__ = ["torch"]


@triton.jit
def scaled(count, x, out, by, LIVE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    times = tl.load(count) if LIVE else 2
    value = tl.load(x + at)
    for _ in range(times):
        value = value * by
    tl.store(out + at, value)


@pytest.mark.adr("0020-D6")
@pytest.mark.parametrize("live", [False, True])
def test_inf_is_made_out_of_finite_numbers_or_given(torch: Any, live: bool) -> None:
    count, x = torch.tensor([2], dtype="i32"), torch.ones(8)

    def run(by: float) -> list[float]:
        out = torch.zeros(8)
        scaled[(1,)](count, x, out, by, LIVE=live, BLOCK=8)
        numbers: list[float] = out.tolist()
        return numbers

    with warnings.catch_warnings():
        warnings.simplefilter("error", NonFiniteWarning)
        assert run(math.inf) == [math.inf] * 8
    with pytest.warns(NonFiniteWarning, match="makes inf out of finite numbers"):
        assert run(3e38) == [math.inf] * 8
    with warnings.catch_warnings():
        warnings.simplefilter("error", NonFiniteWarning)
        run(3e38)


def test_it_is_an_error_where_the_run_says_so() -> None:
    with kernbench.RuntimeContext(machine="ahbm", check=True, nan_is_error=True) as torch:
        count, x, out = torch.tensor([2], dtype="i32"), torch.ones(8), torch.zeros(8)
        scaled[(1,)](count, x, out, 3e38, LIVE=False, BLOCK=8)
        with pytest.raises(kernbench.errors.NonFiniteError, match=r"scaled, rank 0, program"):
            out.numpy()
