"""Triton kernels that ship with kernbench, each with a thin function on tensors.

They go through Triton like a user's kernels do. Importing this package makes them the operators
of tensors: ``a + b``, ``a @ b``, ``a.to(dtype)``.
"""

import sys

from kernbench.ops.cross_entropy import cross_entropy_backward, exp_sum, gather_target, row_max
from kernbench.ops.elementwise import (
    add,
    add_,
    cast,
    concat,
    copy_strided,
    div,
    eq,
    exp,
    fill,
    ge,
    gelu,
    gelu_backward,
    gt,
    le,
    log,
    lt,
    maximum,
    minimum,
    mul,
    mul_,
    ne,
    neg,
    relu,
    relu_backward,
    silu,
    sqrt,
    sub,
    where,
)
from kernbench.ops.embedding import embedding, embedding_backward
from kernbench.ops.gemm import linear, matmul
from kernbench.ops.gemm_tiles import GemmTile, matmul_tiled
from kernbench.ops.launches import (
    ELEMENTWISE_OPS,
    ROW_OPS,
    KernelCall,
    elementwise_call,
    product_call,
    rows_call,
    sum_parts_call,
)
from kernbench.ops.normalization import layer_norm, softmax
from kernbench.ops.optimizers import adamw_
from kernbench.ops.probe import KernelProbe, Pointer
from kernbench.ops.reductions import amax, mean, sum
from kernbench.runtime_api import operators

__all__ = [
    "ELEMENTWISE_OPS",
    "ROW_OPS",
    "GemmTile",
    "KernelCall",
    "KernelProbe",
    "Pointer",
    "adamw_",
    "add",
    "add_",
    "amax",
    "cast",
    "concat",
    "copy_strided",
    "cross_entropy_backward",
    "div",
    "elementwise_call",
    "embedding",
    "embedding_backward",
    "eq",
    "exp",
    "exp_sum",
    "fill",
    "gather_target",
    "ge",
    "gelu",
    "gelu_backward",
    "gt",
    "layer_norm",
    "le",
    "linear",
    "log",
    "lt",
    "matmul",
    "matmul_tiled",
    "maximum",
    "mean",
    "minimum",
    "mul",
    "mul_",
    "ne",
    "neg",
    "product_call",
    "relu",
    "relu_backward",
    "row_max",
    "rows_call",
    "silu",
    "softmax",
    "sqrt",
    "sub",
    "sum",
    "sum_parts_call",
    "where",
]

operators.register(sys.modules[__name__])
