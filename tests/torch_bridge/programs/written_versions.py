"""Versions of tensors that collectives have written, as autograd counts them.

python written_versions.py DEVICE FOLDER
"""

import sys

import torch
import torch.distributed as dist

device, folder = sys.argv[1:]
dist.init_process_group("gloo" if device == "cpu" else "nccl")
rank, size = dist.get_rank(), dist.get_world_size()
result = {}


def note(name, collective):
    x = torch.ones(4, device=device, requires_grad=True)
    y = torch.relu(x)
    with torch.no_grad():
        collective(y)
    y.sum().backward()
    result[name] = y._version


def ones(many=4):
    return torch.ones(many, device=device)


note("all_reduce", dist.all_reduce)
note("of a view", lambda y: dist.all_reduce(y[1:3]))
note("broadcast", lambda y: dist.broadcast(y, 0))
note("reduce", lambda y: dist.reduce(y, 0))
note("all_to_all_single", lambda y: dist.all_to_all_single(y, ones()))
note("scatter", lambda y: dist.scatter(y, [ones() for _ in range(size)] if rank == 0 else None))
note("send and recv", lambda y: dist.send(ones(), 1) if rank == 0 else dist.recv(y, 0))
with torch.inference_mode():
    dist.all_reduce(ones())
parts = [ones() for _ in range(size)]
dist.all_gather(parts, ones())
result["all_gather"] = parts[0]._version
torch.save(result, f"{folder}/{device}{rank}.pt")
dist.destroy_process_group()
