"""Integer arithmetic of TTIR on values that phase 1 knows, with the wrap-around of fixed widths.

Values are held as signed 64-bit numbers in the range of their width. Every function here raises
:class:`NotSeparableError` where the result would vary over two tensor axes; the caller then makes
it a command on data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernbench.commands import (
    NotSeparableError,
    Predicate,
    Separable,
    combine,
    combine_predicates,
    compare,
    divided,
    select_separable,
    split_by_rows,
)
from kernbench.dtypes import Array
from kernbench.kernel_ir.evaluation.evaluator import SplitPrograms
from kernbench.kernel_ir.text.ir import arith

Elementwise = Callable[[Array, Array], Array]
_ZERO = Separable(())
_MANY = 1 << 20
"""The elements from which on programs whose numbers wrap around are evaluated apart from others."""
_NARROW = {8: np.int8, 16: np.int16, 32: np.int32}


def wrap(value: Separable, bits: int) -> Separable:
    """Return the value reduced to the signed range of ``bits`` bits."""
    half = 1 << (bits - 1)
    if value.is_uniform or bits >= 64:
        if -half <= value.const < half:
            return value
        const = ((value.const + half) & (2 * half - 1)) - half
        return Separable(value.shape, const, value.terms)
    low, high = value.bounds()
    if -half <= low and high < half:
        return value
    if value.num_elements >= _MANY:
        # An index beyond a mask, in the last programs mostly.
        lows, highs = value.bounds_of_programs()
        fits = (lows >= -half) & (highs < half)
        if fits.all():
            return value.bounded(-half, half - 1)
        if fits.any():
            raise SplitPrograms(fits)
    narrow = _NARROW.get(bits)
    if narrow is not None:
        return combine(lambda a, _: a.astype(narrow), value, _ZERO)
    return combine(lambda a, _: ((a + half) & (2 * half - 1)) - half, value, _ZERO)


def to_unsigned(value: Separable, bits: int) -> Separable:
    """Return the value read as unsigned (64-bit values stay signed: see :func:`_unsigned`)."""
    if bits >= 64 or value.bounds()[0] >= 0:
        return value
    return combine(lambda a, _: a & ((1 << bits) - 1), value, _ZERO)


def add(a: Separable, b: Separable, bits: int) -> Separable:
    return wrap(a + b, bits)


def subtract(a: Separable, b: Separable, bits: int) -> Separable:
    return wrap(a - b, bits)


def multiply(a: Separable, b: Separable, bits: int) -> Separable:
    return wrap(a * b, bits)


def split_by(value: Separable, divisor: int) -> tuple[Separable, Separable] | None:
    """Return quotient and remainder of non-negative ``value``, separable if the parts allow it.

    Every term is divided on its own. If the remainders cannot sum up to ``divisor``, no carry
    crosses terms and both results are sums of small terms again. Else, of many elements, the carry
    of a program and an element is found by rows that are alike.
    """
    if divisor <= 0 or value.bounds()[0] < 0:
        return None
    rest = value.const % divisor
    largest = rest
    quotients, remainders = {}, {}
    for dims, array in value.terms.items():
        quotient, remainder = divided(array, divisor)
        largest += int(remainder.max())
        if largest >= divisor:
            return split_by_rows(value, divisor)
        quotients[dims], remainders[dims] = quotient, remainder
    return (
        Separable(value.shape, value.const // divisor, quotients).trimmed(),
        Separable(value.shape, rest, remainders).trimmed(),
    )


def _divide(a: Array, b: Array) -> Array:
    """Divide with truncation to zero, as C does; by zero gives 0 (undefined in the kernel too)."""
    with np.errstate(divide="ignore", over="ignore"):
        quotient: Array = np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))
        result: Array = np.where(b == 0, 0, quotient)
    return result


def _remainder(a: Array, b: Array) -> Array:
    result: Array = a - _divide(a, b) * b
    return result


def _floor_divide(a: Array, b: Array) -> Array:
    with np.errstate(divide="ignore", over="ignore"):
        quotient: Array = a // b
    return quotient if b.all() else np.where(b == 0, 0, quotient)


def _unsigned(function: Elementwise) -> Elementwise:
    """Apply a function to 64-bit numbers read as unsigned; division by zero gives 0."""

    def run(a: Array, b: Array) -> Array:
        with np.errstate(divide="ignore", over="ignore"):
            result = function(np.asarray(a).view(np.uint64), np.asarray(b).view(np.uint64))
        return np.asarray(result).astype(np.uint64, copy=False).view(np.int64)

    return run


def _high_product(a: Array, b: Array) -> Array:
    """Return the high half of an unsigned 64-bit product."""
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    a1, a0, b1, b0 = a >> half, a & low, b >> half, b & low
    middle = a1 * b0 + ((a0 * b0) >> half)
    other = a0 * b1 + (middle & low)
    result: Array = a1 * b1 + (middle >> half) + (other >> half)
    return result


_SHIFT_LIMIT = 63

_ELEMENTWISE: dict[str, Elementwise] = {
    "arith.divsi": _divide,
    "arith.remsi": _remainder,
    "arith.floordivsi": _floor_divide,
    "arith.ceildivsi": lambda a, b: -_floor_divide(-a, b),
    "arith.divui": _unsigned(lambda a, b: np.where(b == 0, np.uint64(0), a // b)),
    "arith.remui": _unsigned(lambda a, b: np.where(b == 0, a, a % b)),
    "arith.ceildivui": _unsigned(
        lambda a, b: np.where(b == 0, np.uint64(0), a // b + (a % b != 0).astype(np.uint64))
    ),
    "arith.minsi": np.minimum,
    "arith.maxsi": np.maximum,
    "arith.minui": _unsigned(np.minimum),
    "arith.maxui": _unsigned(np.maximum),
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.shli": lambda a, b: np.where(b > _SHIFT_LIMIT, 0, a << np.clip(b, 0, _SHIFT_LIMIT)),
    "arith.shrsi": lambda a, b: a >> np.clip(b, 0, _SHIFT_LIMIT),
    "arith.shrui": _unsigned(
        lambda a, b: np.where(
            b > np.uint64(_SHIFT_LIMIT), np.uint64(0), a >> np.minimum(b, np.uint64(_SHIFT_LIMIT))
        )
    ),
}
_UNSIGNED = arith("divui remui ceildivui minui maxui shrui") | {"tt.mulhiui"}
_LINEAR = {"arith.addi": add, "arith.subi": subtract, "arith.muli": multiply}
BINARY = {*_ELEMENTWISE, *_LINEAR, "tt.mulhiui"}
"""The two-operand integer operations that :func:`binary` knows."""


_DIVISIONS = {
    *("arith.divsi", "arith.remsi", "arith.floordivsi", "arith.ceildivsi"),
    *("arith.divui", "arith.remui", "arith.ceildivui"),
}


_SHIFTS = {"arith.shli", "arith.shrsi", "arith.shrui"}


def _is_within(value: Separable, bits: int) -> bool:
    low, high = value.bounds()
    return low >= 0 and high < bits


def _may_be(value: Separable, number: int) -> bool:
    """Return whether some program or element has a number."""
    low, high = value.bounds()
    return low <= number <= high and bool((value.dense(value.dims) == number).any())


def binary(name: str, a: Separable, b: Separable, bits: int) -> Separable:
    """Return ``name(a, b)``.

    Raises:
        NotSeparableError: The result is not separable or not defined, or the name not one of
            :data:`BINARY`.
    """
    linear = _LINEAR.get(name)
    if linear is not None:
        return linear(a, b, bits)
    if (name in _DIVISIONS and _may_be(b, 0)) or (name in _SHIFTS and not _is_within(b, bits)):
        raise NotSeparableError
    if name in _UNSIGNED:
        a, b = to_unsigned(a, bits), to_unsigned(b, bits)
    shortcut = _shortcut(name, a, b, bits)
    if shortcut is not None:
        return wrap(shortcut, bits)
    if name == "tt.mulhiui":
        if bits == 64:
            return combine(_unsigned(_high_product), a, b)
        return wrap(combine(_unsigned(lambda x, y: (x * y) >> np.uint64(bits)), a, b), bits)
    if name not in _ELEMENTWISE:
        raise NotSeparableError
    return wrap(combine(_ELEMENTWISE[name], a, b), bits)


def elementwise(name: str, a: Array, b: Array, bits: int) -> Array:
    """Return ``name(a, b)`` of arrays, for one of :data:`BINARY`, with the wrap-around of ``bits``.

    Both hold signed numbers of that width, or booleans; axes are broadcast as numpy does it.
    """
    result: Array
    if bits == 1:
        return (np.logical_and if name in _CONJUNCTIONS else _BOOLEAN[name])(a, b)
    if name in _LINEAR:
        result = {"addi": np.add, "subi": np.subtract, "muli": np.multiply}[name[6:]](a, b)
        return wrapped(result, bits)
    if name in _UNSIGNED and bits < 64:
        mask = (1 << bits) - 1
        a, b = a & mask, b & mask
    if name != "tt.mulhiui":
        result = _ELEMENTWISE[name](a, b)
    elif bits == 64:
        result = _unsigned(_high_product)(a, b)
    else:
        result = (a * b) >> bits
    return wrapped(result, bits)


def wrapped(array: Array, bits: int) -> Array:
    """Return numbers reduced to the signed range of ``bits`` bits."""
    narrow = _NARROW.get(bits)
    return array if narrow is None else array.astype(narrow).astype(np.int64)


_MOST = (1 << 63) - 1
"""The largest integer of 64 bits; arrays hold none that is larger."""


def _shortcut(name: str, a: Separable, b: Separable, bits: int) -> Separable | None:
    """Return a result that stays a sum of small terms, where the ranges allow one."""
    kind = name.partition(".")[2]
    if kind in ("minsi", "maxsi"):
        (a_low, a_high), (b_low, b_high) = a.bounds(), b.bounds()
        if a_high <= b_low:
            return a if kind == "minsi" else b
        if b_high <= a_low:
            return b if kind == "minsi" else a
        return None
    if not b.is_uniform:
        return None
    amount = b.const
    if kind == "shli" and 0 <= amount < min(bits, 63):
        return wrap(a * Separable((), 1 << amount), bits)
    if kind in ("shrsi", "shrui") and 0 <= amount < 62:
        parts = split_by(a, 1 << amount)
        return parts and parts[0]
    if kind == "andi" and 0 <= amount < _MOST and amount & (amount + 1) == 0:
        parts = split_by(a, amount + 1)
        return parts and parts[1]
    if kind in ("divsi", "divui", "floordivsi"):
        parts = split_by(a, amount)
        return parts and parts[0]
    if kind in ("remsi", "remui"):
        parts = split_by(a, amount)
        return parts and parts[1]
    return None


COMPARISONS: dict[str, Elementwise] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "slt": np.less,
    "sle": np.less_equal,
    "sgt": np.greater,
    "sge": np.greater_equal,
}
"""Comparisons of signed numbers, by the predicate's name; in TTIR's order, as the next is."""
AS_SIGNED = {"ult": "slt", "ule": "sle", "ugt": "sgt", "uge": "sge"}
PREDICATES = (*COMPARISONS, *AS_SIGNED)


def compare_integers(predicate: str, a: Separable, b: Separable, bits: int) -> Predicate:
    """Return ``arith.cmpi``."""
    if predicate in AS_SIGNED:
        a, b = to_unsigned(a, bits), to_unsigned(b, bits)
        if bits == 64 and min(a.bounds()[0], b.bounds()[0]) < 0:
            # Flipping the top bit maps unsigned order to signed order.
            flip = Separable((), -(1 << 63))
            a, b = (combine(np.bitwise_xor, separable, flip) for separable in (a, b))
        predicate = AS_SIGNED[predicate]
    return compare(COMPARISONS[predicate], a, b)


def compare_arrays(predicate: str, a: Array, b: Array, bits: int) -> Array:
    """Return ``arith.cmpi`` of arrays of signed numbers, or of booleans (``bits`` is 1)."""
    if predicate in AS_SIGNED:
        unsigned = [np.asarray(array).astype(np.int64).view(np.uint64) for array in (a, b)]
        a, b = (array & np.uint64((1 << bits) - 1) for array in unsigned)
        predicate = AS_SIGNED[predicate]
    elif bits == 1:
        # True is -1.
        a, b = b, a
    return COMPARISONS[predicate](a, b)


_BOOLEAN: dict[str, Elementwise] = {
    "arith.ori": np.logical_or,
    "arith.xori": np.logical_xor,
    "arith.addi": np.logical_xor,
    "arith.subi": np.logical_xor,
    "arith.maxui": np.logical_or,
    "arith.minsi": np.logical_or,
}
"""i1 arithmetic: true is 1 unsigned and -1 signed, so minsi is or."""
_CONJUNCTIONS = {"arith.andi", "arith.muli", "arith.minui", "arith.maxsi"}
BOOLEAN_BINARY = {*_BOOLEAN, *_CONJUNCTIONS}


def binary_boolean(name: str, a: Predicate, b: Predicate) -> Predicate:
    """Return ``name(a, b)`` of two i1 values, for one of :data:`BOOLEAN_BINARY`."""
    if name in _CONJUNCTIONS:
        return a & b
    if name == "arith.ori":
        for mine, other in ((a, b), (b, a)):
            if mine.is_uniform:
                return mine.with_shape(a.shape) if mine.is_true else other
    return combine_predicates(_BOOLEAN[name], a, b)


def boolean_to_integer(value: Predicate, signed: bool) -> Separable:
    """Return 1 (or -1 when signed) where the predicate holds, else 0."""
    return select_separable(
        value, Separable(value.shape, -1 if signed else 1), Separable(value.shape)
    )


def select(condition: Predicate, a: Any, b: Any) -> Any:
    """Return ``a`` where the condition holds, else ``b``, for two integers or two booleans."""
    if condition.is_uniform:
        return a if condition.is_true else b
    if isinstance(a, Separable):
        return select_separable(condition, a, b)
    no = combine_predicates(lambda x, _: ~x, condition, Predicate(()))
    return combine_predicates(np.logical_or, condition & a, no & b)
