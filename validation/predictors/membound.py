"""Predicts memory-bound rows: Triton kernels of kernbench.ops, or PyTorch's own."""

from __future__ import annotations

from kernbench.accuracy.predictors import ROW_DTYPES, RowKernels, why_no_kernel
from kernbench.accuracy.rows import Answer, Machines, Ran, Row
from kernbench.errors import MachineError
from kernbench.hardware import Machine, SipSpec
from kernbench.kernel_time import Conditions
from kernbench.library_kernels import (
    BlockLaunch,
    LibraryKernel,
    aten,
    kept_share,
    stream,
    time_blocks,
)
from validation.kernels import missed_again, quantize_rows, scale_and_quantize_rows
from validation.predictors.library_rows import LibraryPredictor, MeasuredKernels, NotModeledError
from validation.sources.harness import membound_harness

OPERATIONS = ("computescale", "scale_matrix")

_EAGER = ((2.0, 4.0), (4.0, 4.0), (4.0, 1.0))
"""Bytes that PyTorch's own operations read and write per element: to float32, divided by the scale,
rounded to 8 bits."""
_RESOLVED_US = 0.1
"""Differences of two launches below this are the clock's, not the kernels'."""


class QuantisationPredictor(LibraryPredictor):
    """Answers rows of quantisation: finding scales, and applying them."""

    def measured(self, row: Row) -> MeasuredKernels:
        """Return what a row measured.

        Raises:
            NotModeledError: Nothing is described for the stack or for the dtype.
        """
        machine = self.machines.machine_of(row.device)
        stack = row.fields.get("framework", "")
        if row.dtype != "fp8":
            raise NotModeledError(f"no kernel for {row.op} to {row.dtype}")
        rows, cols = row.integer("rows"), row.integer("cols")
        name = f"quantize_{stack}_{row.op}"
        kernels = _kernels(stack, row.op, name, rows, cols, machine)
        if (stack, row.op) != ("vllm", "computescale"):
            return MeasuredKernels(kernels=kernels, machine=machine)
        if row.time_us < _RESOLVED_US:
            raise NotModeledError(f"a difference of launches below {_RESOLVED_US} us is noise")
        known = _kernels(
            stack, "scale_matrix", f"quantize_{stack}_scale_matrix", rows, cols, machine
        )
        return MeasuredKernels(kernels=kernels, less=known, machine=machine, least_us=_RESOLVED_US)


def _kernels(
    stack: str, op: str, name: str, rows: int, cols: int, machine: Machine
) -> tuple[LibraryKernel, ...]:
    elements = rows * cols
    if (stack, op) == ("trtllm", "computescale"):
        return (stream(name, 2.0 * elements, 0.0),)
    if (stack, op) == ("trtllm", "scale_matrix"):
        return (stream(name, 2.0 * elements, 1.0 * elements),)
    if (stack, op) == ("sglang", "scale_matrix"):
        return tuple(stream(name, read * elements, put * elements) for read, put in _EAGER)
    cold = 1 - kept_share(3.0 * elements, machine.sip)
    if (stack, op) == ("vllm", "scale_matrix"):
        return (quantize_rows(name, rows, cols, 1.0, cold),)
    if (stack, op) == ("vllm", "computescale"):
        held_bytes = machine.sip.cache.held_bytes if machine.sip.cache else 0.0
        missed = missed_again(rows, cols, machine.sip.num_pes, held_bytes)
        return (scale_and_quantize_rows(name, rows, cols, 1.0, cold, missed),)
    raise NotModeledError(f"no kernel for {op} of {stack}")


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
