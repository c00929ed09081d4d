"""Floats out of an integer's range are reported where they matter, and nowhere else."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import triton
import triton.language as tl

import kernbench
from kernbench.errors import ConversionWarning, UndefinedValueError

BIG = [1.0, 3e9, -2.5, 4.0]


@triton.jit
def stores(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n).to(y.dtype.element_ty), mask=at < n)


@triton.jit
def drops(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=float("inf"))
    whole = tl.where(tl.abs(value) < 1e9, value.to(y.dtype.element_ty), 7)
    tl.store(y + at, whole, mask=at < n)


@triton.jit
def clamps(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.clamp(tl.load(x + at), -1e9, 1e9)
    tl.store(y + at, value.to(y.dtype.element_ty))


@triton.jit
def sums(x, y, n, BLOCK: tl.constexpr):
    tl.store(y, tl.sum(tl.load(x + tl.arange(0, BLOCK)).to(y.dtype.element_ty), 0))


@triton.jit
def goes_there(x, y, n, BLOCK: tl.constexpr):
    at = tl.load(x + tl.arange(0, BLOCK)).to(tl.int32) & (BLOCK - 1)
    tl.store(y + at, at)


@triton.jit
def decides(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    if tl.load(y) == 0:
        tl.store(y + at, tl.load(x + at).to(y.dtype.element_ty))


@triton.jit
def stores_masked_off(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    tl.store(y + at, value.to(y.dtype.element_ty) + tl.load(x + at).to(y.dtype.element_ty))


def launched(kernel: Any, numbers: list[float], dtype: str = "i32", n: int = 4) -> list[Any]:
    with kernbench.RuntimeContext("h100-sxm", ranks=1, check=True) as torch:
        y = torch.zeros(4, dtype=dtype)
        for _ in range(2):
            kernel[(1,)](torch.tensor(numbers), y, n, BLOCK=4)
            result: list[Any] = y.tolist()
            y = torch.zeros(4, dtype=dtype)
    return result


@pytest.mark.adr("0042-D14")
@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (stores, "tt.store at .* (kernel stores, .* arith.fptosi at"),
        (sums, "arith.fptosi at .*, through tt.reduce at"),
        (goes_there, "tt.store at .* arith.fptosi at"),
        (decides, "tt.store at .* (kernel decides, .* arith.fptosi at"),
    ],
)
def test_what_is_stored_or_steers_a_store_is_reported_once(kernel: Any, words: str) -> None:
    with pytest.warns(ConversionWarning, match=words.replace("(", r"\(")) as warns:
        launched(kernel, BIG)
    assert len(warns) == 1
    assert "3e+09 becomes 2147483647 (int32) on NVIDIA's GPUs" in str(warns[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConversionWarning)
        launched(kernel, [1.0, 2.0, 0.0, 3.0])


@pytest.mark.adr("0042-D14")
@pytest.mark.parametrize("kernel", [drops, clamps])
@pytest.mark.parametrize("numbers", [BIG, [math.inf, math.nan, -math.inf, 1e30]])
def test_what_the_program_drops_or_clamps_is_no_mistake(
    kernel: Callable[..., Any], numbers: list[float]
) -> None:
    value = [0.0 if math.isnan(number) and kernel is clamps else number for number in numbers]
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConversionWarning)
        result = launched(kernel, value, n=3)
    if kernel is clamps:
        assert result == [int(min(max(item, -1e9), 1e9)) for item in value]
    else:
        assert result == [*(int(item) if abs(item) < 1e9 else 7 for item in value[:3]), 0]


@pytest.mark.parametrize(
    ("numbers", "dtype", "words", "became"),
    [
        ([300.0, 1.0, 1.0, 1.0], "i8", "300 becomes 44 .int8.", 44),
        ([-1.0, 1.0, 1.0, 1.0], "u8", "-1 becomes 0 .uint8.", 0),
        ([-1.0, 1.0, 1.0, 1.0], "u32", "-1 becomes 0 .uint32.", 0),
        ([math.nan, 1.0, 1.0, 1.0], "i64", "nan becomes -9223372036854775808 .int64.", -(2**63)),
    ],
)
def test_every_width_names_what_the_number_became(
    numbers: list[float], dtype: str, words: str, became: int
) -> None:
    with pytest.warns(ConversionWarning, match=words):
        assert launched(stores, numbers, dtype)[0] == became


def test_a_lane_that_is_undefined_as_well_stays_an_error() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConversionWarning)
        with pytest.raises(UndefinedValueError, match="stores an undefined value"):
            launched(stores_masked_off, [3e9] * 4, n=2)
