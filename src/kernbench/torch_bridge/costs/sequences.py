"""Schedules of operations that run several of kernbench's own kernels one after another."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from functools import partial, reduce

import numpy as np

from kernbench.commands import KernelTrace
from kernbench.hardware import Machine
from kernbench.kernel_time import Conditions, check_kernel, schedule_kernel
from kernbench.op_log import Column, Limit, Template, added
from kernbench.torch_bridge.base.operation_timing import OperationTiming


def timing_of_kernels(
    name: str, traces: Sequence[KernelTrace], machine: Machine, sip_id: int
) -> OperationTiming:
    """Return the schedules of an operation; kernels after the first wait in the queue.

    Raises:
        MachineError: The machine has no rate for a product of one of them. Schedules are made when
            the device comes to them, long after the program's line.
    """
    for trace in traces:
        check_kernel(trace, machine, sip_id)
    return OperationTiming(partial(_template, name, traces, machine, sip_id))


def in_turn(first: OperationTiming, second: OperationTiming) -> OperationTiming:
    """Return the schedules of an operation that does ``first`` and then ``second``."""

    def make(queued: bool) -> Template:
        return _one_after_another(first.template(queued), second.template(True))

    return OperationTiming(
        make, lambda reuse: in_turn(first.with_reuse(reuse), second.with_reuse(reuse))
    )


def repeated(timing: OperationTiming, count: int) -> OperationTiming:
    """Return the schedules of an operation that does the same so many times, one after another."""
    if count == 1:
        return timing

    def make(queued: bool) -> Template:
        rest = _times(timing.template(True), count - 1)
        return _one_after_another(timing.template(queued), rest)

    return OperationTiming(make, lambda reuse: repeated(timing.with_reuse(reuse), count))


def no_sooner(timing: OperationTiming, least_ps: int) -> OperationTiming:
    """Return the schedules of an operation whose host needs so long to launch its kernels."""

    def make(queued: bool) -> Template:
        of_device = timing.template(queued)
        waits_ps = max(least_ps - of_device.duration_ps, 0)
        return dataclasses.replace(
            of_device,
            duration_ps=of_device.duration_ps + waits_ps,
            limits_ps=Counter(of_device.limits_ps) + Counter({Limit.LAUNCH: waits_ps}),
        )

    return OperationTiming(make, lambda reuse: no_sooner(timing.with_reuse(reuse), least_ps))


def _times(template: Template, count: int) -> Template:
    """Return a template of the same schedule so many times."""
    parts = [template]
    # By doubling: what is joined has as many rows as all of its parts.
    while 1 << len(parts) <= count:
        parts.append(_one_after_another(parts[-1], parts[-1]))
    chosen = [part for power, part in enumerate(parts) if count >> power & 1]
    return reduce(_one_after_another, chosen)


def _template(
    name: str, traces: Sequence[KernelTrace], machine: Machine, sip_id: int, queued: bool
) -> Template:
    templates = [
        schedule_kernel(trace, machine, sip_id, Conditions(queued=queued or number > 0))
        for number, trace in enumerate(traces)
    ]
    return dataclasses.replace(reduce(_one_after_another, templates), name=name)


def _one_after_another(first: Template, second: Template) -> Template:
    return dataclasses.replace(
        first,
        duration_ps=first.duration_ps + second.duration_ps,
        flops=first.flops + second.flops,
        hbm_bytes=first.hbm_bytes + second.hbm_bytes,
        engine_busy_ps=Counter(first.engine_busy_ps) + Counter(second.engine_busy_ps),
        bound_ps=first.bound_ps + second.bound_ps,
        limits_ps=Counter(first.limits_ps) + Counter(second.limits_ps),
        energy_pj=added(first.energy_pj, second.energy_pj),
        make_rows=partial(_rows, first, second),
    )


def _rows(first: Template, second: Template) -> dict[str, Column]:
    before, after = (_columns(template) for template in (first, second))
    for name in ("start_ps", "end_ps"):
        after[name] = after[name] + first.duration_ps
    return {name: np.concatenate([before[name], after[name]]) for name in before if name in after}


def _columns(template: Template) -> dict[str, Column]:
    """Return the rows of a template, with every column at full length."""
    arrays = {name: np.asarray(column) for name, column in template.make_rows().items()}
    length = max((len(column) for column in arrays.values() if column.ndim), default=0)
    return {name: np.broadcast_to(column, length) for name, column in arrays.items()}
