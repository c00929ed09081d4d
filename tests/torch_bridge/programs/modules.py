"""A network whose modules stand in lists, in others, call collectives, run again or are sharded."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH, TOKENS, LAYERS = 64, 32, 3


class Block(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Sequential(nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.kind = kind

    def forward(self, x):
        y = self.down(self.up(self.norm(x)))
        if self.kind == "summed":
            dist.all_reduce(y)
        return x + y


class Net(nn.Module):
    def __init__(self, kind="plain"):
        super().__init__()
        self.embedding = nn.Embedding(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Block(kind) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)
        self.kind = kind

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            if self.kind == "checkpointed":
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return self.head(x @ x.mT @ x)


def step(net, device="cpu"):
    """Train the network once."""
    tokens = torch.arange(TOKENS, device=device)
    functional.cross_entropy(net(tokens), tokens).backward()


if __name__ == "__main__":
    dist.init_process_group()
    net = Net(sys.argv[1]).cuda()
    if net.kind == "sharded":
        for layer in net.layers:
            fully_shard(layer)
        fully_shard(net)
    step(net, "cuda")
