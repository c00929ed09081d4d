"""Triton kernels that ship with kernbench, each with a thin function on tensors.

They go through Triton like a user's kernels do. Importing this package makes them the operators
of tensors: ``a + b``, ``a @ b``, ``a.to(dtype)``.
"""

import sys

from kernbench.ops.attention import attention, attention_with_lse
from kernbench.ops.attention_backward import attention_backward
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
from kernbench.ops.fused import (
    bias_activation,
    bias_gelu_backward,
    bias_residual,
    gated,
    gated_backward,
    residual_norm,
    rms_norm,
)
from kernbench.ops.heads import join_heads, split_heads
from kernbench.ops.masked_softmax import masked_softmax, softmax_backward
from kernbench.ops.normalization import layer_norm, norm_backward, softmax
from kernbench.ops.optimizers import adamw_
from kernbench.ops.products.gemm import linear, matmul
from kernbench.ops.products.gemm_library import TileChoice, library_tiles, use_tiles
from kernbench.ops.products.gemm_tiles import GemmTile, matmul_tiled
from kernbench.ops.reductions import mean, sum
from kernbench.ops.torch_names.contractions import bmm, einsum, mm
from kernbench.ops.torch_names.extremes import (
    ValuesAndIndices,
    all,
    amax,
    amin,
    any,
    argmax,
    argmin,
    max,
    min,
)
from kernbench.ops.torch_names.functions import (
    abs,
    clamp,
    cos,
    pow,
    reciprocal,
    rsqrt,
    sigmoid,
    sin,
    square,
    tanh,
)
from kernbench.ops.torch_names.sorting import argsort, sort, topk
from kernbench.ops.torch_names.statistics import allclose, cumsum, equal, isclose, norm, std, var
from kernbench.ops.torch_names.surface import TENSOR_METHODS as TENSOR_METHODS
from kernbench.ops.torch_names.surface import TORCH_FUNCTIONS as TORCH_FUNCTIONS
from kernbench.runtime_api import register_operators

# isort: split
# For packages above that time a kernel without a run of its own; not for users, so not listed.
from kernbench.ops.probe import ELEMENTWISE_OPS as ELEMENTWISE_OPS
from kernbench.ops.probe import ROW_OPS as ROW_OPS
from kernbench.ops.probe import KernelCall as KernelCall
from kernbench.ops.probe import KernelProbe as KernelProbe
from kernbench.ops.probe import ProbePointer as ProbePointer
from kernbench.ops.probe import elementwise_call as elementwise_call
from kernbench.ops.probe import product_call as product_call
from kernbench.ops.probe import record_launches as record_launches
from kernbench.ops.probe import rows_call as rows_call
from kernbench.ops.probe import sum_parts_call as sum_parts_call
from kernbench.ops.products.gemm import gemm_blocks as gemm_blocks
from kernbench.ops.products.gemm_library import in_stages as in_stages
from kernbench.ops.products.gemm_library import takes_shared_operands as takes_shared_operands
from kernbench.ops.products.gemm_tiles import sum_parts_launch as sum_parts_launch

__all__ = [
    "GemmTile",
    "TileChoice",
    "ValuesAndIndices",
    "abs",
    "adamw_",
    "add",
    "add_",
    "all",
    "allclose",
    "amax",
    "amin",
    "any",
    "argmax",
    "argmin",
    "argsort",
    "attention",
    "attention_backward",
    "attention_with_lse",
    "bias_activation",
    "bias_gelu_backward",
    "bias_residual",
    "bmm",
    "cast",
    "clamp",
    "concat",
    "copy_strided",
    "cos",
    "cross_entropy_backward",
    "cumsum",
    "div",
    "einsum",
    "embedding",
    "embedding_backward",
    "eq",
    "equal",
    "exp",
    "exp_sum",
    "fill",
    "gated",
    "gated_backward",
    "gather_target",
    "ge",
    "gelu",
    "gelu_backward",
    "gt",
    "isclose",
    "join_heads",
    "layer_norm",
    "le",
    "library_tiles",
    "linear",
    "log",
    "lt",
    "masked_softmax",
    "matmul",
    "matmul_tiled",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mm",
    "mul",
    "mul_",
    "ne",
    "neg",
    "norm",
    "norm_backward",
    "pow",
    "reciprocal",
    "relu",
    "relu_backward",
    "residual_norm",
    "rms_norm",
    "row_max",
    "rsqrt",
    "sigmoid",
    "silu",
    "sin",
    "softmax",
    "softmax_backward",
    "sort",
    "split_heads",
    "sqrt",
    "square",
    "std",
    "sub",
    "sum",
    "tanh",
    "topk",
    "use_tiles",
    "var",
    "where",
]

register_operators(sys.modules[__name__])
