"""Tensor descriptors and block pointers: positions in a tensor, lowered to pointers and masks."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from kernbench.commands import (
    Access,
    Assert,
    DmaRead,
    DmaWrite,
    MathClass,
    Operand,
    Predicate,
    Separable,
    SourceLine,
    Splat,
    compare,
    make_range,
    uniform,
)
from kernbench.dtypes import DType, bool_
from kernbench.errors import BadPointerError, UsageError
from kernbench.kernel_ir.evaluation import integers
from kernbench.kernel_ir.evaluation.evaluator import Evaluator
from kernbench.kernel_ir.evaluation.values import Descriptor, Pointer
from kernbench.kernel_ir.ops.registry import Dialect
from kernbench.kernel_ir.text.ir import Op
from kernbench.kernel_ir.text.rules import MANY

DIALECT = Dialect()

DESCRIPTOR = "kernbench.descriptor"
"""What a kernel says of a descriptor that it makes: its base and its strides."""
DESCRIPTOR_MARK = " kernbench.descriptor: "
"""How that is written in TTIR: a print of this text."""
_ALIGNED_BYTES = 16
_PADS_WITH_NAN = (2, "PAD_NAN", "nan")


def check_alignment(kernel: str, line: SourceLine, base: str, address: int, multiple: int) -> None:
    """Refuse a descriptor whose base is no multiple of some bytes.

    Raises:
        BadPointerError: It is none; names the kernel and the line.
    """
    if address % multiple:
        raise BadPointerError(
            f"tl.make_tensor_descriptor in kernel {kernel} at {line}: {base} is "
            f"{address % multiple} bytes beyond a multiple of {multiple} bytes; copy the view to a "
            "tensor of its own, or load by pointers"
        )


def _check_described(op: Op) -> str | None:
    """Check a descriptor or a block pointer: a base, then lengths, strides and maybe a start."""
    parts = 2 if op.name == "tt.make_tensor_descriptor" else 3
    rank = len(op.results[0].type.shape)
    if len(op.operands) != 1 + parts * rank:
        return f"must have {1 + parts * rank} operands, but has {len(op.operands)}"
    base, *numbers = (value.type for value in op.operands)
    if not base.is_pointer or base.shape or base.dtype != op.results[0].type.dtype:
        return f"describes {base} as {op.results[0].type}"
    if any(not number.is_int or number.shape for number in numbers):
        return "must have whole numbers for lengths and strides"
    return None


def _check_block(op: Op) -> str | None:
    """Check what moves, or loads or stores, a block at a position."""
    tensor = op.operands[0].type
    rank = len(tensor.shape)
    extra = 1 if "store" in op.name else 0
    if not tensor.is_descriptor or len(op.operands) != 1 + rank + extra:
        return f"must have a tensor, {rank} numbers and {extra} values, not {len(op.operands)}"
    if any(not value.type.is_int or value.type.shape for value in op.operands[1 : 1 + rank]):
        return "must have whole numbers for its position"
    for value in (*op.operands[1 + rank :], *op.results):
        type_ = value.type
        if type_.dtype != tensor.dtype or math.prod(type_.shape) != math.prod(tensor.shape):
            return f"moves {type_} at {tensor}"
    return None


@DIALECT.op(
    "tt.make_tensor_descriptor", "tt.make_tensor_ptr", operands=(1, MANY), check=_check_described
)
def _describe(run: Evaluator, op: Op) -> None:
    is_descriptor = op.name == "tt.make_tensor_descriptor"
    lists, what = (2, "descriptor") if is_descriptor else (3, "block pointer")
    block = op.results[0].type
    rank = len(block.shape)
    base = run.get(op.operands[0])
    if block.dtype is None or not isinstance(base, Pointer) or len(op.operands) != 1 + lists * rank:
        raise run.unsupported(op, f"a {what} of type {block}")
    parts = tuple(run.integer(op, index) for index in range(1, 1 + lists * rank))
    lengths, strides = parts[:rank], parts[rank : 2 * rank]
    nan = is_descriptor and op.attrs.get("padding") in _PADS_WITH_NAN
    origin = None if is_descriptor else parts[2 * rank :]
    run.set(
        op.results[0], Descriptor(base, lengths, strides, block.shape, block.dtype, nan, origin)
    )


@DIALECT.op(DESCRIPTOR, operands=(2, MANY), results=0)
def _hold_to_rules_of_tma(run: Evaluator, op: Op) -> None:
    """Refuse a descriptor whose base or strides are no multiples of 16 bytes.

    Source: Triton, ``tl.make_tensor_descriptor``; CUDA driver API, ``cuTensorMapEncodeTiled``.
    """
    base, dtype = run.get(op.operands[0]), op.operands[0].type.dtype
    if dtype is None or not isinstance(base, Pointer):
        raise run.unsupported(op, f"a descriptor at a base of type {op.operands[0].type}")
    for index in range(1, len(op.operands) - 1):
        held = run.get(op.operands[index])
        if isinstance(held, Separable):
            strides = held.dense(held.dims)
            bad = strides[strides * dtype.itemsize % _ALIGNED_BYTES != 0]
            if bad.size:
                raise UsageError(
                    f"tl.make_tensor_descriptor in kernel {run.module.kernel.name} at {op.line}: "
                    f"stride {index - 1} is {bad.flat[0]} elements of {dtype.mlir}, "
                    f"{bad.flat[0] * dtype.itemsize} bytes, but must be a multiple of "
                    f"{_ALIGNED_BYTES} bytes; pad the rows of the tensor, or load by pointers"
                )
        else:
            _assert_aligned(run, op, run.operand(op, index), dtype)
    if base.gather is None:
        run.check_aligned(op, base, _ALIGNED_BYTES)


def _assert_aligned(run: Evaluator, op: Op, stride: Operand, dtype: DType) -> None:
    """Check a stride that is data where it is known."""
    per_stride = Splat(_ALIGNED_BYTES // dtype.itemsize, (), run.dtype_of(stride))
    rest = run.emit_math(
        op, "arith.remsi", [stride, per_stride], MathClass.FREE, run.dtype_of(stride)
    )
    zero = Splat(0, (), run.dtype_of(stride))
    fits = run.emit_math(
        op, "arith.cmpi", [rest, zero], MathClass.FREE, bool_, attrs={"predicate": "eq"}
    )
    message = f"a stride of a tensor descriptor is no multiple of {_ALIGNED_BYTES} bytes"
    run.commands.append(Assert(fits, message, op.line))


@DIALECT.op("tt.advance", operands=(1, MANY), check=_check_block)
def _advance(run: Evaluator, op: Op) -> None:
    pointer = run.get(op.operands[0])
    if not isinstance(pointer, Descriptor) or pointer.origin is None:
        raise run.unsupported(op, "it advances what is no block pointer")
    origin = tuple(
        integers.wrap(start + run.integer(op, 1 + axis), 32)
        for axis, start in enumerate(pointer.origin)
    )
    run.set(op.results[0], replace(pointer, origin=origin))


def block_access(
    tensor: Descriptor, origin: tuple[Separable, ...], checked: tuple[int, ...]
) -> tuple[Access, Predicate]:
    """Return the addresses of a block and which of its elements lie in the tensor.

    Only the ``checked`` axes are held against the tensor's lengths.
    """
    rank = len(tensor.block)
    offset = tensor.base.offset.with_shape(tensor.block)
    inside = Predicate(tensor.block)
    for axis in range(rank):
        lane = make_range(0, tensor.block[axis]).with_shape(tensor.block, {0: axis})
        position = origin[axis] + lane
        offset += position * tensor.strides[axis] * uniform(tensor.dtype.itemsize)
        if axis in checked:
            inside &= compare(np.less_equal, Separable(()), position)
            inside &= compare(np.less, position, tensor.lengths[axis])
    access = Access(tensor.base.param, offset, tensor.dtype, tensor.base.gather)
    return access, inside.with_shape(tensor.block)


def block_pointer_access(run: Evaluator, op: Op, pointer: Descriptor) -> tuple[Access, Predicate]:
    """Return what a load or store through a block pointer touches."""
    if pointer.origin is None:
        raise run.unsupported(op, "a descriptor is used as a pointer")
    checked = op.attrs.get("boundaryCheck", ())
    if not isinstance(checked, tuple):
        raise run.unsupported(op, f"boundaryCheck {checked!r}")
    return block_access(pointer, pointer.origin, tuple(int(axis) for axis in checked))


def _described(run: Evaluator, op: Op, first_index: int) -> tuple[Access, Predicate, Descriptor]:
    tensor = run.get(op.operands[0])
    if not isinstance(tensor, Descriptor):
        raise run.unsupported(op, f"a descriptor of type {op.operands[0].type}")
    rank = len(tensor.block)
    origin = tuple(run.integer(op, first_index + axis) for axis in range(rank))
    access, inside = block_access(tensor, origin, tuple(range(rank)))
    return access, inside, tensor


@DIALECT.op("tt.experimental_descriptor_load")
@DIALECT.op("tt.descriptor_load", operands=(1, MANY), check=_check_block)
def _load(run: Evaluator, op: Op) -> None:
    access, inside, tensor = _described(run, op, 1)
    other = Splat(float("nan"), access.shape, access.dtype) if tensor.pads_with_nan else None
    tile = run.new_tile(access.shape, access.dtype)
    run.commands.append(DmaRead(tile, access, inside, other, op.line))
    run.set(op.results[0], run.as_shape(op, tile, op.results[0].type.shape))


@DIALECT.op("tt.experimental_descriptor_store")
@DIALECT.op("tt.descriptor_store", operands=(2, MANY), results=0, check=_check_block)
def _store(run: Evaluator, op: Op) -> None:
    # Indices print before the value: `tt.descriptor_store %desc[%i, %j], %value`.
    access, inside, tensor = _described(run, op, 1)
    value = run.operand(op, 1 + len(tensor.block))
    run.commands.append(DmaWrite(access, run.as_shape(op, value, access.shape), inside, op.line))
