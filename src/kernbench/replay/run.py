"""Phase 2 of a kernel launch: its trace, executed on the bytes of buffers."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from kernbench.commands import KernelTrace
from kernbench.replay.plans.plan import Plan
from kernbench.replay.steps.frame import PointerArg
from kernbench.replay.steps.outside import OutsideReads

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
