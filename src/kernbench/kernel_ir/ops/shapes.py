"""Operations that only move elements around: known values are relabelled, data cost nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernbench.commands import (
    MathClass,
    NotSeparableError,
    Param,
    Predicate,
    Separable,
    Splat,
    Tile,
)
from kernbench.dtypes import int64
from kernbench.kernel_ir.evaluation.reshape import reshape, reshape_predicate
from kernbench.kernel_ir.evaluation.values import Pointer
from kernbench.kernel_ir.ops.registry import Dialect
from kernbench.kernel_ir.text.ir import Op

if TYPE_CHECKING:
    from kernbench.kernel_ir.evaluation.evaluator import Evaluator

DIALECT = Dialect()

Relabel = Callable[[Any], Any]


def _apply(run: Evaluator, op: Op, relabel: Relabel, attrs: dict[str, Any] | None = None) -> None:
    """Relabel a known value, or emit the op on data."""
    value = run.get(op.operands[0])
    if isinstance(value, Tile):
        run.math(op, [value], MathClass.FREE, attrs)
        return
    result = op.results[0]
    shape = result.type.shape
    if isinstance(value, Separable | Predicate):
        try:
            run.set(result, relabel(value))
        except NotSeparableError:
            run.math(op, [run.operand(op, 0)], MathClass.FREE, attrs)
    elif isinstance(value, Splat | Param):
        run.set(result, replace(value, shape=shape))
    elif isinstance(value, Pointer):
        run.set(result, _pointer(run, op, value, relabel, attrs))
    else:
        run.math(op, [run.operand(op, 0)], MathClass.FREE, attrs)


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


@DIALECT.op("tt.splat", "tt.broadcast")
def _broadcast(run: Evaluator, op: Op) -> None:
    shape = op.results[0].type.shape
    _apply(run, op, lambda value: value.with_shape(shape))


@DIALECT.op("tt.unsplat")
def _unsplat(run: Evaluator, op: Op) -> None:
    _apply(run, op, lambda value: value.with_shape(()))


@DIALECT.op("tt.expand_dims")
def _expand_dims(run: Evaluator, op: Op) -> None:
    shape = op.results[0].type.shape
    axis = op.attrs.get("axis")
    if not isinstance(axis, int) or not 0 <= axis < len(shape):
        raise run.unsupported(op, f"axis {axis!r} of {len(shape)} axes")
    axes = {old: old + (old >= axis) for old in range(len(shape) - 1)}
    _apply(run, op, lambda value: value.with_shape(shape, axes), {"axis": axis})


@DIALECT.op("tt.trans")
def _trans(run: Evaluator, op: Op) -> None:
    shape = op.results[0].type.shape
    order = op.attrs.get("order")
    if not isinstance(order, tuple) or sorted(order) != list(range(len(shape))):
        raise run.unsupported(op, f"order {order!r} of {len(shape)} axes")
    axes = {old: new for new, old in enumerate(order)}
    _apply(run, op, lambda value: value.with_shape(shape, axes), {"order": order})


@DIALECT.op("tt.reshape", "tt.view")
def _reshape(run: Evaluator, op: Op) -> None:
    shape = op.results[0].type.shape

    def relabel(value: Any) -> Any:
        if isinstance(value, Predicate):
            return reshape_predicate(value, shape)
        return reshape(value, shape)

    _apply(run, op, relabel)


@DIALECT.op("tt.join", "tt.cat")
def _join(run: Evaluator, op: Op) -> None:
    """Join two tiles: ``tt.join`` along a new last axis, ``tt.cat`` along the first."""
    run.math(op, [run.operand(op, 0), run.operand(op, 1)], MathClass.FREE)


@DIALECT.op("tt.split")
def _split(run: Evaluator, op: Op) -> None:
    """Split along the last axis, of length 2; ``attrs["index"]`` says which half."""
    source = run.operand(op, 0)
    for index, result in enumerate(op.results):
        dtype, shape = result.type.dtype, result.type.shape
        if dtype is None or index > 1:
            raise run.unsupported(op, f"result {index} of type {result.type}")
        attrs = {"index": index}
        run.set(result, run.emit_math(op, op.name, [source], MathClass.FREE, dtype, shape, attrs))
