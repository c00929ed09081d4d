"""Predicts GEMM rows: kernbench's own Triton GEMM, or the kernels of a vendor's library.

Either takes the fastest tile of a list. The library answers rows that name a stack, rows in dtypes
that Triton has not, and those of devices where it is nearer to what was measured.
"""

from __future__ import annotations

from functools import lru_cache

from kernbench.accuracy.predictors import GEMM_DTYPES, library_of, problem_of
from kernbench.accuracy.rows import Answer, Machines, Ran, Row
from kernbench.errors import MachineError
from kernbench.hardware import Machine
from kernbench.kernel_time import kept_share
from kernbench.library_kernels import LibraryKernel, Product
from kernbench.plans import GemmTuner
from validation.kernels import load_library
from validation.predictors.libraries.aiter_names import maker_of
from validation.predictors.libraries.products import (
    OPERANDS,
    choices_of,
    quantize,
    quantize_by_rows,
)
from validation.predictors.library_rows import LibraryPredictor, MeasuredKernels, NotModeledError
from validation.sources.harness import Harness, gemm_harness
from validation.sources.launching import launching
from validation.sources.repeated import repeated_kernels

_IN_LIBRARY = frozenset({("bf16", "gfx942"), ("bf16", "gfx950")})
"""Dtypes and architectures that the Triton kernel could do, and AITER's does more exactly."""


class GemmPredictor(LibraryPredictor):
    """Predicts GEMM rows."""

    def __init__(self, machines: Machines) -> None:
        super().__init__(machines)
        self._tuner = GemmTuner()
        self._met = lru_cache(maxsize=256)(_met)

    def predict(self, row: Row) -> Answer:
        """Return the modeled time of the product that the row measured."""
        if row.op != "gemm":
            return Answer(None, f"no kernel for op {row.op}")
        machine = self.machines.machine_of(row.device)
        if _in_library(row, machine):
            return super().predict(row)
        dtype = GEMM_DTYPES.get(row.dtype)
        if dtype is None:
            return Answer(None, f"no Triton dtype for {row.dtype}")
        problem = problem_of(row, dtype)
        harness = gemm_harness(row.source, machine.name)
        try:
            best = self._tuner.tune(
                problem,
                self._met(machine, harness, repeated_kernels(row)),
                harness.cached(problem.input_bytes, problem.weight_bytes, machine.sip),
            )
        except MachineError as error:
            return Answer(None, str(error).split(";")[0])
        return Answer(harness.time_us(best.kernel_us, machine), how=str(best.tile), ran=Ran.KERNELS)

    def measured(self, row: Row) -> MeasuredKernels:
        """Return the launches of the vendor's library that a row measured.

        Raises:
            NotModeledError: The row is timed by the Triton kernel, or no kernel is described.
        """
        machine = self.machines.machine_of(row.device)
        architecture, operands = machine.spec.kernel_library, OPERANDS.get(row.dtype)
        if operands is None or architecture is None or not _in_library(row, machine):
            raise NotModeledError(f"no library kernel for {row.dtype} on {machine.name}")
        harness = gemm_harness(row.source, machine.name)
        m, n, k = (row.integer(name) for name in ("m", "n", "k"))
        batch = row.optional("batch") or 1
        rotated = harness.weight_buffers * operands.weight_bytes * n * k
        cold_input = _cold(machine, harness, rotated + operands.input_bytes * m * k)
        cold_weights = _cold(machine, harness, rotated)
        launched = launching(row.fields, machine.name)
        is_plain = operands.input_bytes == operands.weight_bytes
        product = Product(
            m=m,
            n=n,
            k=k,
            batch=batch,
            dtype=operands.dtype,
            itemsize=operands.input_bytes,
            out_bytes=int(max(2.0, operands.input_bytes)),
            part_bytes=int(operands.input_bytes) if operands.input_bytes >= 2 else 4,
            weight_bytes=None if is_plain else operands.weight_bytes,
            a_cold=cold_input,
            b_cold=cold_weights,
        )
        met = self._met(machine, harness, repeated_kernels(row))
        library = load_library(architecture)
        kernels: tuple[LibraryKernel, ...] = ()
        if operands.quantized and "framework" in row.fields:
            cold = _cold(machine, harness, 2.0 * m * k)
            sizes = m, k, operands.quantized, cold
            by_rows = launched.by_rows
            kernels = (quantize_by_rows(*sizes) if by_rows else quantize(row.fields, *sizes),)
        return MeasuredKernels(
            kernels=kernels,
            choices=choices_of(product, row.dtype, row.fields, met.sip, library),
            machine=met,
            extra_us=harness.added_us(machine) + launched.device_of(m, k),
            least_us=max(harness.host_us, launched.host_of(m, k)),
            least_share=launched.share,
        )


def _in_library(row: Row, machine: Machine) -> bool:
    """Return whether the vendor's library answers a row rather than the Triton kernel."""
    if "framework" in row.fields or row.dtype not in GEMM_DTYPES:
        return True
    if "aiter" in row.source and maker_of(row.fields["impl"]) != "torch":
        return (row.dtype, machine.spec.kernel_library) in _IN_LIBRARY
    return library_of(row, machine) is not None


def _cold(machine: Machine, harness: Harness, reused_bytes: float) -> float:
    """Return the share of data that HBM brings when so many bytes come between its uses."""
    cache = machine.sip.cache
    if not harness.weight_buffers or cache is None:
        return 1.0
    return 1.0 - float(kept_share(int(reused_bytes), cache))


def _met(machine: Machine, harness: Harness, repeated: float) -> Machine:
    return harness.met(machine, repeated)
