"""Results that integer arithmetic does not have are reported where they are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

import kernbench
from kernbench.errors import UndefinedValueError


@triton.jit
def of_data(a, b, out, OP: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    x, y = tl.load(a + at), tl.load(b + at)
    if OP == "//":
        tl.store(out + at, x // y)
    elif OP == "%":
        tl.store(out + at, x % y)
    elif OP == "<<":
        tl.store(out + at, x << y)
    elif OP == ">>":
        tl.store(out + at, x >> y)
    elif OP == "chosen":
        tl.store(out + at, tl.where(y == 0, 0, x // y))
    elif OP == "masked off":
        tl.store(out + at, x // y, mask=y != 0)
    elif OP == "clamped":
        tl.store(out + at, x // tl.maximum(y, 1))


@triton.jit
def decided_by_data(a, b, out, OP: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    x, y = tl.load(a + at), tl.load(b + at)
    if OP == "address":
        tl.store(out + (x % y & (N - 1)), x)
    elif OP == "mask":
        tl.store(out + at, x, mask=x // y > 0)
    elif OP == "branch":  # noqa: SIM102 - only the inner one is data
        if tl.sum(x // y) > 3:
            tl.store(out, 1)


@triton.jit
def of_programs(out, n, OP: tl.constexpr):
    pid = tl.program_id(0)
    if OP == "store":
        tl.store(out + pid, pid % n)
    elif OP == "branch":
        if pid // n > 0:
            tl.store(out + pid, 1)
    elif OP == "turns":
        for _ in range(pid // n):
            tl.store(out + pid, 1)
    elif OP == "address":
        tl.store(out + (pid // n & 3) * 2 + pid, 1)
    elif OP == "guarded":  # noqa: SIM102 - the inner one is a branch of the kernel
        if n > 0:
            tl.store(out + pid, pid // n)


def run(launch: Callable[[Any, Any], Any], dtype: str = "i32") -> list[int]:
    with kernbench.RuntimeContext(machine="h100-sxm", check=True) as torch:
        out = torch.zeros(8, dtype=dtype)
        launch(torch, out)
        return [int(item) for item in out.tolist()]


def on_data(
    op: str, a: list[int], b: list[int], dtype: str = "i32", kernel: Any = of_data
) -> list[int]:
    return run(
        lambda torch, out: kernel[(1,)](
            torch.tensor(a, dtype=dtype), torch.tensor(b, dtype=dtype), out, op, N=len(a)
        ),
        dtype,
    )


@pytest.mark.adr("0232-D3")
@pytest.mark.parametrize("dtype", ["i32", "i64", "i8", "u32", "u8"])
@pytest.mark.parametrize("op", ["//", "%"])
def test_a_stored_division_by_zero_is_an_error(op: str, dtype: str) -> None:
    a = np.array([9, 7, 5, 3])
    expected = a // 2 if op == "//" else a % 2
    assert on_data(op, a.tolist(), [2] * 4, dtype)[:4] == expected.tolist()
    words = r"tt.store at test_arithmetic.py:\d+ .*stores an undefined value.*divides 5 by 0"
    with pytest.raises(UndefinedValueError, match=words):
        on_data(op, a.tolist(), [2, 2, 0, 2], dtype)


@pytest.mark.adr("0232-D3")
@pytest.mark.parametrize(
    ("op", "words"),
    [
        ("address", "uses an undefined address.*arith.remsi"),
        ("mask", "is masked by an undefined value"),
        ("branch", "the branch at .* is decided by an undefined value.*through tt.reduce"),
    ],
)
def test_so_is_one_that_decides_where_or_whether(op: str, words: str) -> None:
    on_data(op, [1, 2, 3, 4], [5] * 4, kernel=decided_by_data)
    with pytest.raises(UndefinedValueError, match=words):
        on_data(op, [1, 2, 3, 4], [5, 0, 5, 5], kernel=decided_by_data)


@pytest.mark.adr("0232-D3")
@pytest.mark.parametrize("op", ["chosen", "masked off", "clamped"])
def test_one_that_the_kernel_drops_is_none(op: str) -> None:
    expected = [2, 3 if op == "clamped" else 0, 5, 7]
    assert on_data(op, [4, 3, 5, 7], [2, 0, 1, 1])[:4] == expected


@pytest.mark.adr("0232-D3")
def test_the_quotient_that_no_integer_holds_and_shifts_out_of_the_number_are_too() -> None:
    lowest = -(2**31)
    assert on_data("//", [lowest, 4], [1, -1])[:2] == [lowest, -4]
    with pytest.raises(UndefinedValueError, match="divides -2147483648 by -1"):
        on_data("//", [lowest, 4], [-1, -1])
    for op in ("<<", ">>"):
        assert on_data(op, [-3, 4], [31, 0])[:2] == [lowest if op == "<<" else -1, 4]
        for amount in (32, -1):
            with pytest.raises(UndefinedValueError, match=f"shifts -3 by {amount}"):
                on_data(op, [-3, 4], [amount, 0])


@pytest.mark.adr("0232-D3")
@pytest.mark.parametrize("op", ["store", "branch", "turns", "address"])
def test_numbers_that_are_known_without_data_are_no_exception(op: str) -> None:
    run(lambda torch, out: of_programs[(2,)](out, 2, op))
    with pytest.raises(UndefinedValueError, match="divides 0 by 0"):
        run(lambda torch, out: of_programs[(2,)](out, 0, op))
    assert run(lambda torch, out: of_programs[(2,)](out, 0, "guarded")) == [0] * 8


@pytest.mark.adr("0232-D2")
def test_without_checks_known_numbers_and_data_agree() -> None:
    with kernbench.RuntimeContext(machine="h100-sxm", check=False) as torch:
        out = torch.zeros(8, dtype="i32")
        of_programs[(2,)](out, 0, "store")
        a, b = torch.tensor([0, 1], dtype="i32"), torch.zeros(2, dtype="i32")
        of_data[(1,)](a, b, out[4:], "%", N=2)
        assert out.tolist() == [-1, -1, 0, 0, -1, -1, 0, 0]
