"""Memory-bound rows: the Triton kernels of kernbench.ops on the row's machine."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from kernbench.dtypes import DType, bfloat16, float16, float32
from kernbench.errors import MachineError
from kernbench.ops import scalar_functions as fn
from kernbench.ops.elementwise import elementwise_flat
from kernbench.ops.normalization import layer_norm_rows, softmax_rows
from kernbench.ops.promotion import compute_dtype
from kernbench.ops.rows import row_blocks
from kernbench.ops.rows_in_passes import layer_norm_in_passes, softmax_in_passes
from kernbench.sim_engine import Conditions, schedule_kernel
from kernbench.validation.devices import machine_of
from kernbench.validation.harness import membound_harness
from kernbench.validation.predictor import Answer
from kernbench.validation.probe import KernelProbe, Pointer
from kernbench.validation.reference import Row

DTYPES = {"bf16": bfloat16, "fp16": float16, "fp32": float32}

# By op: what every element is, and of how many operands.
_ELEMENTWISE = {
    "add": (fn.add, 2),
    "mul": (fn.mul, 2),
    "relu": (fn.relu, 1),
    "gelu": (fn.gelu, 1),
    "silu_mul": (fn.silu_mul, 2),
}
_BLOCK = 1024
_WIDEST_ROW = 1 << 17


class MemboundPredictor:
    """Answers rows of elementwise operations, softmax and layer norm."""

    def __init__(self) -> None:
        self._probe = KernelProbe()
        self._traces = lru_cache(maxsize=64)(self._trace)

    def predict(self, row: Row) -> Answer:
        dtype = DTYPES.get(row.dtype)
        if dtype is None:
            return Answer(None, f"no Triton dtype for {row.dtype}")
        if row.op not in (*_ELEMENTWISE, "softmax", "layernorm"):
            return Answer(None, f"no kernel for op {row.op}")
        machine = machine_of(row.device)
        rows, cols = row.integer("rows"), row.integer("cols")
        if row.op not in _ELEMENTWISE and cols > _WIDEST_ROW:
            return Answer(None, f"{row.op} of rows longer than {_WIDEST_ROW} elements")
        harness = membound_harness(row.source, machine.name, row.op)
        conditions = Conditions()
        if harness.row_kib:
            # Every pass but the first finds what the caches still have of the row.
            warm = harness.warm_row(cols * dtype.itemsize)
            passes = ((2, warm), (3, warm)) if row.op == "softmax" else ((2, warm),)
            conditions = Conditions(cached=passes)
        try:
            trace = self._traces(row.op, dtype, rows, cols, bool(harness.row_kib))
            kernel_us = schedule_kernel(trace, machine, 0, conditions).duration_ps / 1e6
        except MachineError as error:
            return Answer(None, str(error).split(";")[0])
        return Answer(harness.time_us(kernel_us, cols), how=trace.name)

    def _trace(self, op: str, dtype: DType, rows: int, cols: int, in_passes: bool) -> Any:
        tensor, compute = Pointer(dtype), {"COMPUTE": compute_dtype(dtype)}
        if op in _ELEMENTWISE:
            function, operands = _ELEMENTWISE[op]
            size = rows * cols
            slots = (tensor,) * operands + (None,) * (3 - operands)
            options = {**compute, "FUNCTION": function, "BLOCK": _BLOCK}
            grid = (-(-size // _BLOCK),)
            return self._probe.trace(elementwise_flat, grid, (tensor, *slots, size), options)
        blocks = row_blocks(rows, cols)
        grid = (-(-rows // blocks["BLOCK_M"]),)
        strides = (rows, cols, cols, 1, cols, 1)
        options = {**compute, **blocks}
        args: tuple[Any, ...]
        if op == "softmax":
            kernel = softmax_in_passes if in_passes else softmax_rows
            args = (tensor,) * (4 if in_passes else 2) + strides
        elif in_passes:
            kernel, args = layer_norm_in_passes, ((tensor,) * 5 + (1e-5, *strides))
        else:
            kernel, args = layer_norm_rows, ((tensor,) * 4 + (1e-5, *strides, 1, 1))
        return self._probe.trace(kernel, grid, args, options)
