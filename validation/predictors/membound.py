"""Predicts memory-bound rows: Triton kernels of kernbench.ops, or PyTorch's own."""

from __future__ import annotations

from kernbench.accuracy.predictors import ROW_DTYPES, RowKernels, why_no_kernel
from kernbench.accuracy.rows import Answer, Machines, Ran, Row
from kernbench.errors import MachineError
from kernbench.hardware import SipSpec
from kernbench.kernel_time import Conditions
from kernbench.library_kernels import BlockLaunch, aten, time_blocks
from validation.predictors.libraries.quantisation import OPERATIONS, QuantisationPredictor
from validation.predictors.library_rows import LibraryPredictor, MeasuredKernels, NotModeledError
from validation.sources.harness import membound_harness

_OF_ATEN = ("softmax", "layernorm")


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
        machine = self.machines.machine_of(row.device)
        harness = membound_harness(row.source, machine.name, row.op)
        if harness.release and row.op in _OF_ATEN:
            launches = _launches(row, machine.sip_at(0), harness.release)
            kernel_us, name = (
                sum(time_blocks(launch, machine.sip_at(0)).total_us for launch in launches),
                launches[0].name,
            )
            return Answer(harness.time_us(kernel_us, machine), how=name, ran=Ran.KERNELS)
        try:
            kernel_us, name = self._kernels.time_us(row, machine, Conditions())
        except MachineError as error:
            return Answer(None, str(error).split(";")[0])
        return Answer(harness.time_us(kernel_us, machine), how=name, ran=Ran.KERNELS)


def _launches(row: Row, sip: SipSpec, release: tuple[int, ...]) -> tuple[BlockLaunch, ...]:
    """Return PyTorch's own kernels for a row."""
    rows, cols = row.integer("rows"), row.integer("cols")
    itemsize = ROW_DTYPES[row.dtype].itemsize
    if row.op == "softmax":
        return (aten.softmax(rows, cols, itemsize, sip, release < aten.IN_SHARED_MEMORY),)
    return aten.layer_norm(rows, cols, itemsize, sip)
