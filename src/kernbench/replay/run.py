"""Phase 2 of a kernel launch: its trace, executed on the bytes of buffers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench.commands import KernelTrace
from kernbench.dtypes import Array
from kernbench.errors import InternalError, UnknownNameError, UsageError, nearest
from kernbench.replay.plans.plan import Plan
from kernbench.replay.reduction_order import reduce_in_order, sweeps_of
from kernbench.replay.steps.frame import PointerArg
from kernbench.replay.steps.outside import OutsideReads

if TYPE_CHECKING:
    from kernbench.collectives import Schedule

# A memo, not state: a plan is a function of its trace alone and is freed with it.
_PLANS: weakref.WeakKeyDictionary[KernelTrace, Plan] = weakref.WeakKeyDictionary()


def run_kernel(
    trace: KernelTrace,
    params: Sequence[PointerArg | float | int | None],
    outside: OutsideReads | None = None,
) -> None:
    """Execute a trace on data: reads and writes the buffers that ``params`` point into.

    Args:
        trace: What the launch does. Its plan is compiled once and kept as long as the trace lives.
        params: One per parameter of the kernel: a :class:`PointerArg` for a pointer, the number
            for a floating-point parameter; integers are already in the trace and are not read.
        outside: Is notified of loads outside of a tensor, which give zeros; None: an error.

    Raises:
        OutOfBoundsError: An address that depends on data lies outside its tensor.
        UnsupportedOpError: The trace holds an operation that replay does not know.
    """
    plan = _PLANS.get(trace)
    if plan is None:
        plan = _PLANS[trace] = Plan(trace)
    plan.run(params, outside)


# numpy computes float16, and ml_dtypes bfloat16 and float8, in float32 and rounds every result,
# which is what a ring kernel on such tensors does. max and min propagate NaN.
_COMBINE: Mapping[str, np.ufunc] = {
    "sum": np.add,
    "avg": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


def run_collective(schedule: Schedule, reduce_op: str, works: Sequence[Array]) -> None:
    """Run the collective on ``works``, one 1-D array of the message per rank, in place.

    For all_to_all an array is the whole work buffer of the schedule.

    Reductions happen in the algorithm's order and in the arrays' dtype, rounded at every step;
    ``avg`` is that sum divided by the number of ranks once, at the end (half types in float32,
    integers truncate towards zero). Every rank receives copies of the same result, so all end
    with the same bits. ``reduce_op`` is ignored if nothing is reduced.

    Raises:
        UnknownNameError: There is no such ``reduce_op``.
        UsageError: The dtype has no such reduction (bits of floats, an average of booleans).
        InternalError: ``works`` do not fit the schedule.
    """
    _check(schedule, works)
    if schedule.op in _REDUCING:
        check_reduce_op(reduce_op, works[0].dtype)
    if schedule.num_ranks == 1 or schedule.num_elements == 0:
        return
    # A device overflows to infinity without a warning.
    with np.errstate(all="ignore"):
        if schedule.op in _REDUCING:
            _reduce(schedule, reduce_op, works)
        else:
            _copying(schedule)(schedule, reduce_op, works)


def check_reduce_op(reduce_op: str, dtype: np.dtype[Any]) -> None:
    """Refuse a reduction that does not exist, or that the dtype does not support.

    Raises:
        UnknownNameError: There is no such reduction.
        UsageError: The dtype does not support it.
    """
    if reduce_op not in _COMBINE:
        raise UnknownNameError(f"unknown reduce op {reduce_op!r}: {nearest(reduce_op, _COMBINE)}")
    if reduce_op in ("band", "bor", "bxor") and dtype.kind not in "iub":
        raise UsageError(f"reduce op {reduce_op} needs integers, but the tensor is {dtype}")
    if reduce_op == "avg" and dtype.kind == "b":
        raise UsageError("reduce op avg needs numbers, but the tensor is bool; use max or min")


def run_steps(schedule: Schedule, reduce_op: str, works: Sequence[Array]) -> None:
    """Run the schedule literally: step by step, chunk by chunk.

    This is the reference that the shortcuts of :func:`run_collective` must match bit for bit.
    """
    buffers = _slots(schedule, works) if schedule.fold else works
    bounds = schedule.chunk_bounds.tolist()
    for step in schedule.steps:
        moves = list(zip(step.src.tolist(), step.dst.tolist(), step.chunk.tolist(), strict=True))
        # Everything is sent before anything is received.
        sent = [buffers[src][bounds[c] : bounds[c + step.span]].copy() for src, _, c in moves]
        for (_, dst, c), received in zip(moves, sent, strict=True):
            own = buffers[dst][bounds[c] : bounds[c + step.span]]
            if step.reduce:
                _COMBINE[reduce_op](received, own, out=own)
            else:
                own[:] = received
    if schedule.fold:
        for work, buffer in zip(works, buffers, strict=True):
            slots = buffer.reshape(schedule.num_ranks, -1)
            work[:] = slots[0]
            for slot in slots[1:]:
                _COMBINE[reduce_op](work, slot, out=work)
    if schedule.op in _REDUCING:
        for work in works:
            _finish(reduce_op, work, schedule.num_ranks)


def _slots(schedule: Schedule, works: Sequence[Array]) -> list[Array]:
    """Return work buffers in which every rank's own slot holds its tensor."""
    buffers = [np.empty(schedule.work_elements, work.dtype) for work in works]
    for rank, (buffer, work) in enumerate(zip(buffers, works, strict=True)):
        buffer[schedule.chunk_bounds[rank] : schedule.chunk_bounds[rank + 1]] = work
    return buffers


def _reduce(schedule: Schedule, reduce_op: str, works: Sequence[Array]) -> None:
    sweeps = sweeps_of(schedule)
    if sweeps is None:
        run_steps(schedule, reduce_op, works)
        return
    receiving = [(works[schedule.root], 0, schedule.num_elements)]
    if schedule.op == "all_reduce":
        receiving = [(work, 0, schedule.num_elements) for work in works]
    elif schedule.op == "reduce_scatter":
        bounds = schedule.chunk_bounds.tolist()
        receiving = list(zip(works, bounds[:-1], bounds[1:], strict=True))
    for start, result in reduce_in_order(sweeps, _COMBINE[reduce_op], works):
        _finish(reduce_op, result, schedule.num_ranks)
        end = start + len(result)
        for work, low, high in receiving:
            if low <= start and end <= high:
                work[start:end] = result
            elif low < end and start < high:
                low, high = max(low, start), min(high, end)
                work[low:high] = result[low - start : high - start]


def _all_gather(schedule: Schedule, reduce_op: str, works: Sequence[Array]) -> None:
    bounds = schedule.chunk_bounds.tolist()
    first = works[0]
    for rank, work in enumerate(works):
        own = slice(bounds[rank], bounds[rank + 1])
        first[own] = work[own]
    for work in works[1:]:
        work[:] = first


def _broadcast(schedule: Schedule, reduce_op: str, works: Sequence[Array]) -> None:
    source = works[schedule.root]
    for work in works:
        if work is not source:
            work[:] = source


def _finish(reduce_op: str, reduced: Array, num_ranks: int) -> None:
    """For ``avg``, divide the sum in place; leave other reductions alone."""
    if reduce_op != "avg" or num_ranks == 1:
        return
    kind = reduced.dtype.kind
    if kind == "u":
        # Unsigned division needs no truncation towards zero, and uint64 needs all 64 bits.
        reduced[:] = reduced.astype(np.uint64) // np.uint64(num_ranks)
    elif kind == "i":
        wide = reduced.astype(np.int64)
        quotient, rest = np.divmod(wide, num_ranks)
        reduced[:] = quotient + ((wide < 0) & (rest != 0))
    else:
        average = reduced.astype(np.float64 if reduced.dtype.itemsize == 8 else np.float32)
        np.true_divide(average, average.dtype.type(num_ranks), average)
        reduced[:] = average.astype(reduced.dtype)


_REDUCING = frozenset({"all_reduce", "reduce_scatter", "reduce"})

_BROADCAST = frozenset({("broadcast", "ring"), ("broadcast", "tree"), ("send_recv", "direct")})


def _copying(schedule: Schedule) -> Callable[[Schedule, str, Sequence[Array]], None]:
    """Return a shortcut to the same bits; where there is none, what runs step by step."""
    if schedule.op == "all_gather":
        return _all_gather
    return _broadcast if (schedule.op, schedule.algorithm) in _BROADCAST else run_steps


def _check(schedule: Schedule, works: Sequence[Array]) -> None:
    length = schedule.work_elements if schedule.op == "all_to_all" else schedule.num_elements
    shapes = {work.shape for work in works}
    dtypes = {work.dtype for work in works}
    if len(works) != schedule.num_ranks or shapes != {(length,)} or len(dtypes) != 1:
        raise InternalError(
            f"{schedule.op} of {schedule.num_ranks} ranks and {length} elements was "
            f"given {len(works)} arrays of shapes {sorted(shapes)} and dtypes "
            f"{', '.join(sorted(map(str, dtypes)))}"
        )
