"""Products beside all-reduces, and on two streams.

python overlapping.py FOLDER
"""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
x = torch.ones(512, 512, device="cuda")
w = torch.ones(512, 512, device="cuda")
large = torch.ones(16, 512, 512, device="cuda")
side = torch.cuda.Stream()
for _ in range(3):
    y = x @ w
    pending = dist.all_reduce(large, async_op=True)
    z = torch.relu(x) @ w
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        u = z @ w
        v = u @ w
    pending.wait()
    t = y + y
    torch.cuda.current_stream().wait_stream(side)
    x = t + v
    torch.cuda.synchronize()
print(x.sum().item())
