"""Programs whose ranks may be folded: ``folded.py CASE``."""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

WIDTH = 128
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank, ranks = dist.get_rank(), dist.get_world_size()


def pipeline() -> None:
    """Two stages of fully sharded layers, one longer than the other."""
    mesh = init_device_mesh("cuda", (2, ranks // 2), mesh_dim_names=("pp", "dp"))
    stage = mesh["pp"].get_local_rank()
    with torch.device("cuda"):
        model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(1 + stage)])
    fully_shard(model, mesh=mesh["dp"])
    sample = (torch.empty(8, WIDTH, device="cuda"),)
    part = PipelineStage(
        model, stage, 2, torch.device("cuda"), sample, group=mesh["pp"].get_group()
    )
    schedule = Schedule1F1B(part, 2, loss_fn=nn.functional.mse_loss)
    tensor = torch.randn(16, WIDTH, device="cuda")
    schedule.step(*([] if stage else [tensor]), **({"target": tensor} if stage else {}))
    torch.cuda.synchronize()


def replicas() -> None:
    """Groups of every second rank, which share links where these are a ring."""
    mesh = init_device_mesh("cuda", (ranks // 2, 2), mesh_dim_names=("dp", "tp"))
    x = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(x, group=mesh["dp"].get_group())
    names: list[object] = [None] * ranks
    dist.all_gather_object(names, f"rank {rank}")
    print(names)
    torch.cuda.synchronize()


def in_turns() -> None:
    """Each rank marks its own place, and sends to all in its turn, as engines do as they start."""
    group = dist.new_group(backend="gloo")
    marks, counts = torch.zeros(ranks, dtype=torch.int32), torch.full((ranks,), 2)
    marks[rank] = 1
    for tensor in (marks, counts):
        dist.all_reduce(tensor, group=group)
    sent = []
    for root in range(ranks):
        box = [{"from": "a root"} if root == rank else None]
        dist.broadcast_object_list(box, root, group=group)
        sent += box
    print(marks.tolist(), counts.tolist(), sent)


def branching() -> None:
    x = torch.ones(64, 64, device="cuda")
    for _ in range(1 + rank):
        x = x @ x
    dist.all_reduce(x)


def late() -> None:
    """One rank, which is not named, does more at the end."""
    x = torch.ones(64, 64, device="cuda")
    dist.all_reduce(x)
    if 2 * rank == 2:
        x = x @ x


def to_next() -> None:
    x = torch.ones(64, device="cuda")
    work = dist.isend(x, (rank + 1) % ranks)
    dist.recv(torch.empty_like(x), (rank - 1) % ranks)
    work.wait()


def uneven() -> None:
    """Each rank gets more than the one before it."""
    sent, taken = [1 + index for index in range(ranks)], [1 + rank] * ranks
    value, out = torch.ones(sum(sent), device="cuda"), torch.empty(sum(taken), device="cuda")
    dist.all_to_all_single(out, value, taken, sent)


def uneven_in_rows() -> None:
    """The same among half of the ranks, and a ring of them; the other half does the same."""
    mesh = init_device_mesh("cuda", (2, ranks // 2), mesh_dim_names=("dp", "ep"))
    place, size = mesh["ep"].get_local_rank(), ranks // 2
    sent, taken = [64 << index for index in range(size)], [64 << place] * size
    value, out = torch.ones(sum(sent), device="cuda"), torch.empty(sum(taken), device="cuda")
    group = mesh["ep"].get_group()
    dist.all_to_all_single(out, value, taken, sent, group=group)
    around = [(index + 1) % size for index in range(size)]
    passed = funcol.wait_tensor(funcol.permute_tensor(out[:64], around, group))
    parts = [torch.empty(64 << index, device="cuda") for index in range(size)]
    dist.all_gather(parts, parts[place].clone(), group=group)
    dist.all_reduce(passed, group=mesh["dp"].get_group())
    torch.cuda.synchronize()


def odd_groups() -> None:
    group = dist.new_group([1, 2, 3]) if rank else dist.new_group([0])
    dist.all_reduce(torch.ones(64, device="cuda"), group=group)


globals()[sys.argv[1]]()
