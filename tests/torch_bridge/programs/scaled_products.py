"""Products of 8-bit floats with a scale for each row, by CUTLASS as vLLM builds it."""

import sys

import torch

sys.path.insert(0, sys.argv[1])
import engine._C  # noqa: F401

for m, n, k in ((32, 65536, 51200), (128, 51200, 10240), (16, 8192, 8192), (17, 8192, 8192)):
    a = torch.empty(m, k, device="cuda", dtype=torch.float8_e4m3fn)
    b = torch.empty(n, k, device="cuda", dtype=torch.float8_e4m3fn).t()
    scales = torch.ones(m, 1, device="cuda"), torch.ones(1, n, device="cuda")
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    torch.ops.engine_ops.cutlass_scaled_mm(out, a, b, *scales, None)
