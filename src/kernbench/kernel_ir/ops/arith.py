"""The ``arith`` dialect: on integers that phase 1 knows it computes, on data it emits commands."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from kernbench.commands import (
    PROGRAM,
    MathClass,
    NotSeparableError,
    Predicate,
    Separable,
    Splat,
    axis_dim,
    constant,
    is_axis,
)
from kernbench.dtypes import DType, bool_, int64
from kernbench.kernel_ir.evaluation import integers
from kernbench.kernel_ir.evaluation.evaluator import Evaluator
from kernbench.kernel_ir.evaluation.overflow import note_overflow
from kernbench.kernel_ir.evaluation.planned import MIXING, planned_values
from kernbench.kernel_ir.evaluation.values import ABSOLUTE, Held, Pointer
from kernbench.kernel_ir.ops.registry import Dialect, where_known
from kernbench.kernel_ir.text.cursor import dense, scalar
from kernbench.kernel_ir.text.ir import Op
from kernbench.kernel_ir.text.rules import (
    Check,
    alike,
    comparison,
    conversion,
    elementwise,
    is_float,
    is_integer,
)

DIALECT = Dialect()

_SIMPLE, _DIVIDE, _CONVERT = MathClass.SIMPLE, MathClass.DIVIDE, MathClass.CONVERT

_FLOATS = elementwise(is_float)
_INTEGERS = elementwise(is_integer)


def _check_select(op: Op) -> str | None:
    condition, a, b = (value.type for value in op.operands)
    result = op.results[0].type
    if not condition.is_bool or condition.shape not in ((), result.shape):
        return f"chooses by {condition}"
    if not alike(a, result) or not alike(b, result):
        return f"chooses between {a} and {b} for {result}"
    return None


def _resized(fits: Callable[[int, int], bool]) -> Check:
    """Return the check that an integer is converted to one whose width ``fits`` its own."""
    converted = conversion(is_integer, is_integer)

    def check(op: Op) -> str | None:
        problem = converted(op)
        if problem is None:
            value, result = op.operands[0].type, op.results[0].type
            if not fits(value.bits, result.bits):
                return f"converts {value} to {result}"
        return problem

    return check


@DIALECT.op(
    *("arith.addf", "arith.subf", "arith.mulf"),
    *("arith.maximumf", "arith.minimumf", "arith.maxnumf", "arith.minnumf"),
    operands=2,
    check=_FLOATS,
    cost=_SIMPLE,
)
@DIALECT.op("arith.negf", operands=1, check=_FLOATS, cost=_SIMPLE)
@DIALECT.op("arith.divf", "arith.remf", operands=2, check=_FLOATS, cost=_DIVIDE)
@DIALECT.op(
    "arith.truncf", "arith.extf", operands=1, check=conversion(is_float, is_float), cost=_CONVERT
)
@DIALECT.op(
    *("arith.sitofp", "arith.uitofp"),
    operands=1,
    check=conversion(is_integer, is_float),
    cost=_CONVERT,
)
@DIALECT.op(
    *("arith.fptosi", "arith.fptoui"),
    operands=1,
    check=conversion(is_float, is_integer),
    cost=_CONVERT,
)
def _float(run: Evaluator, op: Op) -> None:
    run.math(op)


@DIALECT.op(
    *("arith.addi", "arith.subi", "arith.muli"),
    *("arith.minsi", "arith.maxsi", "arith.minui", "arith.maxui"),
    *("arith.andi", "arith.ori", "arith.xori", "arith.shli", "arith.shrsi", "arith.shrui"),
    operands=2,
    check=_INTEGERS,
    cost=_SIMPLE,
)
@DIALECT.op(
    *("arith.divsi", "arith.divui", "arith.remsi", "arith.remui"),
    *("arith.ceildivsi", "arith.ceildivui", "arith.floordivsi"),
    operands=2,
    check=_INTEGERS,
    cost=_DIVIDE,
)
@where_known
def binary(run: Evaluator, op: Op) -> Held:
    """Return the result of an operation on two integers."""
    a, b = run.get(op.operands[0]), run.get(op.operands[1])
    if isinstance(a, Separable) and isinstance(b, Separable):
        if op.name in MIXING and _is_data(run, op, a, b):
            raise NotSeparableError
        result = integers.binary(op.name, a, b, op.results[0].type.bits)
        note_overflow(run, op, a, b)
        return result
    is_boolean = op.name in integers.BOOLEAN_BINARY
    if is_boolean and isinstance(a, Predicate) and isinstance(b, Predicate):
        return integers.binary_boolean(op.name, a, b)
    raise NotSeparableError


def _is_data(run: Evaluator, op: Op, a: Separable, b: Separable) -> bool:
    """Whether a result varies over programs and elements, and nothing is planned with it."""
    dims = (*a.dims, *b.dims)
    mixed = PROGRAM in dims and any(map(is_axis, dims))
    return mixed and op.results[0] not in planned_values(run.module)


@DIALECT.op("arith.constant", operands=0)
def _constant(run: Evaluator, op: Op) -> None:
    type_ = op.results[0].type
    literals = op.attrs.get("literals") or op.attrs.get("words") or (op.attrs.get("value"),)
    text = str(literals[0])
    if type_.dtype is None:
        raise run.unsupported(op, f"its type is {type_}")
    try:
        if text.startswith("dense<"):
            value: Any = dense(text, type_.dtype, type_.shape)
        else:
            value = scalar(text, type_.dtype)
    except (ValueError, OverflowError) as error:
        raise run.unsupported(op, f"the constant {text[:40]} of type {type_}") from error
    run.set(op.results[0], _held_constant(run, op, value, type_.shape, type_.dtype))


def _held_constant(
    run: Evaluator, op: Op, value: Any, shape: tuple[int, ...], dtype: DType
) -> Held:
    if not isinstance(value, np.ndarray):
        if dtype.name == "bool":
            return constant(bool(value), shape)
        if dtype.is_floating_point:
            return Splat(float(value), shape, dtype)
        return integers.wrap(Separable(shape, int(value)), dtype.bits)
    if value.ndim != 1 or dtype.is_floating_point:
        raise run.unsupported(op, f"a table of shape {shape} of {dtype.mlir}")
    if dtype.name == "bool":
        return Predicate(shape, {(axis_dim(0),): value.astype(np.bool_)})
    return Separable(shape, 0, {(axis_dim(0),): value.astype(np.int64)}).trimmed()


@DIALECT.op(
    "arith.cmpi",
    operands=2,
    check=comparison(lambda type_: is_integer(type_) or type_.is_pointer),
    cost=_SIMPLE,
)
def _compare_integers(run: Evaluator, op: Op) -> None:
    predicate = op.attrs.get("words", ("",))[0]
    if predicate not in integers.PREDICATES:
        raise run.unsupported(op, f"predicate {predicate!r}")
    a, b = run.get(op.operands[0]), run.get(op.operands[1])
    if isinstance(a, Pointer) and isinstance(b, Pointer):
        same_base = a.param == b.param and a.gather is None and b.gather is None
        if same_base:
            a, b = a.offset, b.offset
        else:
            a, b = run.address(op, a), run.address(op, b)
    try:
        if isinstance(a, Separable) and isinstance(b, Separable):
            bits = 64 if op.operands[0].type.is_pointer else op.operands[0].type.bits
            result = integers.compare_integers(predicate, a, b, bits)
        elif isinstance(a, Predicate) and isinstance(b, Predicate):
            signed = predicate[0] == "s"
            result = integers.compare_integers(
                predicate,
                integers.boolean_to_integer(a, signed),
                integers.boolean_to_integer(b, signed),
                64,
            )
        else:
            raise NotSeparableError
    except NotSeparableError:
        run.math(op, {"predicate": predicate})
    else:
        run.set(op.results[0], result)


@DIALECT.op("arith.cmpf", operands=2, check=comparison(is_float), cost=_SIMPLE)
def _compare_floats(run: Evaluator, op: Op) -> None:
    run.math(op, {"predicate": op.attrs.get("words", ("",))[0]})


@DIALECT.op("arith.select", operands=3, check=_check_select, cost=_SIMPLE)
def _select(run: Evaluator, op: Op) -> None:
    condition, a, b = (run.get(value) for value in op.operands)
    result = op.results[0]
    if isinstance(condition, Predicate):
        if condition.is_uniform:
            run.set(result, a if condition.is_true else b)
            return
        chosen = _select_known(condition, a, b)
        if chosen is not None:
            run.set(result, chosen)
            return
    inputs = [run.operand(op, index) for index in range(3)]
    shape = result.type.shape
    if inputs[0].shape != shape:
        # A scalar condition may choose between tensors.
        inputs[0] = run.emit_math(op, "tt.splat", inputs[:1], MathClass.FREE, bool_, shape)
    if result.type.is_pointer:
        addresses = run.emit_math(op, op.name, inputs, _SIMPLE, int64, shape)
        run.set(result, Pointer(ABSOLUTE, Separable(shape), addresses))
        return
    run.math(op, inputs=inputs)


def _select_known(condition: Predicate, a: Held, b: Held) -> Held | None:
    """Return the choice if phase 1 can know it."""
    chosen: Held | None = None
    are_integers = isinstance(a, Separable) and isinstance(b, Separable)
    with suppress(NotSeparableError):
        if are_integers or (isinstance(a, Predicate) and isinstance(b, Predicate)):
            chosen = integers.select(condition, a, b)
        elif (
            isinstance(a, Pointer)
            and isinstance(b, Pointer)
            and a.param == b.param
            and a.gather is b.gather
        ):
            chosen = Pointer(a.param, integers.select(condition, a.offset, b.offset), a.gather)
    return chosen


@DIALECT.op(
    "arith.extsi", "arith.extui", operands=1, check=_resized(lambda a, b: a < b), cost=_CONVERT
)
@DIALECT.op("arith.trunci", operands=1, check=_resized(lambda a, b: a > b), cost=_CONVERT)
@DIALECT.op(
    *("arith.index_cast", "arith.index_castui"),
    operands=1,
    check=conversion(is_integer, is_integer),
    cost=_CONVERT,
)
@where_known
def _resize(run: Evaluator, op: Op) -> Held:
    value = run.get(op.operands[0])
    source, target = op.operands[0].type, op.results[0].type
    is_unsigned = op.name in ("arith.extui", "arith.index_castui")
    if isinstance(value, Predicate):
        return integers.boolean_to_integer(value, signed=not is_unsigned)
    if not isinstance(value, Separable):
        raise NotSeparableError
    if target.is_bool:
        low_bit = integers.binary("arith.andi", value, Separable((), 1), source.bits)
        return integers.compare_integers("ne", low_bit, Separable(()), 64)
    wide = integers.to_unsigned(value, source.bits) if is_unsigned else value
    return integers.wrap(wide, target.bits)


@DIALECT.op("arith.bitcast", cost=MathClass.FREE)
def _bitcast(run: Evaluator, op: Op) -> None:
    value = run.get(op.operands[0])
    target = op.results[0].type
    if isinstance(value, Separable | Predicate) and op.operands[0].type.dtype == target.dtype:
        run.set(op.results[0], value)
    else:
        run.math(op)
