"""Predicts memory-bound rows: the Triton kernels of kernbench.ops on the row's machine."""

from __future__ import annotations

from kernbench.accuracy.predictors import ROW_DTYPES, RowKernels, why_no_kernel
from kernbench.accuracy.rows import Answer, Machines, Ran, Row
from kernbench.errors import MachineError
from kernbench.kernel_time import Conditions
from validation.predictors.libraries.quantisation import (
    OPERATIONS,
    QuantisationPredictor,
)
from validation.predictors.library_rows import (
    LibraryPredictor,
    MeasuredKernels,
    NotModeledError,
)
from validation.sources.harness import membound_harness

_OPS_IN_PASSES = ("softmax", "layernorm")


class MemboundPredictor(LibraryPredictor):
    """Predicts rows of elementwise operations, softmax and norms; quantisation by a library's."""

    def __init__(self, machines: Machines) -> None:
        super().__init__(machines)
        self._quantisation = QuantisationPredictor(machines)
        self._kernels = RowKernels()

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
        if why_not := why_no_kernel(row):
            return Answer(None, why_not)
        machine, cols = self.machines.machine_of(row.device), row.integer("cols")
        harness = membound_harness(row.source, machine.name, row.op)
        conditions = Conditions()
        in_passes = bool(harness.row_kib) and row.op in _OPS_IN_PASSES
        if in_passes:
            # Every pass but the first hits the part of the row that is still cached.
            warm = harness.warm_row(cols * ROW_DTYPES[row.dtype].itemsize)
            passes = ((2, warm), (3, warm)) if row.op == "softmax" else ((2, warm),)
            conditions = Conditions(cached=passes)
        try:
            kernel_us, name = self._kernels.time_us(row, machine, conditions, in_passes)
        except MachineError as error:
            return Answer(None, str(error).split(";")[0])
        return Answer(harness.time_us(kernel_us, cols), how=name, ran=Ran.KERNELS)
