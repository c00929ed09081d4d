"""The ``tt`` dialect: programs, pointers, memory, matrix products and odd elementwise functions."""

from __future__ import annotations

import re
from typing import Any

from kernbench.commands import (
    Access,
    DmaRead,
    DmaWrite,
    Gemm,
    Mask,
    MathClass,
    Operand,
    Predicate,
    Rounding,
    Separable,
    Splat,
    Tile,
    constant,
    make_range,
    uniform,
)
from kernbench.dtypes import float32, int64
from kernbench.kernel_ir.evaluation.evaluator import Evaluator
from kernbench.kernel_ir.evaluation.overflow import note_address
from kernbench.kernel_ir.evaluation.values import ABSOLUTE, Descriptor, Pointer
from kernbench.kernel_ir.ops import arith
from kernbench.kernel_ir.ops.descriptors import block_pointer_access
from kernbench.kernel_ir.ops.registry import Dialect
from kernbench.kernel_ir.text.assembly import symbol_of
from kernbench.kernel_ir.text.ir import Op
from kernbench.kernel_ir.text.rules import alike, conversion, elementwise, is_float, is_integer

DIALECT = Dialect()

_FLOATS = elementwise(is_float)
_STREAMS = re.compile(r"cache_modifier = c[gs]\b")
"""Loads that Triton's back end for AMD makes non-temporal."""

DIALECT.op("tt.mulhiui", operands=2, check=elementwise(is_integer), cost=MathClass.SIMPLE)(
    arith.binary
)

_AXES = {"x": 0, "y": 1, "z": 2}
_PRECISIONS = {0: "tf32", 1: "tf32x3", 2: "ieee", 3: "bf16x3", 4: "bf16x6"}
"""As MLIR's generic form has them."""
_EXTERN_SIMPLE = (
    *("abs", "fabs", "floor", "ceil", "trunc", "rint", "fma", "copysign", "isnan", "isinf"),
    *("fadd_", "fsub_", "fmul_", "dadd_", "dsub_", "dmul_", "mul24", "umul24", "sad", "usad"),
    *("hadd", "uhadd", "rhadd", "urhadd", "byte_perm", "hiloint", "double2hi", "double2lo"),
)


def _check_range(op: Op) -> str | None:
    start, end, result = op.attrs.get("start"), op.attrs.get("end"), op.results[0].type
    if not isinstance(start, int) or not isinstance(end, int):
        return "must have integers start and end"
    if result.shape != (end - start,) or not result.is_int:
        return f"counts from {start} to {end} for {result}"
    return None


def _check_addptr(op: Op) -> str | None:
    pointer, offset = (value.type for value in op.operands)
    if not pointer.is_pointer or not offset.is_int or pointer.shape != offset.shape:
        return f"adds {offset} to {pointer}"
    return None if alike(pointer, op.results[0].type) else f"makes {op.results[0].type}"


def _check_memory(op: Op) -> str | None:
    """Check a load or a store through pointers; block pointers are the handler's."""
    pointer = op.operands[0].type
    if pointer.is_descriptor:
        return None
    if not pointer.is_pointer or pointer.dtype is None:
        return f"uses {pointer} as an address"
    is_load = op.name == "tt.load"
    masks = op.operands[1:2] if is_load else op.operands[2:3]
    values = [*op.operands[2:3], *op.results] if is_load else op.operands[1:2]
    for mask in masks:
        if not mask.type.is_bool or mask.type.shape != pointer.shape:
            return f"is masked by {mask.type} at {pointer}"
    for value in values:
        if value.type.shape != pointer.shape or value.type.dtype != pointer.dtype:
            return f"moves {value.type} at {pointer}"
    return None


def _check_dot(op: Op) -> str | None:
    a, b, acc = (value.type for value in op.operands)
    result = op.results[0].type
    rank = len(result.shape)
    if rank < 2 or {len(a.shape), len(b.shape)} != {rank} or not alike(acc, result):
        return f"multiplies {a} by {b} onto {acc} for {result}"
    *batch, m, n = result.shape
    if a.shape[:-1] != (*batch, m) or b.shape != (*batch, a.shape[-1], n):
        return f"multiplies {a} by {b} onto {acc} for {result}"
    floats = {is_float(type_) for type_ in (a, b, result)}
    if len(floats) > 1 or any(type_.dtype is None or type_.is_pointer for type_ in (a, b, result)):
        return f"multiplies {a} by {b} onto {acc} for {result}"
    return None


def _axis(run: Evaluator, op: Op) -> int:
    words = op.attrs.get("words", ())
    axis = _AXES.get(words[0]) if words else op.attrs.get("axis")
    if axis not in (0, 1, 2):
        raise run.unsupported(op, f"grid axis {words or axis!r}")
    return int(axis)


@DIALECT.op("tt.get_program_id", operands=0)
def _program_id(run: Evaluator, op: Op) -> None:
    run.set(op.results[0], run.program_id(_axis(run, op)))


@DIALECT.op("tt.get_num_programs", operands=0)
def _num_programs(run: Evaluator, op: Op) -> None:
    run.set(op.results[0], uniform(run.grid[_axis(run, op)]))


@DIALECT.op("tt.make_range", operands=0, check=_check_range)
def _make_range(run: Evaluator, op: Op) -> None:
    start, end = op.attrs.get("start"), op.attrs.get("end")
    if not isinstance(start, int) or not isinstance(end, int) or end <= start:
        raise run.unsupported(op, f"the range {start!r} to {end!r}")
    run.set(op.results[0], make_range(start, end))


@DIALECT.op("tt.addptr", operands=2, check=_check_addptr)
def _addptr(run: Evaluator, op: Op) -> None:
    pointer, offset = run.get(op.operands[0]), run.get(op.operands[1])
    dtype = op.operands[0].type.dtype
    if not isinstance(pointer, Pointer) or dtype is None:
        raise run.unsupported(op, f"a pointer of type {op.operands[0].type}")
    if isinstance(offset, Separable):
        note_address(run, op, op.operands[1])
        moved = pointer.offset + offset * uniform(dtype.itemsize)
        run.set(op.results[0], Pointer(pointer.param, moved, pointer.gather))
        return
    gather = run.byte_offsets(op, run.operand(op, 1), dtype.itemsize)
    if pointer.gather is not None:
        gather = run.emit_math(op, "arith.addi", [pointer.gather, gather], MathClass.SIMPLE)
    run.set(op.results[0], Pointer(pointer.param, pointer.offset, gather))


@DIALECT.op("tt.bitcast", cost=MathClass.FREE)
def _bitcast(run: Evaluator, op: Op) -> None:
    value = run.get(op.operands[0])
    source, target = op.operands[0].type, op.results[0].type
    if isinstance(value, Pointer) or source.dtype == target.dtype:
        run.set(op.results[0], value)
    else:
        run.math(op)


@DIALECT.op("tt.int_to_ptr")
def _int_to_ptr(run: Evaluator, op: Op) -> None:
    value = run.get(op.operands[0])
    if isinstance(value, Separable):
        run.set(op.results[0], Pointer(ABSOLUTE, value))
        return
    data = run.operand(op, 0)
    if not isinstance(data, Tile):
        raise run.unsupported(op, "the address is not a number")
    if data.dtype.itemsize < int64.itemsize:
        data = run.emit_math(op, "arith.extui", [data], MathClass.CONVERT)
    run.set(op.results[0], Pointer(ABSOLUTE, Separable(data.shape), data))


@DIALECT.op("tt.ptr_to_int")
def _ptr_to_int(run: Evaluator, op: Op) -> None:
    value = run.get(op.operands[0])
    if not isinstance(value, Pointer):
        raise run.unsupported(op, f"a pointer of type {op.operands[0].type}")
    run.set(op.results[0], run.address(op, value))


# -- memory -----------------------------------------------------------------------------------


def pointed_to(run: Evaluator, op: Op) -> tuple[Access, Predicate]:
    """Return the addresses that operand 0 points to, and the lanes that a block pointer allows."""
    pointer = run.get(op.operands[0])
    if isinstance(pointer, Descriptor):
        return block_pointer_access(run, op, pointer)
    dtype = op.operands[0].type.dtype
    if not isinstance(pointer, Pointer) or dtype is None:
        raise run.unsupported(op, f"a pointer of type {op.operands[0].type}")
    access = Access(pointer.param, pointer.offset, dtype, pointer.gather)
    run.check_reachable(op, access)
    return access, Predicate(pointer.shape)


def read_mask(run: Evaluator, op: Op, index: int, allowed: Predicate) -> Mask:
    if len(op.operands) <= index:
        return allowed
    held = run.get(op.operands[index])
    if isinstance(held, Predicate):
        run.split_partial(held)
        return held & allowed
    if isinstance(held, Splat):
        return constant(bool(held.value), held.shape)
    if not isinstance(held, Tile):
        raise run.unsupported(op, f"a mask of type {op.operands[index].type}")
    return held


@DIALECT.op("tt.load", operands=(1, 3), check=_check_memory)
def _load(run: Evaluator, op: Op) -> None:
    access, allowed = pointed_to(run, op)
    mask = read_mask(run, op, 1, allowed)
    other: Any = run.operand(op, 2) if len(op.operands) > 2 else None
    if op.attrs.get("padding") == 2:
        other = Splat(float("nan"), access.shape, access.dtype)
    dst = run.new_tile(access.shape, access.dtype)
    volatile = bool(op.attrs.get("isVolatile"))
    streams = _STREAMS.search(str(op.attrs.get("cachePolicy", ""))) is not None
    run.commands.append(
        DmaRead(dst, access, mask, other, op.line, volatile=volatile, streams=streams)
    )
    run.set(op.results[0], dst)


@DIALECT.op("tt.store", operands=(2, 3), results=0, check=_check_memory)
def _store(run: Evaluator, op: Op) -> None:
    access, allowed = pointed_to(run, op)
    mask = read_mask(run, op, 2, allowed)
    run.commands.append(DmaWrite(access, run.operand(op, 1), mask, op.line))


# -- compute ----------------------------------------------------------------------------------


@DIALECT.op("tt.dot", operands=3, check=_check_dot)
def _dot(run: Evaluator, op: Op) -> None:
    a, b, acc = (run.operand(op, index) for index in range(3))
    multiply(run, op, a, b, acc)


def multiply(run: Evaluator, op: Op, a: Operand, b: Operand, acc: Operand) -> None:
    """Emit a product, which is the op's result."""
    dst = run.result_tile(op)
    precision = op.attrs.get("inputPrecision", "ieee")
    precision = str(_PRECISIONS.get(precision, precision)).lower()
    rounding = Rounding.NONE
    if run.dtype_of(a) == run.dtype_of(b) == float32:
        if precision not in run.roundings:
            raise run.unsupported(op, f"the input precision {precision!r}")
        rounding = run.roundings[precision]
    run.commands.append(Gemm(dst, a, b, acc, precision, op.line, rounding))
    run.set(op.results[0], dst)


@DIALECT.op("tt.fp_to_fp", operands=1, check=conversion(is_float, is_float), cost=MathClass.CONVERT)
def _fp_to_fp(run: Evaluator, op: Op) -> None:
    run.math(op, {"rounding": str(op.attrs.get("rounding", "rtne"))})


@DIALECT.op("tt.clampf", operands=3, check=_FLOATS, cost=MathClass.SIMPLE)
def _clamp(run: Evaluator, op: Op) -> None:
    run.math(op, {"propagate_nan": str(op.attrs.get("propagateNan", "none")) == "all"})


@DIALECT.op(
    *("tt.precise_divf", "tt.approx_divf"), operands=2, check=_FLOATS, cost=MathClass.DIVIDE
)
@DIALECT.op("tt.precise_sqrt", operands=1, check=_FLOATS, cost=MathClass.TRANSCENDENTAL)
def _precise(run: Evaluator, op: Op) -> None:
    run.math(op)


@DIALECT.op("tt.extern_elementwise", cost=MathClass.TRANSCENDENTAL)
def _extern(run: Evaluator, op: Op) -> None:
    """Call a function of a vendor's library by its symbol, e.g. ``__nv_tanhf``."""
    symbol = str(op.attrs.get("symbol", ""))
    stem = symbol.removeprefix("__nv_").removeprefix("__ocml_")
    cost = MathClass.SIMPLE if stem.startswith(_EXTERN_SIMPLE) else None
    run.math(op, {"symbol": symbol}, cost)


@DIALECT.op("tt.elementwise_inline_asm", cost=MathClass.TRANSCENDENTAL)
def _inline_asm(run: Evaluator, op: Op) -> None:
    """Call the function of CUDA's math library that one instruction of PTX computes."""
    text = str((op.attrs.get("literals") or ("",))[0])
    constraints = str(op.attrs.get("constraints", "")).replace(" ", "")
    symbol = symbol_of(text, constraints, len(op.operands))
    if symbol is None or len(op.results) != 1 or op.attrs.get("packed_element", 1) != 1:
        raise run.unsupported(
            op,
            f"assembly is for one GPU ({text[:40]!r}); write it in Triton, or as a libdevice call",
        )
    cost = MathClass.SIMPLE if symbol.removeprefix("__nv_").startswith(_EXTERN_SIMPLE) else None
    run.math(op, {"symbol": symbol}, cost)
