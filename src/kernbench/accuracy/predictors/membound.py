"""Memory-bound operations: the kernels of kernbench.ops on the row's machine."""

from __future__ import annotations

from functools import lru_cache

from kernbench.accuracy.rows import Answer, Machines, Ran, Row
from kernbench.commands import KernelTrace
from kernbench.dtypes import DType, bfloat16, float16, float32
from kernbench.errors import MachineError
from kernbench.hardware import Machine
from kernbench.kernel_time import Conditions, schedule_kernel
from kernbench.ops import (
    ELEMENTWISE_OPS,
    ROW_OPS,
    KernelProbe,
    ProbePointer,
    elementwise_call,
    rows_call,
)

ROW_DTYPES = {"bf16": bfloat16, "fp16": float16, "fp32": float32}
WIDEST_ROW = 1 << 17


class RowKernels:
    """Times of kernels on rows; traces of the last few are kept."""

    def __init__(self) -> None:
        self._probe = KernelProbe()
        self._traces = lru_cache(maxsize=64)(self._trace)

    def time_us(self, row: Row, machine: Machine, conditions: Conditions) -> tuple[float, str]:
        """Return the time of a row's kernel, and its name.

        Raises:
            MachineError: The kernel does not fit the machine.
        """
        rows, cols = row.integer("rows"), row.integer("cols")
        trace = self._traces(row.op, ROW_DTYPES[row.dtype], rows, cols)
        return schedule_kernel(trace, machine, 0, conditions).duration_ps / 1e6, trace.name

    def _trace(self, op: str, dtype: DType, rows: int, cols: int) -> KernelTrace:
        tensor = ProbePointer(dtype)
        if op in ELEMENTWISE_OPS:
            return self._probe.trace(
                elementwise_call(op, tensor, (tensor,) * 2, dtype, rows * cols)
            )
        return self._probe.trace(rows_call(op, tensor, (tensor,) * 3, dtype, rows, cols))


def why_no_kernel(row: Row) -> str:
    """Return why kernbench has no kernel for a row; empty where it has one."""
    if row.dtype not in ROW_DTYPES:
        return f"no Triton dtype for {row.dtype}"
    if row.op not in ELEMENTWISE_OPS | ROW_OPS:
        return f"no kernel for op {row.op}"
    if row.op in ROW_OPS and row.integer("cols") > WIDEST_ROW:
        return f"{row.op} of rows longer than {WIDEST_ROW} elements"
    return ""


class MemboundPredictor:
    """Predicts elementwise operations, softmax and norms."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._kernels = RowKernels()

    def predict(self, row: Row) -> Answer:
        """Return the modeled time of what the row measured."""
        if why_not := why_no_kernel(row):
            return Answer(None, why_not)
        machine = self._machines.machine_of(row.device)
        try:
            time_us, name = self._kernels.time_us(row, machine, Conditions())
        except MachineError as error:
            return Answer(None, str(error).split(";")[0])
        return Answer(time_us, how=name, ran=Ran.KERNELS)
