"""Which kernels of serving stacks a measured quantisation launches."""

from __future__ import annotations

from kernbench.accuracy.rows import Row
from kernbench.hardware import Machine
from kernbench.library_kernels import LibraryKernel, kept_share, stream
from validation.kernels import missed_again, quantize_rows, scale_and_quantize_rows
from validation.predictors.library_rows import LibraryPredictor, MeasuredKernels, NotModeledError

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
