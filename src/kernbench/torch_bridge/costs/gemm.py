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
        self._known: dict[tuple[str, Products, DType, DType, int], OperationTiming] = {}

    def timing(
        self, name: str, products: Products, dtype: DType, out_dtype: DType, sip_id: int
    ) -> OperationTiming:
        """Return the schedules of products ``C[b, m, n] = A[b, m, k] @ B[b, k, n]``.

        Raises:
            MachineError: The machine has no rate for operands of ``dtype``.
        """
        sip = self._machine.sip_at(sip_id)
        key = (name, products, dtype, out_dtype, id(sip))
        found = self._known.get(key)
        if found is None:
            if dtype.itemsize == 1:
                # Said where the program calls it: not all machines multiply FP8.
                sip.gemm_flops_per_clock(dtype.name)
            traces = [
                trace
                for sizes in products
                for trace in record_launches(_one(sizes, dtype, out_dtype), self._machine)
            ]
            found = self._known[key] = timing_of_kernels(name, traces, self._machine, sip_id)
        return found


def _one(sizes: Sizes, dtype: DType, out_dtype: DType) -> Callable[[Any], object]:
    batch, m, n, k = sizes
    entries = () if batch == 1 else (batch,)

    def launch(at: Any) -> object:
        a, b = at.tensor((*entries, m, k), dtype), at.tensor((*entries, k, n), dtype)
        return matmul(a, b, out=at.tensor((*entries, m, n), out_dtype))

    return launch
