"""SyncBatchNorm in both directions, with autocast and without.

python sync_batch_norm_times.py [mask] selects by another mask at the end.
"""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
layer = torch.nn.SyncBatchNorm(6).cuda()
for dtype in (torch.float32, torch.bfloat16):
    x = torch.randn(4, 6, 5, 3, device="cuda", dtype=dtype, requires_grad=True)
    with torch.autocast("cuda", torch.bfloat16, enabled=dtype is torch.bfloat16):
        y = layer(x)
    y.sum().backward()
    assert y.dtype == x.grad.dtype == dtype
    assert y.shape == x.grad.shape == x.shape
    assert layer.weight.grad.shape == (6,)
if sys.argv[1:]:
    c = torch.randn(2, 1, device="cuda")
    c[c[:, 0] >= 1]
