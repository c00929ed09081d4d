"""DDP with an optimizer, beside it a stream, events, copies, reads, a Triton kernel and a poll."""

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@triton.jit
def double(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)


dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
layers = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64))
model = DistributedDataParallel(layers.cuda(), device_ids=[rank])
optimizer = torch.optim.AdamW(model.parameters())
side, ready = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
for _ in range(2):
    x = torch.randn(32, 64).cuda()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.cuda.stream(side):
        side.wait_stream(torch.cuda.default_stream())
        y = torch.empty_like(x)
        double[(2,)](x, y, x.numel(), BLOCK=1024)
        ready.record()
    torch.cuda.current_stream().wait_event(ready)
    total = y.sum()
    work = dist.all_reduce(total, async_op=True)
    x @ x.T
    work.wait()
    total.item()
    if rank == 0:
        dist.send(y, dst=1)
    elif rank == 1:
        dist.recv(y, src=0)
query = torch.randn(1, 2, 128, 64, device="cuda", dtype=torch.float16)
nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
nn.Conv2d(3, 8, 3).cuda()(torch.randn(2, 3, 32, 32, device="cuda"))
dist.barrier()
torch.cuda.synchronize()
ready.elapsed_time(ready)
