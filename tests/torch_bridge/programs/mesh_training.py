"""A decoder block on a mesh: tensor and sequence parallel, FSDP2, loss_parallel, a checkpoint.

arguments: folder, device type (cuda or cpu), whether to go on from the checkpoint. Weights are made
on the host and then distributed, so that they are the same on every sort of device.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

VOCAB, WIDTH, HEADS, SEQUENCE, BATCH, STEPS = 32, 16, 4, 8, 2, 2
folder, device_type, resume = sys.argv[1], sys.argv[2], sys.argv[3] == "resume"

torch.set_default_dtype(torch.bfloat16)
dist.init_process_group("nccl" if device_type == "cuda" else "gloo")
rank = dist.get_rank()
device = torch.device(device_type)
if device_type == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh(device_type, (2, 2), mesh_dim_names=("dp", "tp"))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.attention, self.mlp = nn.Identity(), nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.attention(self.norm1(x))
        q, k, v = (f(h).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for f in self.qkv)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(h.transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.mlp(self.norm2(x)))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.block = Block()
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.block(self.embedding(tokens))))


with torch.device("meta"):
    model = Model()
whole = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
parallelize_module(
    model.block,
    mesh["tp"],
    {
        "norm1": SequenceParallel(),
        "attention": whole,
        **{f"qkv.{index}": ColwiseParallel() for index in range(3)},
        "out": RowwiseParallel(output_layouts=Shard(1)),
        "norm2": SequenceParallel(),
        "mlp": whole,
        "up": ColwiseParallel(),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    },
)
parallelize_module(
    model,
    mesh["tp"],
    {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
    },
)
fully_shard(model.block, mesh=mesh["dp"])
fully_shard(model, mesh=mesh["dp"])
model.to_empty(device=device)
torch.manual_seed(7)
with torch.no_grad():
    for name, parameter in model.named_parameters():
        value = torch.ones(parameter.shape) if "norm" in name else torch.randn(parameter.shape) / 4
        tensor = distribute_tensor(value.to(device), parameter.device_mesh, parameter.placements)
        parameter.copy_(tensor)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
if resume:
    torch.manual_seed(9)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    dcp.load(state, checkpoint_id=f"{folder}/checkpoint")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])

losses = []
for step in range(STEPS):
    torch.manual_seed(100 * step + mesh["dp"].get_local_rank())
    tokens = torch.randint(VOCAB, (BATCH, SEQUENCE + 1)).to(device)
    with loss_parallel():
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
if not resume:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    dcp.save(state, checkpoint_id=f"{folder}/checkpoint")
parameters = {
    name: parameter.to_local().detach().cpu() for name, parameter in model.named_parameters()
}
name = "resumed" if resume else "rank"
torch.save({"losses": losses, "parameters": parameters}, f"{folder}/{name}{rank}.pt")
dist.destroy_process_group()
