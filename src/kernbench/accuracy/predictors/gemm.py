"""Products: the vendor library's kernels that ``torch.mm`` runs, or kernbench's own kernel."""

from __future__ import annotations

from kernbench.accuracy.rows import Answer, Machines, Ran, Row
from kernbench.dtypes import DType, bfloat16, float8_e4m3fn, float16, float32
from kernbench.errors import MachineError
from kernbench.hardware import KernelLibrary, Machine, load_library
from kernbench.library_kernels import Product, family_of, product_kernels, times_of
from kernbench.plans import GemmTuner, Problem

GEMM_DTYPES = {"bf16": bfloat16, "fp16": float16, "fp32": float32, "fp8": float8_e4m3fn}


def problem_of(row: Row, dtype: DType) -> Problem:
    """Return the product that a row measured."""
    return Problem(row.integer("m"), row.integer("n"), row.integer("k"), dtype)


class GemmPredictor:
    """Predicts products whose operands come from memory."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._tuner = GemmTuner()

    def predict(self, row: Row) -> Answer:
        """Return the modeled time of the product that the row measured.

        Rows whose ``impl`` names Triton, and machines whose library has no products, are answered
        by kernbench's own kernel with its fastest tile.
        """
        if row.op != "gemm":
            return Answer(None, f"no kernel for op {row.op}")
        dtype = GEMM_DTYPES.get(row.dtype)
        if dtype is None:
            return Answer(None, f"no Triton dtype for {row.dtype}")
        machine, problem = self._machines.machine_of(row.device), problem_of(row, dtype)
        sip, library = machine.sip, library_of(row, machine)
        try:
            if library is None:
                best = self._tuner.tune(problem, machine)
                return Answer(best.kernel_us, how=str(best.tile), ran=Ran.KERNELS)
            product = Product(
                m=problem.m,
                n=problem.n,
                k=problem.k,
                dtype=dtype.name,
                itemsize=dtype.itemsize,
                out_bytes=max(dtype.itemsize, 2),
                part_bytes=2 if dtype.itemsize == 2 else 4,
            )
            launches = product_kernels(product, sip, library).kernels
            times = times_of(launches, sip, library, queued=True)
            name = f"blas_{family_of(dtype.name)}"
            return Answer(sum(time.total_us for time in times), how=name, ran=Ran.LIBRARY)
        except MachineError as error:
            return Answer(None, str(error).split(";")[0])


def library_of(row: Row, machine: Machine) -> KernelLibrary | None:
    """Return the vendor's library whose kernels a row's product is timed by; None for our own."""
    architecture, dtype = machine.spec.kernel_library, GEMM_DTYPES.get(row.dtype)
    if architecture is None or dtype is None or "triton" in row.fields.get("impl", "").lower():
        return None
    library = load_library(architecture)
    return library if f"blas_{family_of(dtype.name)}" in library.names() else None
