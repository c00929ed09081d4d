"""Tensor-parallel layers by hand: column shards, all_gather, an explicit backward pass, AdamW.

Runs on as many processes as there are; writes parameters and gradients to the folder in argv[1].
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

LAYERS, ROWS, WIDTH = 3, 4, 16


def device_of(rank: int) -> torch.device:
    if torch.cuda.is_available():
        return torch.device(f"cuda:{rank}")
    return torch.device("cpu")


def gathered(part: torch.Tensor, world_size: int) -> torch.Tensor:
    parts = [torch.empty_like(part) for _ in range(world_size)]
    dist.all_gather(tensor_list=parts, tensor=part)
    return torch.cat(parts, dim=1)


def worker(rank: int, world_size: int, x: torch.Tensor, folder: str) -> None:
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "29917"
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=world_size)
    local = WIDTH // world_size
    weights = []
    for layer in range(LAYERS):
        torch.manual_seed(10 * layer)
        weight = torch.randn(WIDTH, local, device=device_of(rank)) / WIDTH**0.5
        weights.append(torch.nn.Parameter(weight))
    optimizer = torch.optim.AdamW(weights, lr=1e-2)
    x = x.to(device_of(rank))
    inputs, sums = [], []
    for weight in weights:
        inputs.append(x)
        sums.append(x @ weight)
        x = gathered(F.gelu(sums[-1], approximate="tanh"), world_size)
    loss = x.square().mean()
    grad = 2 * x / x.numel()
    for layer in reversed(range(LAYERS)):
        mine = grad[:, rank * local : (rank + 1) * local]
        with torch.enable_grad():
            value = sums[layer].detach().requires_grad_()
            F.gelu(value, approximate="tanh").backward(mine)
        weights[layer].grad = inputs[layer].T @ value.grad
        partial = value.grad @ weights[layer].T
        dist.all_reduce(partial)
        grad = partial.detach()
    optimizer.step()
    print(f"rank {rank}: loss {loss.item():.6f}")
    torch.save(
        {
            "weights": [weight.detach().cpu() for weight in weights],
            "grads": [weight.grad.cpu() for weight in weights],
            "loss": loss.item(),
        },
        f"{folder}/rank{rank}.pt",
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.manual_seed(1)
    mp.spawn(worker, args=(2, torch.randn(ROWS, WIDTH), sys.argv[1]), nprocs=2)
