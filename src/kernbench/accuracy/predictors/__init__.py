"""What kernels take that users time themselves: products, operations on rows, collectives."""

from kernbench.accuracy.predictors.attention import launches_of
from kernbench.accuracy.predictors.collectives import PS_PER_US, alone_ps, asked_of
from kernbench.accuracy.predictors.gemm import GEMM_DTYPES, library_of, problem_of
from kernbench.accuracy.predictors.membound import ROW_DTYPES, RowKernels, why_no_kernel
