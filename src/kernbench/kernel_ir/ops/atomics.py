"""Atomic read-modify-writes, loads and stores of memory.

Here they are commands like any other. What a program decides by the value that an atomic gave it
needs data (:class:`NeedsDataError`), and that is found where the value is used.
"""

from __future__ import annotations

from kernbench.commands import Atomic, MemoryOrder, MemoryScope, Operand, Splat, Tile
from kernbench.kernel_ir.evaluation.evaluator import Evaluator
from kernbench.kernel_ir.ops.registry import Dialect
from kernbench.kernel_ir.ops.tt import pointed_to, read_mask
from kernbench.kernel_ir.text.ir import Op

DIALECT = Dialect()

_KINDS = frozenset({"add", "fadd", "max", "min", "umax", "umin", "and", "or", "xor", "exch"})
_ORDERS: tuple[MemoryOrder, ...] = ("relaxed", "acquire", "release", "acq_rel")
_SCOPES: tuple[MemoryScope, ...] = ("gpu", "cta", "sys")
_KIND_BY_NUMBER = ("and", "or", "xor", "add", "fadd", "max", "min", "umax", "umin", "exch")


def _check(op: Op) -> str | None:
    pointer = op.operands[0].type
    num_values = 1 if op.name == "tt.atomic_rmw" else 2
    values, masks = op.operands[1 : 1 + num_values], op.operands[1 + num_values :]
    for value in (*values, *op.results):
        if value.type.shape != pointer.shape or value.type.dtype != pointer.dtype:
            return f"changes {pointer} by {value.type}"
    for mask in masks:
        if not mask.type.is_bool or mask.type.shape != pointer.shape:
            return f"is masked by {mask.type} at {pointer}"
    return None if pointer.is_pointer else f"uses {pointer} as an address"


@DIALECT.op("tt.atomic_rmw", operands=(2, 3), check=_check)
def _read_modify_write(run: Evaluator, op: Op) -> None:
    kind = _kind(op)
    if kind not in _KINDS:
        raise run.unsupported(op, f"the atomic {kind!r}")
    _emit(run, op, kind, run.operand(op, 1), None, 2)


@DIALECT.op("tt.atomic_cas", operands=3, check=_check)
def _compare_and_swap(run: Evaluator, op: Op) -> None:
    _emit(run, op, "cas", run.operand(op, 2), run.operand(op, 1), 3)


@DIALECT.op("tt.atomic_load")
def _load(run: Evaluator, op: Op) -> None:
    emit_load(run, op, 1)


@DIALECT.op("tt.atomic_store")
def _store(run: Evaluator, op: Op) -> None:
    _emit(run, op, "exch", run.operand(op, 1), None, 2)


@DIALECT.op("tt.atomic_poll")
def _poll(run: Evaluator, op: Op) -> None:
    raise run.needs_data(op, "it waits for memory to change")


def emit_load(run: Evaluator, op: Op, mask_index: int) -> Tile:
    """Emit a read of what atomics change; return its tile."""
    access, allowed = pointed_to(run, op)
    mask = read_mask(run, op, mask_index, allowed)
    dst = run.new_tile(access.shape, access.dtype)
    zero = Splat(0, access.shape, access.dtype)
    run.commands.append(
        Atomic(dst, "load", access, zero, None, mask, op.line, order=_order(op), scope=_scope(op))
    )
    if op.results[0].type.dtype == access.dtype:
        run.set(op.results[0], dst)
    return dst


def _kind(op: Op) -> str:
    for word in op.attrs.get("words", ()):
        if word in _KINDS:
            return str(word)
    number = op.attrs.get("atomic_rmw_op", -1)
    known = isinstance(number, int) and 1 <= number <= len(_KIND_BY_NUMBER)
    return _KIND_BY_NUMBER[number - 1] if known else str(number)


def _order(op: Op) -> MemoryOrder:
    for order in _ORDERS:
        if order in op.attrs.get("words", ()):
            return order
    number = op.attrs.get("sem", 4)
    return _ORDERS[number - 1] if isinstance(number, int) and 1 <= number <= 4 else "acq_rel"


def _scope(op: Op) -> MemoryScope:
    for scope in _SCOPES:
        if scope in op.attrs.get("words", ()):
            return scope
    number = op.attrs.get("scope", 1)
    return _SCOPES[number - 1] if isinstance(number, int) and 1 <= number <= 3 else "gpu"


def _emit(
    run: Evaluator, op: Op, kind: str, value: Operand, compare: Operand | None, mask_index: int
) -> None:
    access, allowed = pointed_to(run, op)
    mask = read_mask(run, op, mask_index, allowed)
    dst = None
    if op.results and op.results[0] in run.module.used_values:
        dst = run.new_tile(access.shape, access.dtype)
        run.set(op.results[0], dst)
    run.commands.append(
        Atomic(dst, kind, access, value, compare, mask, op.line, order=_order(op), scope=_scope(op))
    )
