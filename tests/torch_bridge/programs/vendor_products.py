"""Products by Triton's handle on cuBLASLt, as its tutorials make them to compare with."""

from typing import Any

import torch
from triton._C import libtriton

nvidia: Any = libtriton.nvidia
torch.manual_seed(0)
a, b, added = torch.randn(48, 32), torch.randn(64, 32), torch.randn(48, 64)
out = torch.empty(48, 64, device="cuda")
blas = nvidia.cublas.CublasLt(torch.empty(1024, device="cuda", dtype=torch.uint8))
blas.matmul(a.cuda(), b.cuda(), out)
torch.testing.assert_close(out.cpu(), a @ b.t())
blas.gemm(a.cuda(), b.cuda(), added.cuda(), out, 2.0, 0.5)
torch.testing.assert_close(out.cpu(), 2 * (a @ b.t()) + added / 2)
refused = ""
try:
    blas.block_scaled_matmul_mxfp8(a, b, out, a, b)
except NotImplementedError as error:
    refused = str(error)
assert "CublasLt.block_scaled_matmul_mxfp8" in refused
