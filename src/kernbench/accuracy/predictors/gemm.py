"""Products: kernbench's own kernel in Triton, with the fastest tile of its library."""

from __future__ import annotations

from kernbench.accuracy.rows import Answer, Machines, Ran, Row
from kernbench.dtypes import DType, bfloat16, float8_e4m3fn, float16, float32
from kernbench.errors import MachineError
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
        """Return the modeled time of the product that the row measured."""
        if row.op != "gemm":
            return Answer(None, f"no kernel for op {row.op}")
        dtype = GEMM_DTYPES.get(row.dtype)
        if dtype is None:
            return Answer(None, f"no Triton dtype for {row.dtype}")
        machine = self._machines.machine_of(row.device)
        try:
            best = self._tuner.tune(problem_of(row, dtype), machine)
        except MachineError as error:
            return Answer(None, str(error).split(";")[0])
        return Answer(best.kernel_us, how=str(best.tile), ran=Ran.KERNELS)
