"""Predicts memory-bound rows: the Triton kernels of kernbench.ops on the row's machine."""

from __future__ import annotations

from functools import lru_cache

from kernbench.accuracy.validation.predictors.libraries.quantisation import (
    OPERATIONS,
    QuantisationPredictor,
)
from kernbench.accuracy.validation.predictors.library_rows import (
    LibraryPredictor,
    MeasuredKernels,
    NotModeledError,
)
from kernbench.accuracy.validation.rows.devices import Machines
from kernbench.accuracy.validation.rows.harness import membound_harness
from kernbench.accuracy.validation.rows.predictor import Answer, Ran
from kernbench.accuracy.validation.rows.reference import Row
from kernbench.commands import KernelTrace
from kernbench.dtypes import DType, bfloat16, float16, float32
from kernbench.errors import MachineError
from kernbench.kernel_time import Conditions, schedule_kernel
from kernbench.ops import (
    ELEMENTWISE_OPS,
    ROW_OPS,
    KernelProbe,
    ProbePointer,
    elementwise_call,
    rows_call,
)

DTYPES = {"bf16": bfloat16, "fp16": float16, "fp32": float32}

_WIDEST_ROW = 1 << 17
_OPS_IN_PASSES = ("softmax", "layernorm")


class MemboundPredictor(LibraryPredictor):
    """Predicts rows of elementwise operations, softmax and norms; quantisation by a library's."""

    def __init__(self, machines: Machines) -> None:
        super().__init__(machines)
        self._quantisation = QuantisationPredictor(machines)
        self._probe = KernelProbe()
        self._traces = lru_cache(maxsize=4)(self._trace)

    def measured(self, row: Row) -> MeasuredKernels:
        """Return the launches of a library that a row measured.

        Raises:
            NotModeledError: It is timed by a Triton kernel, or no kernel is described.
        """
        if row.op not in OPERATIONS:
            raise NotModeledError(f"no library kernel for {row.op}")
        return self._quantisation.measured(row)

    def predict(self, row: Row) -> Answer:
        """Return the modeled time of what the row measured."""
        if row.op in OPERATIONS:
            return super().predict(row)
        dtype = DTYPES.get(row.dtype)
        if dtype is None:
            return Answer(None, f"no Triton dtype for {row.dtype}")
        if row.op not in ELEMENTWISE_OPS | ROW_OPS:
            return Answer(None, f"no kernel for op {row.op}")
        machine = self.machines.machine_of(row.device)
        rows, cols = row.integer("rows"), row.integer("cols")
        if row.op in ROW_OPS and cols > _WIDEST_ROW:
            return Answer(None, f"{row.op} of rows longer than {_WIDEST_ROW} elements")
        harness = membound_harness(row.source, machine.name, row.op)
        conditions = Conditions()
        in_passes = bool(harness.row_kib) and row.op in _OPS_IN_PASSES
        if in_passes:
            # Every pass but the first hits the part of the row that is still cached.
            warm = harness.warm_row(cols * dtype.itemsize)
            passes = ((2, warm), (3, warm)) if row.op == "softmax" else ((2, warm),)
            conditions = Conditions(cached=passes)
        try:
            trace = self._traces(row.op, dtype, rows, cols, in_passes)
            kernel_us = schedule_kernel(trace, machine, 0, conditions).duration_ps / 1e6
        except MachineError as error:
            return Answer(None, str(error).split(";")[0])
        return Answer(harness.time_us(kernel_us, cols), how=trace.name, ran=Ran.KERNELS)

    def _trace(self, op: str, dtype: DType, rows: int, cols: int, in_passes: bool) -> KernelTrace:
        tensor = ProbePointer(dtype)
        if op in ELEMENTWISE_OPS:
            return self._probe.trace(
                elementwise_call(op, tensor, (tensor,) * 2, dtype, rows * cols)
            )
        return self._probe.trace(rows_call(op, tensor, (tensor,) * 3, dtype, rows, cols, in_passes))
