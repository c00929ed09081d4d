"""How published rows are modeled while a machine is fitted to them."""

from __future__ import annotations

from kernbench.accuracy.calibration import Measuring, RowModel
from kernbench.accuracy.rows import Row
from kernbench.hardware import Machine
from kernbench.plans import Cached, Problem
from validation.predictors.registry import published
from validation.sources.harness import gemm_harness
from validation.sources.repeated import repeated_kernels


class BySource(Measuring):
    """Products as their sources measured them."""

    def machine(self, row: Row, machine: Machine) -> Machine:
        """Return the machine as the source's kernels see it."""
        return gemm_harness(row.source, machine.name).met(machine, repeated_kernels(row))

    def cached(self, row: Row, machine: Machine, problem: Problem) -> Cached:
        """Return how much of the operands is cached when a source uses them again."""
        harness = gemm_harness(row.source, machine.name)
        return harness.cached(problem.input_bytes, problem.weight_bytes, machine.sip)

    def only_powers_of_two(self, row: Row, machine: Machine) -> bool:
        """Return whether the source's library has only tiles of such widths."""
        return gemm_harness(row.source, machine.name).only_powers_of_two

    def time_us(self, row: Row, machine: Machine, kernel_us: float) -> float:
        """Return the time that the source reports for a kernel."""
        return gemm_harness(row.source, machine.name).time_us(kernel_us, machine)


def published_rows() -> RowModel:
    """Return how published rows are modeled."""
    return RowModel(BySource(), published())
