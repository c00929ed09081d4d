"""One rank of four makes a mistake in a line, which may say ``bad``, ``peer`` and ``other`` ranks.

python planted.py BACKEND RANK LINE: its place is line 1 of mistake.py
"""

import sys

import torch
import torch.distributed as dist

backend, p = sys.argv[1], int(sys.argv[2])
dist.init_process_group(backend)
r, n = dist.get_rank(), dist.get_world_size()
bad, peer, other = r == p, r ^ 1, (p + 1) % 4
device = "cpu"
if backend == "nccl":
    device = "cuda"
    torch.cuda.set_device(r)


def T(*shape, **options):
    return torch.ones(*shape, device=device, **options)


x, o = T(8), T(8)
exec(compile(sys.argv[3], "mistake.py", "exec"))
