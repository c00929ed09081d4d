"""Gluon: tensors with layouts, and shared memory, copies and products that the kernel manages.

Layouts say which thread holds an element, and change no value. What is copied into shared memory
and read there is a load (:mod:`kernbench.kernel_ir.evaluation.shared_memory`). Barriers and waits
order what the values order already.
"""

from __future__ import annotations

from dataclasses import replace

from kernbench.commands import (
    DmaWrite,
    MaskTile,
    MathClass,
    Operand,
    Predicate,
    Separable,
    Splat,
    is_loop,
)
from kernbench.kernel_ir.evaluation.evaluator import Evaluator
from kernbench.kernel_ir.evaluation.shared_memory import Issued, loop_of
from kernbench.kernel_ir.evaluation.values import Descriptor, SharedBuffer
from kernbench.kernel_ir.ops.descriptors import block_access
from kernbench.kernel_ir.ops.registry import Dialect
from kernbench.kernel_ir.ops.tt import multiply, pointed_to, read_mask
from kernbench.kernel_ir.text.ir import Op

DIALECT = Dialect()

_BLACKWELL = (
    "it is for tensor memory of Blackwell; use warpgroup_mma, or tl.dot in a kernel of @triton.jit"
)
_PARTITIONS = (
    "its partitions run side by side; issue the copies ahead of their use, in one loop, instead"
)


def _buffer(run: Evaluator, op: Op, index: int) -> SharedBuffer:
    held = run.get(op.operands[index])
    if not isinstance(held, SharedBuffer):
        raise run.unsupported(op, f"shared memory of type {op.operands[index].type}")
    return held


def _contents(run: Evaluator, op: Op, index: int) -> Operand:
    """Return what shared memory holds, as its views show it."""
    buffer = _buffer(run, op, index)
    value: Operand = run.shared.read(run, op, replace(buffer, views=()))
    for view in buffer.views:
        type_ = view.results[0].type
        if view.name == "ttg.memdesc_trans":
            attrs = {"order": view.attrs.get("order")}
            value = run.emit_math(
                view, "tt.trans", [value], MathClass.FREE, run.dtype_of(value), type_.shape, attrs
            )
        else:
            value = run.as_shape(view, value, type_.shape)
    return value


def _fill(run: Evaluator, op: Op, index: int, content: Operand | Issued) -> None:
    buffer = _buffer(run, op, index)
    if buffer.views:
        raise run.unsupported(op, "it writes to a view of shared memory; write to the buffer")
    if isinstance(content, Issued):
        # Where it was issued; what reads it puts its load there.
        run.commands.append(content)  # type: ignore[arg-type]
    run.shared.write(run, buffer, content)


# -- layouts ----------------------------------------------------------------------------------


@DIALECT.op("ttg.convert_layout", "gluon.set_auto_layout", "ttng.warp_group_dot_wait")
def _same(run: Evaluator, op: Op) -> None:
    for result, value in zip(op.results, op.operands, strict=False):
        run.set(result, run.get(value))


@DIALECT.op(
    *("ttg.async_commit_group", "ttg.async_wait"),
    *("ttg.local_dealloc", "ttng.init_barrier", "ttng.inval_barrier", "ttng.barrier_expect"),
    *("ttng.wait_barrier", "ttng.arrive_barrier", "ttng.fence_async_shared"),
    *("ttng.async_tma_store_wait", "ttng.fence_mbarrier_init_release_cluster"),
    *("ttng.async_copy_mbarrier_arrive",),
)
def _ordering(run: Evaluator, op: Op) -> None:
    """Nothing: what waits here reads what it waits for."""


# -- shared memory ----------------------------------------------------------------------------


@DIALECT.op("ttg.local_alloc")
def _alloc(run: Evaluator, op: Op) -> None:
    if run.shared is None:
        raise run.unsupported(
            op,
            "the kernel decides by data, and a kernel that manages shared memory is planned "
            "without; pass what it decides by as integers, or load into registers",
        )
    run.set(op.results[0], SharedBuffer(op))
    if op.operands:
        run.shared.write(run, SharedBuffer(op), run.operand(op, 0))


@DIALECT.op("ttg.memdesc_index")
def _index(run: Evaluator, op: Op) -> None:
    buffer = _buffer(run, op, 0)
    if buffer.part is not None or buffer.views:
        raise run.unsupported(op, "it is a part of a part; allocate one buffer for each")
    run.set(op.results[0], replace(buffer, part=run.integer(op, 1)))


@DIALECT.op("ttg.memdesc_trans", "ttg.memdesc_reshape")
def _view(run: Evaluator, op: Op) -> None:
    buffer = _buffer(run, op, 0)
    run.set(op.results[0], replace(buffer, views=(*buffer.views, op)))


@DIALECT.op("ttg.local_load")
def _local_load(run: Evaluator, op: Op) -> None:
    run.set(op.results[0], _contents(run, op, 0))


@DIALECT.op("ttg.local_store")
def _local_store(run: Evaluator, op: Op) -> None:
    _fill(run, op, 1, run.operand(op, 0))


# -- copies -----------------------------------------------------------------------------------


@DIALECT.op("ttg.async_copy_global_to_local")
def _async_copy(run: Evaluator, op: Op) -> None:
    access, allowed = pointed_to(run, op)
    words = op.attrs.get("words", ())
    mask = read_mask(run, op, 2, allowed) if "mask" in words else allowed
    other = run.operand(op, len(op.operands) - 1) if "other" in words else None
    _fill(run, op, 1, Issued(access, mask, other, op.line, run.commands))


def _block(run: Evaluator, op: Op) -> tuple[Descriptor, tuple[Separable, ...]]:
    tensor = run.get(op.operands[0])
    if not isinstance(tensor, Descriptor):
        raise run.unsupported(op, f"a descriptor of type {op.operands[0].type}")
    rank = len(tensor.block)
    return tensor, tuple(run.integer(op, 1 + axis) for axis in range(rank))


@DIALECT.op("ttng.async_tma_copy_global_to_local")
def _tma_load(run: Evaluator, op: Op) -> None:
    tensor, origin = _block(run, op)
    rank = len(tensor.block)
    if "offsets" in op.attrs.get("words", ()):
        raise run.unsupported(op, "it copies in im2col mode; load the pixels by their addresses")
    if len(op.operands) > 3 + rank and not run.decide(op, op.operands[3 + rank]):
        # It is predicated, and carried out by no program.
        return
    access, inside = block_access(tensor, origin, tuple(range(rank)))
    other = Splat(float("nan"), access.shape, access.dtype) if tensor.pads_with_nan else None
    _fill(run, op, 1 + rank, Issued(access, inside, other, op.line, run.commands))


@DIALECT.op("ttng.async_tma_copy_local_to_global")
def _tma_store(run: Evaluator, op: Op) -> None:
    tensor, origin = _block(run, op)
    rank = len(tensor.block)
    access, inside = block_access(tensor, origin, tuple(range(rank)))
    value = run.as_shape(op, _contents(run, op, 1 + rank), access.shape)
    run.commands.append(DmaWrite(access, value, inside, op.line))


# -- products ---------------------------------------------------------------------------------


@DIALECT.op("ttng.warp_group_dot", operands=(3, 4))
def _warp_group_dot(run: Evaluator, op: Op) -> None:
    a, b = (
        _contents(run, op, index) if op.operands[index].type.is_shared else run.operand(op, index)
        for index in (0, 1)
    )
    multiply(run, op, a, b, _accumulator(run, op))


def _accumulator(run: Evaluator, op: Op) -> Operand:
    """Return what is added to: zeros where the kernel asks for none of it."""
    acc = run.operand(op, 2)
    if len(op.operands) < 4:
        return acc
    used = run.get(op.operands[3])
    if not isinstance(used, Predicate):
        raise run.needs_data(op, "whether it adds to its accumulator depends on data")
    if used.is_true:
        return acc
    zeros = Splat(0, acc.shape, run.dtype_of(acc))
    if used.is_uniform:
        return zeros
    if len(used.dims) == 1 and is_loop(used.dims[0]):
        values = used.dense(used.dims)
        # The first iteration makes a new one, and the loop starts with zeros anyway.
        if values[1:].all() and run.shared.is_zero_at_first(acc, loop_of(used.dims[0])):
            return acc
    mask = MaskTile(used.with_shape(acc.shape))
    return run.emit_math(op, "arith.select", [mask, acc, zeros], MathClass.SIMPLE, zeros.dtype)


# -- what is not simulated --------------------------------------------------------------------


@DIALECT.op(
    *("ttng.tmem_alloc", "ttng.tmem_load", "ttng.tmem_store", "ttng.tmem_copy"),
    *("ttng.tmem_subslice", "ttng.tc_gen5_mma", "ttng.tc_gen5_mma_scaled"),
    *("ttng.tc_gen5_commit",),
)
def _tensor_memory(run: Evaluator, op: Op) -> None:
    raise run.unsupported(op, _BLACKWELL)


@DIALECT.op("ttg.warp_specialize")
def _warp_specialize(run: Evaluator, op: Op) -> None:
    raise run.unsupported(op, _PARTITIONS)


@DIALECT.op("ttg.memdesc_subslice", "ttg.memdesc_reinterpret")
def _subslice(run: Evaluator, op: Op) -> None:
    raise run.unsupported(
        op, "parts of a buffer overlap others; allocate one buffer for each, or use .index()"
    )
