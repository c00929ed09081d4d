"""One launch of a kernel, timed on its own: no run, no tensors, no data.

The way is the runtime's: Triton compiles, the evaluator makes the trace, the scheduler times it.
Only the arguments are stand-ins, so that a measured shape may be larger than any host's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernbench.commands import KernelTrace
from kernbench.dtypes import DType
from kernbench.errors import InternalError
from kernbench.kernel_ir import evaluate
from kernbench.ops.launches import KernelCall
from kernbench.triton_backend import DeviceRates, KernelBinary, activate


@dataclass(frozen=True, slots=True)
class Pointer:
    """An argument that stands for a tensor."""

    dtype: DType

    def data_ptr(self) -> int:
        return 0


class KernelProbe:
    """Takes launches in place of a run, and keeps what they would do."""

    def __init__(self) -> None:
        self._seen: tuple[KernelBinary, tuple[int, int, int], tuple[Any, ...]] | None = None

    def trace(self, call: KernelCall) -> KernelTrace:
        """Return what a launch does."""
        with activate(self):
            call.kernel[call.grid](*call.args, **call.options)
        if self._seen is None:
            raise InternalError(f"Triton did not launch {call.kernel.__name__}")
        (binary, full_grid, picked), self._seen = self._seen, None
        ints = {
            param.index: picked[param.index]
            for param in binary.module.kernel.params
            if not param.is_pointer and not (param.dtype and param.dtype.is_floating_point)
        }
        return evaluate(
            binary.module,
            full_grid,
            ints,
            num_warps=binary.num_warps,
            num_stages=binary.num_stages,
        )

    def launch(
        self, binary: KernelBinary, grid: tuple[int, int, int], args: tuple[Any, ...]
    ) -> None:
        self._seen = (binary, grid, args)

    def tcm_capacity_bytes(self) -> int:
        """Return room for anything: whether a tile fits is asked of the trace."""
        return 1 << 62

    def num_pes(self) -> int:
        return 1

    def device_rates(self) -> DeviceRates:
        return DeviceRates(clock_ghz=1.0, hbm_bytes_per_ns=1.0)

    def latest_ns(self) -> None:
        """Return None: nothing runs."""

    def benchmark_ms(self, fn: Callable[[], Any]) -> float:
        raise InternalError("a kernel that tunes itself cannot be timed alone")
