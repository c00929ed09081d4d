"""Collectives on the links of the machine.

python distributed.py CASE [FOLDER]
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)


def names(folder: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    pair = dist.new_group([0, 1])
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("a", "b"))
    gloo = dist.new_group(backend="gloo")
    said = {
        "backend": dist.get_backend(),
        "gloo": dist.get_backend(gloo),
        "inside": dist.get_rank(pair),
        "row": dist.get_process_group_ranks(mesh["b"].get_group()),
        "column": dist.get_process_group_ranks(mesh["a"].get_group()),
    }
    (Path(folder) / f"rank{rank}.json").write_text(json.dumps(said))


def all_reduce() -> None:
    dist.all_reduce(torch.empty(1 << 16, device="cuda"))


def wait() -> None:
    x = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(x, async_op=True).wait()
    x.add_(1)


def on_the_host() -> None:
    dist.all_reduce(torch.ones(4), group=dist.new_group(backend="gloo"))
    dist.barrier()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
