"""A compiled function whose kernels Inductor tries while it compiles."""

import torch
import torch._inductor.config as inductor


def two(a, b):
    return a.sin() + 1, b.cos() * 2


inductor.triton.autotune_at_compile_time = True
a, b = torch.rand(64, 32, device="cuda"), torch.rand(128, 16, device="cuda")
result = torch.compile(two)(a, b)
for compiled, eager in zip(result, two(a.cpu(), b.cpu()), strict=True):
    torch.testing.assert_close(compiled.cpu(), eager)
print("as on the host")
