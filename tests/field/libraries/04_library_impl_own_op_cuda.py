# A library's own operator is a Triton kernel, registered as vLLM and SGLang do.
# run: kernbench torchrun {file}
# expect: (?s)tensor\(\[2\., 2\., 2\.\]\).*tensor\(\[2\., 2\., 2\.\]\)
# never: Error

import torch
import triton
import triton.language as tl


@triton.jit
def double_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


def double(x):
    y = torch.empty_like(x)
    double_kernel[(1,)](x, y, x.numel(), BLOCK=64)
    return y


library = torch.library.Library("mylib", "FRAGMENT")
for name, key in (("double", "CUDA"), ("twice", "CompositeExplicitAutograd")):
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, double, key)
    try:
        print(getattr(torch.ops.mylib, name)(torch.ones(3, device="cuda")).cpu())
    except Exception as error:
        print(key, type(error).__name__, str(error)[:150])
