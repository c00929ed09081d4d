"""Kernels that Inductor tunes as they first run, of which one writes where it reads."""

import torch
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

num_tuned = 0
choose = CachingAutotuner.benchmark_all_configs


def count(*args, **kwargs):
    global num_tuned
    num_tuned += 1
    return choose(*args, **kwargs)


CachingAutotuner.benchmark_all_configs = count
x, w = torch.randn(64, 64), torch.randn(64, 64)
weight = w.cuda().requires_grad_()
torch.compile(lambda x: (x @ weight).sin().sum())(x.cuda()).backward()
w.requires_grad_()
(x @ w).sin().sum().backward()
assert torch.allclose(weight.grad.cpu(), w.grad, rtol=1e-4, atol=1e-4)
CachingAutotuner.benchmark_all_configs = choose
print(num_tuned)

# Templates are tried on operands that the compiler makes up.
tuned = torch.compile(lambda x, w: (x @ w).relu(), mode="max-autotune-no-cudagraphs")
result = tuned(x.cuda().bfloat16(), w.detach().cuda().bfloat16())
expected = (x.bfloat16().float() @ w.detach().bfloat16().float()).relu()
assert torch.allclose(result.cpu().float(), expected, rtol=0.02, atol=0.02)
