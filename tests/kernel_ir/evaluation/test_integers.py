"""Known integers against Python's own, which never wrap."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.commands import (
    PROGRAM,
    NotSeparableError,
    Predicate,
    Separable,
    axis_dim,
    make_range,
    programs,
    uniform,
)
from kernbench.kernel_ir.evaluation import integers
from tests.tiers import examples

QUICK = examples(60)
WIDTHS = (8, 16, 32, 64)


def signed(value: int, bits: int) -> int:
    return (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def as_unsigned(function: Callable[[int, int], int]) -> Callable[[int, int, int], int]:
    return lambda a, b, bits: function(a % (1 << bits), b % (1 << bits))


ORACLES: dict[str, Callable[[int, int, int], int]] = {
    "arith.addi": lambda a, b, _: a + b,
    "arith.subi": lambda a, b, _: a - b,
    "arith.muli": lambda a, b, _: a * b,
    "arith.divsi": lambda a, b, _: truncated(a, b),
    "arith.remsi": lambda a, b, _: a - truncated(a, b) * b,
    "arith.floordivsi": lambda a, b, _: a // b,
    "arith.ceildivsi": lambda a, b, _: -(-a // b),
    "arith.divui": as_unsigned(operator.floordiv),
    "arith.remui": as_unsigned(operator.mod),
    "arith.ceildivui": as_unsigned(lambda a, b: -(-a // b)),
    "arith.minsi": lambda a, b, _: min(a, b),
    "arith.maxsi": lambda a, b, _: max(a, b),
    "arith.minui": as_unsigned(min),
    "arith.maxui": as_unsigned(max),
    "arith.andi": lambda a, b, _: a & b,
    "arith.ori": lambda a, b, _: a | b,
    "arith.xori": lambda a, b, _: a ^ b,
    "tt.mulhiui": lambda a, b, bits: (a % (1 << bits)) * (b % (1 << bits)) >> bits,
}
SHIFTS: dict[str, Callable[[int, int, int], int]] = {
    "arith.shli": lambda a, b, _: a << b,
    "arith.shrsi": lambda a, b, _: a >> b,
    "arith.shrui": lambda a, b, bits: a % (1 << bits) >> b,
}


def test_every_operation_has_an_oracle() -> None:
    assert {*ORACLES, *SHIFTS} == set(integers.BINARY)


def numbers(bits: int) -> st.SearchStrategy[int]:
    half = 1 << (bits - 1)
    # -2**63 itself has no absolute value in 64 bits.
    return st.integers(-20, 20) | st.integers(-half + 1, half - 1)


@pytest.mark.adr("0004-D4")
@pytest.mark.parametrize("name", sorted({**ORACLES, **SHIFTS}))
@QUICK
@given(data=st.data(), bits=st.sampled_from(WIDTHS))
def test_an_operation_agrees_with_python(name: str, data: st.DataObject, bits: int) -> None:
    lefts = data.draw(st.lists(numbers(bits), min_size=4, max_size=4))
    other = st.integers(0, bits - 1) if name in SHIFTS else numbers(bits).filter(bool)
    rights = data.draw(st.lists(other, min_size=4, max_size=4) | other.map(lambda b: [b] * 4))
    a, b = programs(np.array(lefts)), programs(np.array(rights))
    if len(set(rights)) == 1:
        b = uniform(rights[0])
    result = integers.binary(name, a, b, bits)
    oracle = {**ORACLES, **SHIFTS}[name]
    expected = [signed(oracle(x, y, bits), bits) for x, y in zip(lefts, rights, strict=True)]
    answer = np.broadcast_to(result.dense((PROGRAM,)), (4,))
    assert list(answer) == expected


@pytest.mark.parametrize("predicate", sorted(integers.PREDICATES))
@QUICK
@given(data=st.data(), bits=st.sampled_from(WIDTHS))
def test_a_comparison_agrees_with_python(predicate: str, data: st.DataObject, bits: int) -> None:
    lefts, rights = (data.draw(st.lists(numbers(bits), min_size=3, max_size=3)) for _ in range(2))
    result = integers.compare_integers(
        predicate, programs(np.array(lefts)), programs(np.array(rights)), bits
    )
    symbol = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge} | {
        "eq": operator.eq,
        "ne": operator.ne,
    }
    function = symbol[predicate[-2:]]
    wrap = (1 << bits) if predicate[0] == "u" else 0
    expected = [
        function(x % wrap if wrap else x, y % wrap if wrap else y)
        for x, y in zip(lefts, rights, strict=True)
    ]
    assert list(np.broadcast_to(result.dense((PROGRAM,)), (3,))) == expected


@QUICK
@given(
    divisor=st.integers(1, 70),
    scale=st.integers(1, 70),
    length=st.integers(1, 40),
    start=st.integers(0, 9),
)
def test_quotient_and_remainder_are_right_whenever_they_stay_separable(
    divisor: int, scale: int, length: int, start: int
) -> None:
    value = programs(np.arange(5) * scale) + make_range(0, length) + uniform(start)
    result = integers.split_by(value, divisor)
    dense = np.arange(5)[:, None] * scale + np.arange(length) + start
    if result is None:
        # A carry crosses from the lanes into the programs somewhere.
        parts = (np.arange(5) * scale % divisor).max() + (np.arange(length) % divisor).max()
        assert parts + start % divisor >= divisor
        return
    dims = (PROGRAM, axis_dim(0))
    for part, expected in zip(result, (dense // divisor, dense % divisor), strict=True):
        np.testing.assert_array_equal(np.broadcast_to(part.dense(dims), dense.shape), expected)


def test_a_shift_to_the_sign_of_64_bits_is_no_overflow() -> None:
    binary = integers.binary("arith.shli", programs(np.array([0, 1, 3, 4])), uniform(63), 64)
    assert binary.dense((PROGRAM,)).tolist() == [0, -(2**63), -(2**63), 0]


def test_a_mask_of_all_but_the_sign_of_64_bits_is_no_overflow() -> None:
    binary = integers.binary("arith.andi", programs(np.array([0, 5, -1])), uniform(2**63 - 1), 64)
    assert binary.dense((PROGRAM,)).tolist() == [0, 5, 2**63 - 1]


@pytest.mark.parametrize("divisors", [[0, 0], [2, 0]])
def test_what_is_divided_by_zero_is_left_to_data(divisors: list[int]) -> None:
    for name in ("divsi", "divui", "floordivsi", "ceildivsi", "ceildivui", "remsi", "remui"):
        with pytest.raises(NotSeparableError):
            integers.binary(
                f"arith.{name}", programs(np.array([3, -4])), programs(np.array(divisors)), 32
            )


@QUICK
@given(
    st.lists(st.booleans(), min_size=4, max_size=4), st.lists(st.booleans(), min_size=4, max_size=4)
)
def test_one_bit_arithmetic_agrees_with_python(lefts: list[bool], rights: list[bool]) -> None:
    a, b = (Predicate((), {(PROGRAM,): np.array(item)}) & Predicate(()) for item in (lefts, rights))
    oracles: dict[str, Callable[[bool, bool], bool]] = {
        "arith.andi": operator.and_,
        "arith.ori": operator.or_,
        "arith.xori": operator.xor,
        "arith.addi": operator.xor,
        "arith.muli": operator.and_,
        "arith.subi": operator.xor,
        "arith.maxui": max,
        "arith.minui": min,
        # True is -1 when signed.
        "arith.maxsi": lambda x, y: -max(-x, -y) == 1,
        "arith.minsi": lambda x, y: -min(-x, -y) == 1,
    }
    assert set(oracles) == set(integers.BOOLEAN_BINARY)
    for name, oracle in oracles.items():
        dense = integers.binary_boolean(name, a, b).dense((PROGRAM,))
        expected = [bool(oracle(x, y)) for x, y in zip(lefts, rights, strict=True)]
        assert list(np.broadcast_to(dense, (4,))) == expected


@QUICK
@given(st.integers(-(2**40), 2**40), st.sampled_from(WIDTHS[:3]))
def test_wrapping_keeps_the_low_bits(value: int, bits: int) -> None:
    assert integers.wrap(uniform(value), bits).const == signed(value, bits)
    spread = integers.wrap(Separable((2,), value, {(axis_dim(0),): np.array([0, 1])}), bits)
    assert list(np.broadcast_to(spread.dense((axis_dim(0),)), (2,))) == [
        signed(value, bits),
        signed(value + 1, bits),
    ]
