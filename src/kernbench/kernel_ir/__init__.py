"""TTIR text to typed SSA, and its evaluation for all programs of a grid at once."""

from kernbench.kernel_ir.evaluate import evaluate
from kernbench.kernel_ir.footprints import Footprint, OutOfBounds, footprints, out_of_bounds
from kernbench.kernel_ir.ir import Function, Module, Op, Parameter, Type, Value
from kernbench.kernel_ir.parser import parse_module
from kernbench.kernel_ir.tcm import TcmTile, TcmUse, tcm_use

__all__ = [
    "Footprint",
    "Function",
    "Module",
    "Op",
    "OutOfBounds",
    "Parameter",
    "TcmTile",
    "TcmUse",
    "Type",
    "Value",
    "evaluate",
    "footprints",
    "out_of_bounds",
    "parse_module",
    "tcm_use",
]
