"""Matrix products, timed as kernbench's own Triton kernel on the machine."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

from kernbench.op_log import Template
from kernbench.ops import GemmTile, KernelProbe, Pointer, product_call
from kernbench.sim_engine import Conditions, schedule_kernel
from kernbench.torch_bridge.costs.timing import OperationTiming

if TYPE_CHECKING:
    from kernbench.commands import KernelTrace
    from kernbench.dtypes import DType
    from kernbench.hardware import Machine


class GemmCosts:
    """Schedules of products on one machine; equal ones are worked out once."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._probe = KernelProbe()
        self._known: dict[tuple[str, int, int, int, DType, int], OperationTiming] = {}

    def timing(
        self, name: str, m: int, n: int, k: int, dtype: DType, sip_id: int
    ) -> OperationTiming:
        """Return the schedules of ``C[m, n] = A[m, k] @ B[k, n]``."""
        key = (name, m, n, k, dtype, id(self._machine.sip_at(sip_id)))
        found = self._known.get(key)
        if found is None:
            tile = GemmTile(_block(m), _block(n), max(128 // dtype.itemsize, 16))
            call = product_call(*(Pointer(dtype),) * 3, (m, n, k), dtype, tile)
            trace = self._probe.trace(call)
            make = partial(self._template, name, trace, sip_id)
            found = self._known[key] = OperationTiming(make)
        return found

    def _template(self, name: str, trace: KernelTrace, sip_id: int, queued: bool) -> Template:
        conditions = Conditions(queued=queued)
        template = schedule_kernel(trace, self._machine, sip_id, conditions)
        return dataclasses.replace(template, name=name)


def _block(size: int) -> int:
    return min(128, max(16, 1 << (size - 1).bit_length()))
