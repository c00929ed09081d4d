"""Steps of a decoder on one long text, which ranks share by PyTorch's context parallelism.

long_context.py TOKENS CONTEXT_RANKS LAYERS HIDDEN HEADS (allgather|alltoall)

Weights are sharded over all ranks; other rows of as many ranks have texts of their own.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method
from torch.nn.attention import SDPBackend, sdpa_kernel

STEPS = 2
tokens, ranks_of_text, layers, hidden, heads = map(int, sys.argv[1:6])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
texts = dist.get_world_size() // ranks_of_text
mesh = init_device_mesh("cuda", (texts, ranks_of_text), mesh_dim_names=("dp", "cp"))
shards = mesh["dp", "cp"]._flatten("dp_cp")
set_rotate_method(sys.argv[6])


class Layer(nn.Module):
    """One layer of a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(hidden), nn.RMSNorm(hidden)])
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.up = nn.Linear(hidden, 4 * hidden, bias=False)
        self.down = nn.Linear(4 * hidden, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the next layer's input."""
        parts = self.qkv(self.norms[0](x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = nn.Sequential(*[Layer() for _ in range(layers)])
for item in model:
    fully_shard(item, mesh=shards)
fully_shard(model, mesh=shards)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
text = torch.ones(1, tokens, hidden, device="cuda")
for _ in range(STEPS):
    torch.cuda.synchronize()
    start = time.perf_counter()
    attention = sdpa_kernel([SDPBackend.FLASH_ATTENTION])
    with attention, context_parallel(mesh["cp"], buffers=(text,), buffer_seq_dims=(1,)):
        model(text).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    took_s = time.perf_counter() - start
    if dist.get_rank() == 0:
        print(f"step {took_s:.6f} s")
