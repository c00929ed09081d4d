# vLLM 0.33's own fused MoE kernel: 1.07 GFLOP and 10.5 MB in tens of microseconds.
# run: kernbench torchrun --machine h100-sxm {file}
# needs: vllm
# expect: within: True

import sys

sys.path.insert(0, str(__import__("pathlib").Path(__file__).parent))
import torch
import triton.language as tl
import vllm_stubs  # noqa: F401  stubs of vllm, the kernel is the wheel's
from vllm.model_executor.layers.fused_moe.fused_moe import invoke_fused_moe_triton_kernel

M, K, N, E, top, block = 512, 1024, 512, 8, 2, 128
x = torch.randn(M, K, device="cuda").bfloat16()
w = torch.randn(E, N, K, device="cuda").bfloat16()
c = torch.empty(M, top, N, device="cuda", dtype=torch.bfloat16)
weights = torch.rand(M, top, device="cuda")
tokens = torch.arange(M * top, dtype=torch.int32).cuda()
experts = (torch.arange(M * top // block, dtype=torch.int32) % E).cuda()
padded = torch.tensor([M * top], dtype=torch.int32).cuda()
config = dict(
    BLOCK_SIZE_M=block,
    BLOCK_SIZE_N=128,
    BLOCK_SIZE_K=64,
    GROUP_SIZE_M=8,
    SPLIT_K=1,
    num_warps=8,
    num_stages=4,
)
for _ in range(2):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    invoke_fused_moe_triton_kernel(
        x,
        w,
        c,
        None,
        None,
        weights,
        tokens,
        experts,
        padded,
        False,
        top,
        config,
        tl.bfloat16,
        False,
        False,
        False,
        False,
        False,
    )
    end.record()
    torch.cuda.synchronize()
us = start.elapsed_time(end) * 1000
print(f"{start.elapsed_time(end) * 1000:.1f} us")
print("within:", us < 3 * 10)
