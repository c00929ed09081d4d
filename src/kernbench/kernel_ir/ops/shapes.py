"""Operations that only move elements around: known values are relabelled, data cost nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kernbench.commands import (
    MathClass,
    NotSeparableError,
    Param,
    Predicate,
    Separable,
    Splat,
)
from kernbench.dtypes import int64
from kernbench.kernel_ir.evaluation.evaluator import Evaluator
from kernbench.kernel_ir.evaluation.reshape import reshape, reshape_predicate
from kernbench.kernel_ir.evaluation.values import Pointer
from kernbench.kernel_ir.ops.registry import Dialect
from kernbench.kernel_ir.text.ir import Op
from kernbench.kernel_ir.text.rules import Check, alike

DIALECT = Dialect()

Relabel = Callable[[Any], Any]


def _same_elements(op: Op) -> bool:
    a, b = op.operands[0].type, op.results[0].type
    return (a.dtype, a.is_pointer) == (b.dtype, b.is_pointer)


def _shaped(fits: Callable[[tuple[int, ...], tuple[int, ...], dict[str, Any]], bool]) -> Check:
    """Return the check that ``fits`` takes the shapes of operand and result and the attributes."""

    def check(op: Op) -> str | None:
        value, result = op.operands[0].type, op.results[0].type
        if not _same_elements(op) or not fits(value.shape, result.shape, op.attrs):
            return f"makes {result} of {value}"
        return None

    return check


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...], _: dict[str, Any]) -> bool:
    return len(a) == len(b) and all(x in (1, y) for x, y in zip(a, b, strict=True))


def _expands(a: tuple[int, ...], b: tuple[int, ...], attrs: dict[str, Any]) -> bool:
    axis = attrs.get("axis")
    return isinstance(axis, int) and 0 <= axis <= len(a) and (*a[:axis], 1, *a[axis:]) == b


def _transposes(a: tuple[int, ...], b: tuple[int, ...], attrs: dict[str, Any]) -> bool:
    order = attrs.get("order")
    if order is None:
        return sorted(a) == sorted(b)
    try:
        axes = [int(axis) for axis in order]
    except (TypeError, ValueError):
        return False
    return sorted(axes) == list(range(len(a))) and tuple(a[axis] for axis in axes) == b


def _check_joined(op: Op) -> str | None:
    a, b = (value.type for value in op.operands)
    result = op.results[0].type
    if op.name == "tt.join":
        doubled = (*a.shape, 2)
    else:
        doubled = (2 * a.shape[0], *a.shape[1:]) if a.shape else ()
    if not alike(a, b) or not _same_elements(op) or result.shape != doubled:
        return f"makes {result} of {a} and {b}"
    return None


def _apply(run: Evaluator, op: Op, relabel: Relabel, attrs: dict[str, Any] | None = None) -> None:
    """Relabel a known value, or emit the op on data."""
    value = run.get(op.operands[0])
    result = op.results[0]
    shape = result.type.shape
    if isinstance(value, Separable | Predicate):
        try:
            run.set(result, relabel(value))
        except NotSeparableError:
            run.math(op, attrs)
    elif isinstance(value, Splat | Param):
        run.set(result, replace(value, shape=shape))
    elif isinstance(value, Pointer):
        run.set(result, _pointer(run, op, value, relabel, attrs))
    else:
        run.math(op, attrs)


def _pointer(
    run: Evaluator, op: Op, value: Pointer, relabel: Relabel, attrs: dict[str, Any] | None
) -> Pointer:
    shape = op.results[0].type.shape
    gathers = []
    if value.gather is not None:
        gathers.append(
            run.emit_math(op, op.name, [value.gather], MathClass.FREE, int64, shape, attrs)
        )
    try:
        offset = relabel(value.offset)
    except NotSeparableError:
        known = run.known_as_data(value.offset, int64)
        gathers.append(run.emit_math(op, op.name, [known], MathClass.FREE, int64, shape, attrs))
        offset = Separable(shape)
    gather = gathers[0] if gathers else None
    if len(gathers) > 1:
        gather = run.emit_math(op, "arith.addi", gathers, MathClass.SIMPLE)
    return Pointer(value.param, offset, gather)


@DIALECT.op("tt.splat", operands=1, check=_shaped(lambda a, b, _: a == ()), cost=MathClass.FREE)
@DIALECT.op("tt.broadcast", operands=1, check=_shaped(_broadcasts), cost=MathClass.FREE)
def _broadcast(run: Evaluator, op: Op) -> None:
    shape = op.results[0].type.shape
    _apply(run, op, lambda value: value.with_shape(shape))


@DIALECT.op(
    "tt.unsplat",
    operands=1,
    check=_shaped(lambda a, b, _: b == () and math.prod(a) == 1),
    cost=MathClass.FREE,
)
def _unsplat(run: Evaluator, op: Op) -> None:
    _apply(run, op, lambda value: value.with_shape(()))


@DIALECT.op("tt.expand_dims", operands=1, check=_shaped(_expands), cost=MathClass.FREE)
def _expand_dims(run: Evaluator, op: Op) -> None:
    shape = op.results[0].type.shape
    axis = op.attrs.get("axis")
    if not isinstance(axis, int) or not 0 <= axis < len(shape):
        raise run.unsupported(op, f"axis {axis!r} of {len(shape)} axes")
    axes = {old: old + (old >= axis) for old in range(len(shape) - 1)}
    _apply(run, op, lambda value: value.with_shape(shape, axes), {"axis": axis})


@DIALECT.op("tt.trans", operands=1, check=_shaped(_transposes), cost=MathClass.FREE)
def _trans(run: Evaluator, op: Op) -> None:
    shape = op.results[0].type.shape
    order = op.attrs.get("order")
    if not isinstance(order, tuple) or sorted(order) != list(range(len(shape))):
        raise run.unsupported(op, f"order {order!r} of {len(shape)} axes")
    axes = {old: new for new, old in enumerate(order)}
    _apply(run, op, lambda value: value.with_shape(shape, axes), {"order": order})


@DIALECT.op("tt.view", cost=MathClass.FREE)
@DIALECT.op(
    "tt.reshape",
    operands=1,
    check=_shaped(lambda a, b, _: math.prod(a) == math.prod(b)),
    cost=MathClass.FREE,
)
def _reshape(run: Evaluator, op: Op) -> None:
    shape = op.results[0].type.shape

    def relabel(value: Any) -> Any:
        if isinstance(value, Predicate):
            return reshape_predicate(value, shape)
        return reshape(value, shape)

    _apply(run, op, relabel)


@DIALECT.op("tt.join", "tt.cat", operands=2, check=_check_joined, cost=MathClass.FREE)
def _join(run: Evaluator, op: Op) -> None:
    """Join two tiles: ``tt.join`` along a new last axis, ``tt.cat`` along the first."""
    run.math(op)


@DIALECT.op(
    "tt.split",
    operands=1,
    results=2,
    check=_shaped(lambda a, b, _: a == (*b, 2)),
    cost=MathClass.FREE,
)
def _split(run: Evaluator, op: Op) -> None:
    """Split along the last axis, of length 2; ``attrs["index"]`` says which half."""
    source = run.operand(op, 0)
    for index, result in enumerate(op.results):
        dtype, shape = result.type.dtype, result.type.shape
        if dtype is None or index > 1:
            raise run.unsupported(op, f"result {index} of type {result.type}")
        attrs = {"index": index}
        run.set(result, run.emit_math(op, op.name, [source], MathClass.FREE, dtype, shape, attrs))
