"""What each TTIR operation does: a handler per operation, a file per dialect."""

from kernbench.kernel_ir.ops import (
    arith,
    atomics,
    cf,
    descriptors,
    diagnostics,
    gluon,
    lookup,
    math,
    mx,
    reduce,
    regions,
    scf,
    shapes,
    tt,
)
from kernbench.kernel_ir.ops.atomics import emit_load
from kernbench.kernel_ir.ops.registry import joined
from kernbench.kernel_ir.ops.scf import choose_both_ways, iterations_of

_MODULES = (
    arith, atomics, cf, descriptors, diagnostics, gluon, math, lookup, mx, reduce, regions, scf,
    shapes, tt,
)  # fmt: skip
_ALL = joined(*(module.DIALECT for module in _MODULES))

HANDLERS = _ALL.handlers
RULES = _ALL.rules
COSTS = _ALL.costs
