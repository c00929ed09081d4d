"""Matrix products, timed as kernbench's own Triton kernel on the machine."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kernbench.op_log import Template
from kernbench.ops import GemmTile, KernelProbe, Pointer, product_call
from kernbench.sim_engine import schedule_kernel

if TYPE_CHECKING:
    from kernbench.dtypes import DType
    from kernbench.hardware import Machine


class GemmCosts:
    """Schedules of products on one machine; equal ones are worked out once."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._probe = KernelProbe()
        self._known: dict[tuple[int, int, int, DType, int], Template] = {}

    def template(self, name: str, m: int, n: int, k: int, dtype: DType, sip_id: int) -> Template:
        """Return the schedule of ``C[m, n] = A[m, k] @ B[k, n]``."""
        key = (m, n, k, dtype, id(self._machine.sip_at(sip_id)))
        found = self._known.get(key)
        if found is None:
            tile = GemmTile(_block(m), _block(n), max(128 // dtype.itemsize, 16))
            call = product_call(*(Pointer(dtype),) * 3, (m, n, k), dtype, tile)
            found = schedule_kernel(self._probe.trace(call), self._machine, sip_id)
            self._known[key] = found
        return dataclasses.replace(found, name=name)


def _block(size: int) -> int:
    return min(128, max(16, 1 << (size - 1).bit_length()))
