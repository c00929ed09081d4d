"""Matrix products, timed as kernbench's own Triton kernel on the machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernbench.ops import matmul, record_launches
from kernbench.torch_bridge.costs.sequences import timing_of_kernels

if TYPE_CHECKING:
    from kernbench.dtypes import DType
    from kernbench.hardware import Machine
    from kernbench.torch_bridge.costs.products import Products, Sizes
    from kernbench.torch_bridge.costs.timing import OperationTiming


class GemmCosts:
    """Schedules of products on one machine; equal ones are worked out once."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._known: dict[tuple[str, Products, DType, int], OperationTiming] = {}

    def timing(self, name: str, products: Products, dtype: DType, sip_id: int) -> OperationTiming:
        """Return the schedules of products ``C[b, m, n] = A[b, m, k] @ B[b, k, n]``."""
        key = (name, products, dtype, id(self._machine.sip_at(sip_id)))
        found = self._known.get(key)
        if found is None:
            traces = [
                trace
                for sizes in products
                for trace in record_launches(_one(sizes, dtype), self._machine)
            ]
            found = self._known[key] = timing_of_kernels(name, traces, self._machine, sip_id)
        return found


def _one(sizes: Sizes, dtype: DType) -> Callable[[Any], object]:
    batch, m, n, k = sizes
    entries = () if batch == 1 else (batch,)
    return lambda at: matmul(at.tensor((*entries, m, k), dtype), at.tensor((*entries, k, n), dtype))
