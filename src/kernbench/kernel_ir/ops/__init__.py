"""What each TTIR operation does: a handler per operation, a file per dialect."""

from kernbench.kernel_ir.ops import arith, cf, descriptors, math, reduce, scf, shapes, tt
from kernbench.kernel_ir.ops.registry import Handler, joined

HANDLERS: dict[str, Handler] = joined(
    arith.DIALECT,
    cf.DIALECT,
    descriptors.DIALECT,
    math.DIALECT,
    reduce.DIALECT,
    scf.DIALECT,
    shapes.DIALECT,
    tt.DIALECT,
)

__all__ = ["HANDLERS", "Handler"]
