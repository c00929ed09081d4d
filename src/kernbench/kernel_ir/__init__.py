"""TTIR text to typed SSA, and its evaluation for all programs of a grid at once."""

from kernbench.kernel_ir.analysis.footprints import (
    Footprint,
    OutOfBounds,
    footprints,
    out_of_bounds,
    touched,
)
from kernbench.kernel_ir.analysis.layouts import (
    NO_CUDA,
    MatrixUnit,
    lies_across,
    log2,
    matrix_unit,
    multiplies_as_float16,
    reduced_bits,
)
from kernbench.kernel_ir.analysis.tcm import TcmTile, TcmUse, tcm_use
from kernbench.kernel_ir.evaluate import evaluate, parse_module
from kernbench.kernel_ir.evaluation.evaluator import Evaluator, SplitPrograms, UnrollLoops
from kernbench.kernel_ir.evaluation.integers import (
    AS_SIGNED,
    BINARY,
    BOOLEAN_BINARY,
    COMPARISONS,
    PREDICATES,
    compare_arrays,
    elementwise,
    wrap,
)
from kernbench.kernel_ir.evaluation.overflow import CARRIES_ON, address_arithmetic
from kernbench.kernel_ir.evaluation.planned import makes_pointers, written_params
from kernbench.kernel_ir.evaluation.values import ABSOLUTE, Descriptor, Held, Pointer
from kernbench.kernel_ir.ops import COSTS, HANDLERS, choose_both_ways, emit_load, iterations_of
from kernbench.kernel_ir.ops.descriptors import DESCRIPTOR_MARK, check_alignment
from kernbench.kernel_ir.text.ir import Block, Module, Op, Region, Value, arith
